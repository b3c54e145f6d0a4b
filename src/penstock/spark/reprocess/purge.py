"""Deletes dead letters whose messages have a good result by now; the others stay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from penstock.redis.retry import Repeat
from penstock.settings import ResultBackendSettings
from penstock.spark.carried import Carried
from penstock.spark.link import Link
from penstock.spark.patience import patiently
from penstock.spark.reprocess.identity import result_id
from penstock.spark.reprocess.store import Store
from penstock.task import Status

PURGED = pa.schema([("purged", pa.int64())])
PURGED_DDL = "purged bigint"
_CHUNK = 500
_RETRY_S = 60.0


@dataclass(frozen=True)
class PurgeTask(Carried):
    """Called by Spark with dead letters, when the results of all of them are saved.

    A second pass, by the results alone: whatever was killed or repeated in the first, what is deleted has its result.
    """

    link: Link
    key: str
    results: ResultBackendSettings
    name: str | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield how many were deleted."""
        store = Store(self.results)
        try:
            for batch in batches:
                for first in range(0, batch.num_rows, _CHUNK):
                    letters = self._finished(store, batch.slice(first, _CHUNK))
                    yield pa.RecordBatch.from_pylist([{"purged": self._delete(letters)}], PURGED)
        finally:
            store.close()

    def _finished(self, store: Store, batch: pa.RecordBatch) -> list[str]:
        by_letter = {
            row["letter"]: result_id(self.name, row["message_id"], row["stream"], row["id"])
            for row in batch.to_pylist()
        }
        found = store.find(by_letter.values())
        return [letter for letter, known in by_letter.items() if known in found and found[known].status != Status.ERROR]

    def _delete(self, letters: list[str]) -> int:
        if not letters:
            return 0
        client = self.link.client()
        key = client.keys(self.key).stream
        words = ("XDEL", key, *letters)
        return int(patiently(lambda: client.call(key, *words, repeat=Repeat.IDEMPOTENT), _RETRY_S, "purging"))
