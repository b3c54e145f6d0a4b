"""The keys of a task queue."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.keys.names import check_name, tagged
from penstock.keys.stream import StreamKeys


@dataclass(frozen=True, slots=True)
class TaskKeys:
    """The keys of one task queue: three streams as the user names them, and what belongs to them.

    `name` is what the streams begin with, without the prefix of the client. In a cluster it is made a hash tag, unless
    it has one: the streams of the queue `jobs` are `{jobs}.tasks`, `{jobs}.results` and `{jobs}.dead` there.
    """

    name: str
    prefix: str = ""

    @classmethod
    def of(cls, name: str, prefix: str = "", is_cluster: bool = False) -> TaskKeys:
        """Return the keys of a queue with the name that users give it."""
        check_name("name", name, max_length=128)
        StreamKeys.of(name, prefix)
        return cls(tagged(name) if is_cluster else name, prefix)

    def stream_name(self, lane: str = "") -> str:
        """Return the name of the stream of a lane, as streams are named to a client (it adds its prefix itself)."""
        return f"{self.name}.tasks{lane}"

    @property
    def results_name(self) -> str:
        """The name of the stream of results, as streams are named to a client."""
        return f"{self.name}.results"

    @property
    def _root(self) -> str:
        return f"{self.prefix}_{self.name}" if self.prefix else self.name

    @property
    def _base(self) -> str:
        return tagged(self._root)

    def tasks(self, lane: str = "") -> StreamKeys:
        """Stream: the tasks of a lane; '' is that of tasks of normal priority which any worker can do."""
        return StreamKeys(f"{self._root}.tasks{lane}")

    def suspects(self, lane: str = "") -> str:
        """Set: entries of the lane that were with a worker when it died."""
        return f"{self._base}:suspects{lane}"

    @property
    def results(self) -> str:
        """Stream: one entry for each result, in the order in which they came."""
        return f"{self._root}.results"

    @property
    def dead(self) -> str:
        """Stream: the dead letters of all lanes."""
        return f"{self._root}.dead"

    @property
    def index(self) -> str:
        """Hash: id of every open task -> 'entry-id lane unique-text'; entry-id is '-' while it is not due."""
        return f"{self._base}:index"

    @property
    def done(self) -> str:
        """Hash: id of every task that has a result -> id of the entry in the stream of results."""
        return f"{self._base}:done"

    @property
    def unique(self) -> str:
        """Hash: text that only one open task may have -> id of that task."""
        return f"{self._base}:unique"

    @property
    def counts(self) -> str:
        """Hash: '<what>:<kind>' -> how often, since the queue exists; what = added, acked, dead, redriven."""
        return f"{self._base}:counts"

    @property
    def lanes(self) -> str:
        """Set: the lanes that were ever used."""
        return f"{self._base}:lanes"

    @property
    def due(self) -> str:
        """Sorted set: ids of tasks that are not due, scored by the time in ms at which they are."""
        return f"{self._base}:due"

    @property
    def bodies(self) -> str:
        """Hash: id of every task that is not due -> its kind, a NUL and its body."""
        return f"{self._base}:bodies"

    @property
    def paused(self) -> str:
        """Hash: name of every paused schedule -> the time of the pause, in ms."""
        return f"{self._base}:paused"

    @property
    def awaited(self) -> str:
        """Sorted set: ids of tasks whose result a caller waits for, scored by the time in ms at which the wait ends."""
        return f"{self._base}:awaited"

    def notice(self, task_id: str) -> str:
        """List with a TTL: gets an element as soon as the awaited result is stored."""
        return f"{self._base}:notice:{task_id}"

    def permits(self, scope: str) -> str:
        """Hash: id of every task that runs within a limit -> 'lane entry-id'."""
        return f"{self._base}:permits:{scope}"

    def queue_for(self, scope: str) -> str:
        """Sorted set: 'lane entry-id' of the tasks that wait for a permit, scored by the time at which they came."""
        return f"{self._base}:limited:{scope}"

    def rate(self, scope: str) -> str:
        """String with a TTL: the time in ms up to which beginnings are taken."""
        return f"{self._base}:rate:{scope}"

    def reserved(self, scope: str) -> str:
        """Set with a TTL: ids of tasks whose beginning is reserved."""
        return f"{self._base}:reserved:{scope}"

    def chore(self, chore: str) -> str:
        """String with a TTL: some process did the chore in this interval."""
        return f"{self._base}:chore:{chore}"
