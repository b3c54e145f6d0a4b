"""An archive of hostile entries with good messages between them: written, verified, read with Redis, replayed, compacted."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import redis

from penstock import envelope, ids
from penstock.spark.archive import ArchiveRun, compact, verify
from penstock.spark.archive.read import read
from penstock.spark.archive.run import GROUP
from penstock.spark.format.batch_reader import BatchReader
from penstock.spark.replay import ArchiveOrigin, Replay, Span
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.rows import RowBuilder
from penstock.sync import ConsumerGroup, StreamClient
from penstock.testing.hostile import KINDS, HostileEntry, hostile_entries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAM = "orders"
ROUND = 2_000
"""Hostile entries that are in Redis at a time."""
_GOOD = "good"  # the kind of good messages
_SCHEMA = pa.schema([("id", pa.string()), ("fields", pa.map_(pa.string(), pa.binary()))])


class ArchiveCheck:
    """What was written, and complaints about what became of it."""

    def __init__(self, spark: SparkSession, url: str, raw: redis.Redis, root: Path, *, batch_rows: int = 250) -> None:
        self._spark, self._url, self._raw, self._root, self._batch_rows = spark, url, raw, root, batch_rows
        self._options = {"url": url, "minPartitions": "2"}
        self.kinds: dict[str, str] = {}  # id of an entry -> its kind
        self._digests: dict[str, str] = {}
        self._payloads: dict[str, str | None] = {}
        self.found: list[str] = []

    def run(self, seed: int, count: int, kinds: Iterable[str] = KINDS) -> list[str]:
        """Go through the life of an archive; return a sentence for each promise that was broken."""
        chosen = list(kinds)
        entries = hostile_entries(seed, count + len(chosen), kinds=chosen)
        low = 0
        for first in range(0, count, ROUND):
            before = len(self.kinds)
            self._feed(entries, min(ROUND, count - first))
            self._try("archive run", self._archive)
            low = ids.parse(list(self.kinds)[before])[0]
        archived = list(self.kinds)
        self._feed(entries, len(chosen))  # which Redis alone has
        self._try("verify", self._verify)
        self._try("hybrid read by tasks", self._joined)
        self._try("hybrid read by Spark", self._read)
        self._try("replay", lambda: self._replay(low, archived))
        self._try("compact", lambda: compact(self._root, grace_s=0))
        self._try("verify what was compacted", self._verify)
        self._try("archive run behind it", self._archive)
        self._try("verify the whole", self._verify)
        self._try("read the whole", self._joined)
        return self.found

    @property
    def good(self) -> int:
        """How many good messages were written."""
        return list(self.kinds.values()).count(_GOOD)

    def _feed(self, entries: Iterator[HostileEntry], count: int) -> None:
        for number in range(count):
            if number % 3 == 0:
                self._add(_GOOD, [b"data", b'{"good": %d}' % len(self.kinds), b"message_id", b"m%d" % len(self.kinds)])
            entry = next(entries)
            self._add(entry.kind, entry.fields, entry.id)
        self._add(_GOOD, [b"data", b'{"good": %d}' % len(self.kinds)])

    def _add(self, kind: str, fields: list[bytes], wanted_id: str = "*") -> None:
        entry_id = self._raw.execute_command("XADD", STREAM, wanted_id, *fields).decode()
        by_name = envelope.as_mapping(fields)
        self.kinds[entry_id], self._digests[entry_id] = kind, _digest(by_name)
        data = by_name.get(envelope.DATA)
        self._payloads[entry_id] = None if data is None else hashlib.sha256(data).hexdigest()

    def _archive(self) -> None:
        run = ArchiveRun(self._root, STREAM, self._options, max_batch_rows=self._batch_rows)
        run.start(self._spark, once=True).awaitTermination()
        with StreamClient.from_url(self._url) as client:
            ConsumerGroup(client, STREAM, GROUP).trim(keep=0)
        if self._raw.xlen(STREAM):
            raise AssertionError(f"{self._raw.xlen(STREAM)} entries are left in Redis")

    def _verify(self) -> None:
        report = verify(self._root, rows=True)
        if not report.is_sound or report.known_losses:
            raise AssertionError("; ".join(map(str, [*report.findings[:5], *report.known_losses[:5]])))

    def _joined(self) -> None:
        """Read the archive and Redis as tasks do, every byte."""
        options = SourceOptions.parse({**self._options, "streams": STREAM, "archive": str(self._root)})
        reader = BatchReader(options, RowBuilder(_SCHEMA))
        found = [
            (row["id"], _digest(dict(row["fields"])))
            for part in reader.partitions()
            for batch in reader.read(part)
            for row in batch.to_pylist()
        ]
        self._compare(found, self._digests)

    def _read(self) -> None:
        rows = read(self._spark, self._root, STREAM, hot=self._options)
        self._compare([(row[0], row[1]) for row in rows.selectExpr("id", "sha2(data, 256)").collect()], self._payloads)

    def _compare(self, found: list[tuple[str, Any]], wanted: dict[str, Any]) -> None:
        times = Counter(entry_id for entry_id, _ in found)
        self._blame("missing", (entry_id for entry_id in wanted if not times[entry_id]))
        self._blame("there twice", (entry_id for entry_id, count in times.items() if count > 1))
        self._blame("changed", (entry_id for entry_id, value in found if wanted.get(entry_id) != value))

    def _replay(self, low: int, archived: list[str]) -> None:
        replay = Replay(ArchiveOrigin(self._root, STREAM, Span(low)), "again", {"url": self._url}, name="hostile")
        counted = replay.count()
        done = replay.run()
        if (done.added, replay.run().repeated) != (counted.wanted, counted.wanted):
            raise AssertionError(f"{done} where {counted} were counted")
        wanted = {entry_id for entry_id in archived if ids.parse(entry_id)[0] >= low}
        found = Counter[str]()
        for _, fields in self._raw.xrange("again"):
            origin = json.loads(fields[b"headers"])["replay_of"].rpartition("/")[2]
            found[origin] += 1
            data = fields.get(b"data")
            if self._payloads.get(origin) != (None if data is None else hashlib.sha256(data).hexdigest()):
                self._blame("another payload", [origin])
        lost = wanted - set(found)
        if len(lost) != counted.empty + counted.looping:
            self._blame("not replayed", lost)
        self._blame("good, and not replayed", (entry_id for entry_id in lost if self.kinds[entry_id] == _GOOD))
        self._blame("replayed twice", (entry_id for entry_id, count in found.items() if count > 1))
        self._raw.delete("again")

    def _blame(self, what: str, entry_ids: Iterable[str]) -> None:
        kinds = Counter(self.kinds.get(entry_id, "of nobody") for entry_id in entry_ids)
        if kinds:
            raise AssertionError(f"{what}: {', '.join(f'{kind} ({n})' for kind, n in kinds.most_common(10))}")

    def _try(self, what: str, step: Callable[[], object]) -> None:
        try:
            step()
        except Exception as error:
            self.found.append(f"{what}: {type(error).__name__}: {str(error)[:600]}")


def _digest(by_name: dict[str, bytes]) -> str:
    return hashlib.sha256(repr(sorted(by_name.items())).encode()).hexdigest()
