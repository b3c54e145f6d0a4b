"""The history checker: what producers and workers said, against what Redis holds. Set arithmetic, nothing else.

published = acknowledged + dead + queued        nothing is lost, nothing is in two places
begun     <= published                          nothing is handled that nobody published, and bodies are whole
starts    <= messages + hand-outs that were logged: reclaimed, swept up, retried, handed back
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import redis

from tests.faults.worker_process import Line, WorkerProcess

_PAGE = 10_000


def body(n: int, *do: list[Any], runs: int | None = None, pad: str = "") -> dict[str, Any]:
    """Returns the payload of a message: a number, a checksum, and what its handler is to do."""
    made: dict[str, Any] = {"n": n, "pad": pad, "sum": checksum(n, pad)}
    if do:
        made["do"] = list(do)
    if runs is not None:
        made["runs"] = runs
    return made


def checksum(n: int, pad: str) -> str:
    return hashlib.sha256(f"{n}:{pad}".encode()).hexdigest()


@dataclass
class Places:
    """Where the entries of a stream are for one group, as Redis has it."""

    entries: dict[str, int] = field(default_factory=dict)  # id -> n
    pending: set[str] = field(default_factory=set)
    unread: set[str] = field(default_factory=set)
    dead: dict[str, str] = field(default_factory=dict)  # id -> reason
    dead_records: int = 0

    @property
    def queued(self) -> set[str]:
        return self.pending | self.unread

    @property
    def acknowledged(self) -> set[str]:
        return set(self.entries) - self.queued - set(self.dead)


class Checker:
    """Judges one stream and group."""

    def __init__(self, raw: redis.Redis, stream: str, group: str) -> None:
        self._raw, self._stream, self._group = raw, stream, group

    # --- what Redis holds ---------------------------------------------------------------------------

    def pending(self) -> list[dict[str, Any]]:
        """Returns the pending list."""
        return list(self._raw.xpending_range(self._stream, self._group, "-", "+", _PAGE))

    def pending_count(self) -> int:
        return int(self._raw.xpending(self._stream, self._group)["pending"])

    def places(self) -> Places:
        """Looks at every entry."""
        found = Places()
        last = next(g for g in self._raw.xinfo_groups(self._stream) if g["name"] == self._group.encode())
        position = _id(last["last-delivered-id"])
        for entry_id, fields in self._raw.xrange(self._stream):
            found.entries[entry_id.decode()] = _number(fields)
            if _id(entry_id) > position:
                found.unread.add(entry_id.decode())
        found.pending = {entry["message_id"].decode() for entry in self.pending()}
        for _, fields in self._raw.xrange(f"{self._stream}_dlq"):
            found.dead[fields[b"dlq_id"].decode()] = fields[b"dlq_reason"].decode()
            found.dead_records += 1
        return found

    def is_quiet(self) -> bool:
        """Tells whether nothing is pending and nothing unread."""
        groups = [g for g in self._raw.xinfo_groups(self._stream) if g["name"] == self._group.encode()]
        if not groups or groups[0]["pending"]:
            return False
        last = groups[0]["last-delivered-id"].decode()
        after = f"({last}" if last != "0-0" else "-"
        return not self._raw.xrange(self._stream, after, "+", count=1)

    # --- verdicts -----------------------------------------------------------------------------------

    def check_conserved(self, published: Iterable[str], maybe: Iterable[int] = ()) -> Places:
        """Every published id is in exactly one place; nothing else is there but publishes of unknown outcome, once."""
        found, published = self.places(), set(published)
        assert not found.dead.keys() & found.queued, "dead, and queued as well"
        assert found.dead_records == len(found.dead), "two dead letters of one message"
        everywhere = found.acknowledged | found.queued | set(found.dead)
        assert published <= everywhere, f"lost: {sorted(published - everywhere)}"
        extra = set(found.entries) - published
        recovered = Counter(found.entries[entry_id] for entry_id in extra)
        unexpected = recovered - Counter(set(maybe))
        assert not unexpected, f"in the stream, but nobody was told that it was published: {dict(unexpected)}"
        return found

    def check_handled(self, workers: Iterable[WorkerProcess], found: Places) -> None:
        """What is acknowledged was handled; what was handled had been published, body and all."""
        begun = [line for worker in workers for line in worker.said("began")]
        done = {line["id"] for worker in workers for line in worker.said("done")}
        assert found.acknowledged <= done, f"acknowledged, but never handled: {sorted(found.acknowledged - done)}"
        for line in begun:
            assert line["id"] in found.entries, f"handled, but never published: {line}"
            assert line["sum"] == checksum(line["n"], line["pad"]), f"another body than the one published: {line}"

    def check_starts(self, workers: Iterable[WorkerProcess], killed: int = 0) -> int:
        """No handler began without a reason in the books; returns how many began more than once.

        A worker that is killed between a step and its event takes the reason along: one for each that was `killed`.
        """
        workers = list(workers)
        starts = Counter(line["id"] for worker in workers for line in worker.said("began"))
        again = Counter(entry_id for worker in workers for line in _events(worker) for entry_id in line.get("ids", ()))
        counted = sum(line.get("count", 0) for worker in workers for line in _events(worker, "retried", "handed_back"))
        unexplained = sum(max(0, starts[entry_id] - 1 - again[entry_id]) for entry_id in starts)
        assert unexplained <= counted + killed, f"{unexplained} handler starts beyond {counted} retries and hand-backs"
        return sum(count > 1 for count in starts.values())

    def check_quiet(self) -> None:
        """After the work nothing is stranded, and nothing is left behind but what is documented."""
        assert self.pending_count() == 0, self.pending()
        assert self.is_quiet(), "unread entries are left"
        base = f"{{{self._stream}}}:"
        allowed = {self._stream, f"{self._stream}_dlq", f"{base}position:{self._group}"}
        prefixes = tuple(f"{base}{kind}:" for kind in ("producer", "dedup", "worker", "chore"))
        # Of this stream: the last word of a process that another test has killed may come late.
        keys = {key.decode() for key in self._raw.scan_iter(match=f"*{self._stream}*", count=1_000)}
        # Of finished messages no attempts and no due times are kept: these two keys are gone with the last of them.
        strange = {key for key in keys - allowed if not key.startswith(prefixes)}
        assert not strange, {key: self._raw.type(key) for key in strange}


def _events(worker: WorkerProcess, *names: str) -> list[Line]:
    wanted = names or ("reclaimed", "swept")
    return [line for line in worker.said("event") if line["name"] in wanted]


def _id(raw: bytes) -> tuple[int, int]:
    ms, _, seq = raw.decode().partition("-")
    return int(ms), int(seq)


def _number(fields: dict[bytes, bytes]) -> int:
    found = re.search(rb'"n": ?(\d{1,9})\b', fields.get(b"data", b"")[:1_000])
    return int(found[1]) if found else -1
