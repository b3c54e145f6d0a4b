"""What a report is about: a stream, or the streams of a task queue, and where its parts are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock import ids
from penstock.errors import NotFound, StreamMissing
from penstock.keys import StreamKeys, TaskKeys, check_name
from penstock.ops.model import GroupInfo
from penstock.spark.report.coverage import archived_streams
from penstock.spark.report.window import Window
from penstock.spark.runtime.link import Link
from penstock.spark.runtime.option_values import Options
from penstock.spark.runtime.retry import retry
from penstock.spark.source.catalogue import StreamState, look
from penstock.sync.ops import Inspector
from penstock.tasks.lanes import Lane

_TASKS = ".tasks"
_RETRY_S = 60.0


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
        return {**self.options, "backend": "redis", "queue": self.queue, "failOnDataLoss": "false"}

    def names(self) -> list[str]:
        """Return the streams: those of all lanes of a task queue."""
        if self.queue is None:
            return [self.stream]
        client = self._link().client()
        keys = TaskKeys(self.queue, client.prefix)
        used = retry(lambda: client.call(keys.lanes, "SMEMBERS", keys.lanes), _RETRY_S)
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
        states = retry(lambda: look(self._link().client(), wanted), _RETRY_S)
        found = {name: state for name, state in states.items() if state is not None}
        if not found and not is_archived:
            where = self._link().client().settings.where
            kept = "" if self.archive is None else f", nor in the archive {self.archive}"
            raise StreamMissing(
                f"there is no stream {self.stream!r} in Redis at {where}{kept}: check the name and the database"
            )
        return found

    def groups(self) -> tuple[GroupInfo, ...]:
        """Return the consumer groups as they are now, those of streams that exist."""
        inspector = Inspector(self._link().client())
        found: list[GroupInfo] = []
        for name in self.names():
            try:
                found += retry(lambda name=name: inspector.groups.of(name), _RETRY_S)  # type: ignore[misc]
            except NotFound:
                continue
        return tuple(found)

    def times(self, stream: str, window: Window) -> list[int]:
        """Return the times of the first and the last entry of a stream in the window; none if it has no entry there."""
        client = self._link().client()
        key = client.keys(stream).stream
        low, high = str(window.low), str(window.high - 1)
        rows = [
            *retry(lambda: client.call(key, "XRANGE", key, low, high, "COUNT", 1), _RETRY_S),
            *retry(lambda: client.call(key, "XREVRANGE", key, high, low, "COUNT", 1), _RETRY_S),
        ]
        return [ids.parse(row[0].decode())[0] for row in rows]

    def archived(self) -> set[str]:
        """Return all streams of the archive; raise ConfigurationError if one was named and there is none."""
        return set() if self.archive is None else archived_streams(self.archive)

    def _link(self) -> Link:
        return Link.from_options(Options(self.options))
