"""What a report is about: a stream, or the streams of a task queue, and where its parts are read.

Also which of it is available: days in an archive, and entries that were trimmed from Redis.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock import ids
from penstock.errors import NotFound, StreamMissing
from penstock.keys import StreamKeys, TaskKeys, check_name
from penstock.ops.model import GroupInfo
from penstock.spark.archive.state import FileEntry, State
from penstock.spark.archive.table import load_state
from penstock.spark.payload.opening import without_keys
from penstock.spark.report.figures import ArchiveCoverage, Day, Window
from penstock.spark.runtime.link import Link, retry
from penstock.spark.runtime.option_values import Options
from penstock.spark.source.catalogue import StreamState, look
from penstock.sync.ops import Inspector
from penstock.tasks.lanes import Lane
from penstock.units import moment

_TASKS = ".tasks"
_MOST_DAYS = 120


@dataclass(frozen=True)
class Target:
    """A stream; `options` are those of the source (`url` and so on), `results` those of the format of results."""

    stream: str
    options: Mapping[str, str]
    archive: str | Path | None = None
    results: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        check_name("--stream", self.stream)

    @property
    def queue(self) -> str | None:
        """The name of the task queue whose tasks the stream holds, if it is such a stream."""
        return self.stream.removesuffix(_TASKS) if self.stream.endswith(_TASKS) else None

    @property
    def dead_stream(self) -> str:
        """The stream of its dead letters."""
        return StreamKeys(self.stream).default_dead_letters() if self.queue is None else TaskKeys(self.queue).dead

    @property
    def result_options(self) -> Mapping[str, str] | None:
        """Where results are: a task queue has its own, unless others are named."""
        if self.results is not None or self.queue is None or TaskKeys(self.queue).results not in self.states():
            return self.results
        return {**self.reading, "backend": "redis", "queue": self.queue, "failOnDataLoss": "false"}

    @property
    def reading(self) -> Mapping[str, str]:
        """The options of the source, for reading payloads as they are."""
        return without_keys(self.options)

    def names(self) -> list[str]:
        """Return the streams: those of all lanes of a task queue."""
        if self.queue is None:
            return [self.stream]
        client = self.link.client()
        keys = TaskKeys(self.queue, client.prefix)
        used = retry(lambda: client.call(keys.lanes, "SMEMBERS", keys.lanes))
        lanes = [lane for name in used if (lane := Lane.parse(name.decode(errors="replace"))) is not None]
        return sorted({self.stream, *(keys.stream_name(lane.suffix) for lane in lanes)})

    def states(self) -> dict[str, StreamState]:
        """Return what the server says of the streams that exist; raise StreamMissing if nothing is known of any.

        Raises: ConfigurationError if there is no archive where one was named.
        """
        is_archived = self.stream in self.archived()
        wanted = [*self.names(), self.dead_stream]
        if self.queue is not None:
            wanted.append(TaskKeys(self.queue).results)
        states = retry(lambda: look(self.link.client(), wanted))
        found = {name: state for name, state in states.items() if state is not None}
        if not found and not is_archived:
            where = self.link.client().settings.where
            kept = "" if self.archive is None else f" or in the archive {self.archive}"
            raise StreamMissing(
                f"stream {self.stream!r} does not exist in Redis at {where}{kept}: check the name and the database"
            )
        return found

    def groups(self) -> tuple[GroupInfo, ...]:
        """Return the consumer groups as they are now, those of streams that exist."""
        inspector = Inspector(self.link.client())
        found: list[GroupInfo] = []
        for name in self.names():
            try:
                found += retry(lambda name=name: inspector.groups.of(name))  # type: ignore[misc]
            except NotFound:
                continue
        return tuple(found)

    def times(self, stream: str, window: Window) -> list[int]:
        """Return the times of the first and the last entry of a stream in the window; none if it has no entry there."""
        client = self.link.client()
        key = client.keys(stream).stream
        low, high = str(window.low), str(window.high - 1)
        rows = [
            *retry(lambda: client.call(key, "XRANGE", key, low, high, "COUNT", 1)),
            *retry(lambda: client.call(key, "XREVRANGE", key, high, low, "COUNT", 1)),
        ]
        return [ids.parse(row[0].decode())[0] for row in rows]

    def archived(self) -> set[str]:
        """Return all streams of the archive; raise ConfigurationError if one was named and there is none."""
        return set() if self.archive is None else set(load_state(self.archive).ranges)

    @property
    def link(self) -> Link:
        """The way to Redis."""
        return Link.from_options(Options(self.options))


def archive_coverage(root: str | Path, streams: Sequence[str], states: Mapping[str, StreamState]) -> ArchiveCoverage:
    """Return what an archive has of streams, from its table alone."""
    archived = load_state(root)
    names = [name for name in streams if name in archived.ranges]
    if not names:
        return ArchiveCoverage(str(root), (), None, 0, None, is_known=False)
    losses = [each.lost for name in names for each in archived.ranges[name]]
    waiting = [_waiting(archived, name, states.get(name)) for name in names]
    upto = archived.ranges[names[0]][-1].upto if len(names) == 1 else None
    return ArchiveCoverage(
        root=str(root),
        days=_days([entry for name in names for entry in archived.files_of(name)]),
        upto=upto,
        lost=None if None in losses else sum(lost or 0 for lost in losses),
        waiting=None if None in waiting else sum(count or 0 for count in waiting),
    )


def _days(files: list[FileEntry]) -> tuple[Day, ...]:
    by_date: dict[str, list[FileEntry]] = defaultdict(list)
    for entry in files:
        by_date[entry.day].append(entry)
    days = [
        Day(date, sum(e.rows for e in entries), len(entries), sum(e.bytes for e in entries))
        for date, entries in sorted(by_date.items())
    ]
    return tuple(days[-_MOST_DAYS:])


def _waiting(archived: State, name: str, state: StreamState | None) -> int | None:
    """Return how many entries come after the archived ones."""
    end = archived.end(name)
    if state is None or end is None:
        return 0
    if ids.parse(state.last_id) <= ids.parse(end.id):
        return 0
    if end.rank is None or state.added is None:
        return None
    return min(state.length, state.added - end.rank)


def trimmed(streams: Sequence[str], states: Mapping[str, StreamState], window: Window) -> tuple[str, ...]:
    """Return a sentence for each stream that has lost entries of the window in Redis."""
    return tuple(_sentence(name, state) for name, state in states.items() if name in streams and _is_cut(state, window))


def _sentence(name: str, state: StreamState) -> str:
    gone = f"{state.removed:,} entries were trimmed or deleted"
    if state.first_id is None:
        return f"Stream {name} is now empty: {gone}, which this report cannot count."
    return (
        f"Stream {name} now starts at {moment(ids.parse(state.first_id)[0])}: {gone} before that, and this "
        "report cannot count those in its period. An archive would have them."
    )


def _is_cut(state: StreamState, window: Window) -> bool:
    if not state.removed:
        return False
    return state.first_id is None or ids.parse(state.first_id)[0] > window.low
