"""Dead letters with which a worker had to be ended: their failures are no results, so they are noted aside."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.keys import StreamKeys
from penstock.redis.retry import Repeat
from penstock.spark.link import Link
from penstock.spark.patience import patiently

_REMEMBER_S = 24 * 3600
_RETRY_S = 60.0


@dataclass(frozen=True)
class StuckNotes:
    """A set in Redis, beside the dead letters, of one run of a reprocessing; it is pickled into the tasks."""

    link: Link
    letters: str  # the stream of the dead letters
    run: str

    def note(self, result: str) -> None:
        """Note a message by the id of its result."""
        client, key = self.link.client(), self._key()

        def add() -> None:
            client.call(key, "SADD", key, result, repeat=Repeat.IDEMPOTENT)
            client.call(key, "EXPIRE", key, _REMEMBER_S, repeat=Repeat.IDEMPOTENT)

        patiently(add, _RETRY_S, "noting a message that hangs")

    def known(self) -> frozenset[str]:
        """Return those that were noted."""
        client, key = self.link.client(), self._key()
        found = patiently(lambda: client.call(key, "SMEMBERS", key), _RETRY_S, "reading what hangs")
        return frozenset(member.decode() for member in found)

    def _key(self) -> str:
        return StreamKeys(self.link.client().keys(self.letters).stream).spark_dead_lettered(f"reprocess {self.run}")
