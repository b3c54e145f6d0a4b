"""The tools that operators use on dead letters, and the decoding of the Spark source, over hostile entries."""

from __future__ import annotations

import asyncio
import io
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from penstock.sync import DeadLetters, StreamClient
from penstock.sync.tasks import RedisTaskQueue
from penstock.testing.hostile import KINDS, HostileEntry, hostile_entries
from tests.hostile.history import dead_lettered
from tests.hostile.readers import strange_tasks

_ABOUT = [b"dlq_reason", b"fatal", b"dlq_source", b"orders", b"dlq_id", b"1-1", b"dlq_group", b"g"]
_FORBIDDEN = {"\x1b", "\x07", "\x9b", "\x00"}


def dead_stream(url: str, raw: redis.Redis, seed: int, count: int, kinds: Iterable[str] = KINDS) -> list[str]:
    """List, redrive and purge hostile dead letters of a stream."""
    complaints = _Complaints()
    entries = _write(raw, "orders_dlq", hostile_entries(seed, count, kinds=kinds))
    with StreamClient.from_url(url) as client:
        letters = DeadLetters(client, "orders")
        complaints.of("count", lambda: _equal(letters.count(), entries))
        complaints.of("list", lambda: _equal(len(letters.list(count=2 * count)), entries))
        complaints.of("redrive", letters.redrive)
        complaints.of("conserved", lambda: _equal(raw.xlen("orders_dlq") + raw.xlen("orders"), entries))
        complaints.of("purge", letters.purge)
        complaints.of("purged", lambda: _equal(letters.count(), 0))
    return complaints.found


def dead_tasks(url: str, raw: redis.Redis, seed: int, count: int, kinds: Iterable[str] = KINDS) -> list[str]:
    """List, redrive and purge hostile dead letters of tasks."""
    complaints = _Complaints()
    entries = _write(raw, "jobs.dead", hostile_entries(seed, count, kinds=kinds, payloads=strange_tasks(count)))
    with RedisTaskQueue(url, name="jobs") as queue:
        complaints.of("iterate", lambda: _equal(len(list(queue.dead.iterate())), entries))
        for letter in complaints.of("iterate", lambda: list(queue.dead.iterate())) or []:
            complaints.of("redrive", lambda letter=letter: queue.dead.put_back(letter))  # type: ignore[misc]
        left = [entry_id.decode() for entry_id, _ in raw.xrange("jobs.dead")]
        complaints.of("purge", lambda: queue.dead.purge(left))
        complaints.of("purged", lambda: _equal(queue.dead.count(), 0))
    return complaints.found


def command_line(url: str, raw: redis.Redis, seed: int, count: int, kinds: Iterable[str] = KINDS) -> list[str]:
    """`penstock queue dlq list` and `export` over hostile dead letters, as a terminal and a program see them."""
    from typer.testing import CliRunner

    from penstock.cli.app import app

    complaints = _Complaints()
    entries = _write(raw, "jobs.dead", hostile_entries(seed, count, kinds=kinds, payloads=strange_tasks(count)))

    def shown(*words: str) -> str:
        with redirect_stderr(io.StringIO()):
            result = CliRunner().invoke(app, ["queue", "dlq", *words, "--queue", "jobs", "--url", url])
        if result.exit_code:
            raise result.exception or AssertionError(result.output)
        return result.stdout

    def is_harmless(text: str) -> None:
        if strange := _FORBIDDEN & set(text):
            raise AssertionError(f"the terminal is sent {sorted(strange)!r}")

    limit = str(2 * count)
    complaints.of("list", lambda: is_harmless(shown("list", "--limit", limit)))
    complaints.of("list --json", lambda: _equal(len(shown("list", "--limit", limit, "--json").splitlines()), entries))
    with tempfile.TemporaryDirectory() as folder:
        for form in ("jsonl", "csv"):
            path = str(Path(folder) / form)
            complaints.of(
                f"export {form}", lambda form=form, path=path: shown("export", "--format", form, "--output", path)
            )  # type: ignore[misc]
        lines = (Path(folder) / "jsonl").read_text(errors="replace") if (Path(folder) / "jsonl").exists() else ""
        complaints.of("export whole", lambda: _equal(len([json.loads(line) for line in lines.splitlines()]), entries))
    return complaints.found


