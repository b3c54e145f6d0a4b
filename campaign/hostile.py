"""Hostile entries: every reader and every tool over thousands of them, with good messages between."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable

import pyarrow.parquet

from campaign.checker import Verdict
from campaign.children import Child
from campaign.servers import missing_java
from campaign.stage import Stage
from penstock.testing.hostile import KINDS, hostile_entries
from tests.hostile.accepted import RED
from tests.hostile.readers import READERS, Run, read
from tests.hostile.tools import TOOLS

ENTRIES = 20_000
_ENTRIES_OF_A_TOOL = 500  # and of the pipeline
_ENTRIES_OF_A_KIND = 30
_PATIENCE_S = 10.0
_SHORT_PATIENCE_S = 3.0
_DRIVER_S, _ARCHIVE_S = 300.0, 1_800.0

Check = Callable[[Iterable[str], int], "list[str]"]


def play(stage: Stage) -> Verdict:
    """Run every reader and tool; where one breaks, find out which kinds break it, and run it without them."""
    logging.getLogger("penstock").setLevel(logging.CRITICAL)  # each entry is one warning
    verdict = Verdict()
    wanted = min(ENTRIES, max(1_000, stage.messages)) // len(READERS)  # the archive has as many as each reader
    for name in READERS:

        def reading(kinds: Iterable[str], count: int, name: str = name) -> list[str]:
            stage.raw.flushall()
            run = Run(stage.url, stage.raw, stage.seed, count, kinds)
            run.patience_s = _PATIENCE_S if count == wanted else _SHORT_PATIENCE_S
            complaints = asyncio.run(read(name, run))
            if count == wanted:
                verdict.messages += len(run.history.good)
                verdict.handled += len(run.history.handled)
                verdict.dead += len(run.history.dead)
                verdict.hostile += len(run.history.bad)
            return complaints

        verdict.complaints += _broken(name, reading, wanted)
    for name, tool in TOOLS.items():

        def using(kinds: Iterable[str], count: int, tool: Callable[..., list[str]] = tool) -> list[str]:
            stage.raw.flushall()
            return tool(stage.url, stage.raw, stage.seed, count, kinds)

        verdict.complaints += _broken(name, using, _ENTRIES_OF_A_TOOL)
    if not missing_java():
        verdict.complaints += _pipeline(stage)
        verdict.complaints += _archive(stage, verdict, wanted)
    return verdict


def _pipeline(stage: Stage) -> list[str]:
    """Run a pipeline over some hostile entries: every good row must be in its table once."""
    print("  hostile entries for a pipeline", flush=True)
    stage.raw.flushall()
    table = stage.folder / "table"
    entries = hostile_entries(stage.seed, _ENTRIES_OF_A_TOOL, payloads=[b'{"n": -1}'])
    for n, entry in enumerate(entries):
        stage.raw.execute_command("XADD", "orders", *entry.words)
        stage.raw.xadd("orders", {"data": f'{{"n": {n}}}'})
    job = {"url": stage.url, "stream": "orders", "table": str(table), "once": True}
    driver = Child("pipeline", "campaign.pipeline", job, stage.folder)
    try:
        if not driver.wait(_DRIVER_S) or driver.code:
            return [f"a pipeline ended with {driver.code}: {driver.last_words()[-600:]}"]
    finally:
        driver.close()
    found = Counter(n for n in pyarrow.parquet.read_table(table)["n"].to_pylist() if n >= 0)
    wrong = [n for n in range(_ENTRIES_OF_A_TOOL) if found[n] != 1]
    return [f"a pipeline has these rows not once: {wrong[:10]}"] if wrong else []


def _archive(stage: Stage, verdict: Verdict, count: int) -> list[str]:
    """Archive hostile entries, read them back and replay them: all bytes must be there, each entry once."""
    print("  hostile entries for an archive", flush=True)
    assert stage.server is not None
    stage.raw.flushall()
    told = stage.folder / "archive.json"
    job = {
        "url": stage.url, "socket": stage.server.unix_socket, "root": str(stage.folder / "cold"), "told": str(told),
        "seed": stage.seed, "count": count,
    }  # fmt: skip
    driver = Child("archive", "campaign.archive", job, stage.folder)
    try:
        if not driver.wait(_ARCHIVE_S) or driver.code:
            return [f"an archive run ended with {driver.code}: {driver.last_words()[-600:]}"]
    finally:
        driver.close()
    found = json.loads(told.read_text())
    verdict.hostile += found["entries"] - found["good"]
    verdict.messages += found["good"]
    verdict.handled += 0 if found["complaints"] else found["good"]
    return [f"archive, {complaint}" for complaint in found["complaints"]]


def _broken(name: str, check: Check, count: int) -> list[str]:
    """Return what breaks a reader: by kind, and what remains without those kinds."""
    print(f"  hostile entries for {name}", flush=True)
    kinds = [kind for kind in KINDS if kind not in RED.get(name, {})]
    together = check(kinds, count)
    if not together:
        return []
    guilty = {kind: found for kind in kinds if (found := check([kind], _ENTRIES_OF_A_KIND))}
    rest = check([kind for kind in kinds if kind not in guilty], count) if guilty else together
    told = [f"{name}, {kind}: {'; '.join(found)}" for kind, found in guilty.items()]
    return told + [f"{name}, all other kinds together: {complaint}" for complaint in rest]
