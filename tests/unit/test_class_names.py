"""One class a name: whoever reads it in a log, a traceback or a search knows which one is meant."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import penstock

PACKAGE = Path(penstock.__file__).parent
TWINS = {
    # What differs between asyncio and threads is written twice, name by name, so that generated code finds its twin.
    **dict.fromkeys(("Activity", "Combiner", "Flag", "TaskGroup", "WaitQueue"), ("runtime/aio", "runtime/threads")),
    "Threads": ("runtime/threads", "runtime/user_functions"),  # runtime/aio exports it
    "Connection": ("redis/aio", "redis/blocking"),
    **dict.fromkeys(("Locator", "_Attempt"), ("redis/aio_locator", "redis/blocking_locator")),
}


def test_no_two_classes_of_the_package_have_one_name() -> None:
    places = defaultdict[str, list[str]](list)
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).with_suffix("")
        if module.parts[0] != "sync":  # generated: the same classes once more
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(module.as_posix())
    assert {name: tuple(modules) for name, modules in places.items() if len(modules) > 1} == TWINS
