"""Which dead letters a command is about: by kind, reason, time and text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import typer

from penstock.cli.queue_options import moment
from penstock.sync.tasks import RedisTaskQueue
from penstock.tasks.listed import DeadTask

Ids = Annotated[list[str] | None, typer.Argument(help="Ids of records or of tasks; all that match if none is given.")]
Kind = Annotated[str | None, typer.Option(help="Only tasks of this kind.")]
Reason = Annotated[str | None, typer.Option(help="Only those with this reason, such as max_deliveries or fatal.")]
Since = Annotated[str | None, typer.Option(help="Only those that died since: ISO 8601, or '2h' for two hours ago.")]
Until = Annotated[str | None, typer.Option(help="Only those that died until: ISO 8601, or '2h' for two hours ago.")]
Text = Annotated[str | None, typer.Option(help="Only those whose error or payload contains the text.")]
Limit = Annotated[int | None, typer.Option(min=1, help="So many at most, oldest first.")]


class Chosen(NamedTuple):
    """What is remembered of a record until it is its turn: the record itself may be large, and there may be many."""

    id: str
    task_id: str
    redrives: int


@dataclass(frozen=True)
class Filter:
    """A choice of dead letters."""

    ids: frozenset[str]
    kind: str | None
    reason: str | None
    since_ms: int
    until_ms: int | None
    text: str | None
    limit: int | None

    @classmethod
    def of(
        cls, ids: Iterable[str] | None, kind: str | None, reason: str | None, since: str | None, until: str | None,
        text: str | None, limit: int | None,
    ) -> Filter:  # fmt: skip
        """Read the options of a command."""
        since_ms = int(moment(since).timestamp() * 1000) if since else 0
        until_ms = int(moment(until).timestamp() * 1000) if until else None
        return cls(frozenset(ids or ()), kind, reason, since_ms, until_ms, text, limit)

    @property
    def is_everything(self) -> bool:
        """Whether nothing narrows the choice."""
        return self == Filter(frozenset(), None, None, 0, None, None, None)

    def matches(self, letter: DeadTask) -> bool:
        """Tell whether a record is meant."""
        return (
            (not self.ids or letter.id in self.ids or letter.task_id in self.ids)
            and self.kind in {None, letter.kind}
            and self.reason in {None, letter.reason}
            and (self.until_ms is None or letter.dead_at_ms <= self.until_ms)
            and (self.text is None or self._contains(letter, self.text))
        )

    @staticmethod
    def _contains(letter: DeadTask, text: str) -> bool:
        return text in letter.error or text in letter.error_text or text.encode() in letter.data

    def missing(self, found: Iterable[Chosen]) -> list[str]:
        """Return the ids that were asked for and are of none of these records."""
        known = {each for letter in found for each in (letter.id, letter.task_id)}
        return sorted(self.ids - known) if self.limit is None else []

    def names(self, queue: RedisTaskQueue) -> list[Chosen]:
        """Return which records are meant, oldest first."""
        return [Chosen(letter.id, letter.task_id, letter.redrives) for letter in self.choose(queue)]

    def choose(self, queue: RedisTaskQueue) -> Iterator[DeadTask]:
        """Yield the records that are meant, oldest first."""
        for count, letter in enumerate(queue.dead.iterate(self.matches, self.since_ms)):
            if self.limit is not None and count >= self.limit:
                return
            yield letter
