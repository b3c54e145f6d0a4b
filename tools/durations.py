"""Prints how long the tests of each folder took, as the table in CONTRIBUTING.md.

make test ARGS=--junitxml=build/tests.xml && python tools/durations.py build/tests.xml
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path
from xml.etree import ElementTree as ET

_SPLIT = ("spark", "sync")  # folders whose own folders are worth a row
_LEAST_S = 1.0


def folder(classname: str) -> str:
    """Returns the folder of a test: `tests.spark.sink.test_sink.TestClass` is of `spark/sink`."""
    parts = classname.split(".")[1:]
    parts = parts[: next(number for number, part in enumerate(parts) if part.startswith("test_"))]
    return "/".join(parts[: 2 if parts[0] in _SPLIT else 1])


def main() -> None:
    """Runs the command line."""
    seconds: defaultdict[str, float] = defaultdict(float)
    tests: Counter[str] = Counter()
    for case in ET.parse(Path(sys.argv[1])).iter("testcase"):  # noqa: S314  what pytest wrote a moment ago
        name = folder(case.attrib["classname"])
        seconds[name] += float(case.attrib["time"])
        tests[name] += 1
    total = sum(seconds.values())
    print("| folder | tests | seconds | share |\n|---|---|---|---|")
    for name, spent in sorted(seconds.items(), key=lambda item: -item[1]):
        if spent >= _LEAST_S:
            print(f"| `{name}` | {tests[name]} | {spent:.0f} | {spent / total:.0%} |")
    print(f"| all | {tests.total()} | {total:.0f} | |")


if __name__ == "__main__":
    main()