def spark_source(url: str, raw: redis.Redis, seed: int, count: int, kinds: Iterable[str] = KINDS) -> list[str]:
    """The rows of the Spark source, made in Python without a JVM."""
    import pyarrow as pa

    from penstock.spark.format import columns as known
    from penstock.spark.source.rows import RowBuilder

    complaints = _Complaints()
    builder = RowBuilder(pa.schema([(name, types[0]) for name, types in known.DEAD_LETTER.items()]))
    entries = list(hostile_entries(seed, count, kinds=kinds))
    for number, entry in enumerate(entries):
        entry_id = f"{1_700_000_000_000 + number}-{number}" if entry.id == "*" else entry.id
        row = (entry_id.encode(), entry.fields)
        complaints.of(
            entry.kind,
            lambda row=row: _equal(builder.build([("s", [row])]).num_rows, 1),  # type: ignore[misc]
        )
    return complaints.found


def pipeline_tasks(url: str, raw: redis.Redis, seed: int, count: int, kinds: Iterable[str] = KINDS) -> list[str]:
    """What the tasks of a pipeline do with entries: read, decode, pass good rows on, dead-letter the others."""
    import pyarrow as pa

    from penstock.spark.format.batch_reader import BatchReader
    from penstock.spark.payload import PayloadFormat
    from penstock.spark.pipeline.dead_letters import DeadLetterWriter
    from penstock.spark.pipeline.plan import Intake
    from penstock.spark.pipeline.spec import WHY_CORRUPT
    from penstock.spark.source.options import SourceOptions
    from penstock.spark.source.rows import RowBuilder

    complaints, bad = _Complaints(), list[str]()
    for number, entry in enumerate(hostile_entries(seed, count, kinds=kinds)):
        raw.xadd("orders", {"data": f'{{"n": {number}}}'})
        bad.append(raw.execute_command("XADD", "orders", *entry.words).decode())
    texts = [(name, pa.string()) for name in ("stream", "id", WHY_CORRUPT)]
    schema = pa.schema([*texts, ("data", pa.binary()), ("n", pa.int64())])
    payload = PayloadFormat("json", pa.schema([pa.field("n", pa.int64(), nullable=False)]), reason_column=WHY_CORRUPT)
    reader = BatchReader(SourceOptions.parse({"url": url, "streams": "orders"}), RowBuilder(schema, payload))
    with StreamClient.from_url(url) as client:
        dead_letters = _Office(DeadLetterWriter(client, "shop", lambda _: "batch 1"))

        def rows() -> Counter[int]:
            batches = (batch for part in reader.partitions() for batch in reader.read(part))
            passed = Intake(dead_letters, ("n",))(batches)  # type: ignore[arg-type]
            return Counter(n for batch in passed for n in batch.column("n").to_pylist())

        for _ in range(2):  # a batch may be repeated
            found = complaints.of("rows", rows) or Counter[int]()
            taken = found.pop(-1, 0)  # hostile entries whose payload is whole
            complaints.of("good rows", lambda found=found: _equal(found, Counter(range(count))))  # type: ignore[misc]
            dead = dead_lettered(raw, "orders_dlq")
            complaints.of("dead twice", lambda dead=dead: _equal(max(dead.values(), default=1), 1))  # type: ignore[misc]
            complaints.of("others dead", lambda dead=dead: _equal(set(dead) <= set(bad), True))  # type: ignore[misc]
            complaints.of(
                "every bad one has a failure",
                lambda dead=dead, taken=taken: _equal(len(dead) + taken, len(bad)),  # type: ignore[misc]
            )
    return complaints.found


@dataclass(frozen=True)
class _Office:
    """Opens the writer that a task of Spark would be given."""

    writer: Any

    def open(self) -> Any:
        return self.writer


TOOLS: dict[str, Callable[..., list[str]]] = {
    "dead letters of streams": dead_stream,
    "dead letters of tasks": dead_tasks,
    "command line": command_line,
    "spark source": spark_source,
    "tasks of a pipeline": pipeline_tasks,
}


class _Complaints:
    """What tools raised, each kind of complaint once."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def of(self, what: str, call: Callable[[], object]) -> object:
        try:
            return call()
        except (Exception, asyncio.CancelledError) as error:
            told = f"{what}: {type(error).__name__}: {str(error)[:150]}"
            if told not in self.found:
                self.found.append(told)
            return None


def _write(raw: redis.Redis, stream: str, entries: Iterable[HostileEntry]) -> int:
    written = 0
    for entry in entries:
        raw.execute_command("XADD", stream, entry.id, *entry.fields, *_ABOUT)
        written += 1
    return written


def _equal(found: object, wanted: object) -> None:
    if found != wanted:
        raise AssertionError(f"{found} instead of {wanted}")
