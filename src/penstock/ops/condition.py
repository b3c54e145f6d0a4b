"""The condition of a stream in two words, for lists that show the most urgent streams first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.ops.model import GroupInfo, GroupKind, GroupLag, StreamInfo
from penstock.ops.model.groups import dead_after_ms
from penstock.units import count, duration, rate

_STALLED_S = 60.0


@dataclass(frozen=True, slots=True)
class StreamCondition:
    """Two words, their tone (bad, warn, good, or '' for an idle stream), and the reason."""

    text: str
    tone: str = ""
    why: str = ""

    @property
    def is_bad(self) -> bool:
        """Whether an operator must act."""
        return self.tone == "bad"


def condition_of(stream: StreamInfo, lags: Iterable[GroupLag]) -> StreamCondition:
    """Return the condition of a stream; `lags` are those of its groups, with rates if a Sampler took two samples."""
    readers = [group for group in stream.groups if group.kind is GroupKind.CONSUMERS]
    by_group = {lag.group: lag for lag in lags}
    for check in (_without_consumers, _abandoned, _stalled, _falls_behind):
        for group in readers:
            found = check(group, by_group.get(group.name))
            if found is not None:
                return found
    if stream.dead_letters:
        return StreamCondition("dead letters", "warn")
    if any(group.lag.count or group.pending for group in readers):
        return StreamCondition("working", "good")
    return StreamCondition("idle")


def _without_consumers(group: GroupInfo, _: GroupLag | None) -> StreamCondition | None:
    if group.consumers or not group.lag.count:
        return None
    return StreamCondition("no consumers", "bad", f"group {group.name} has {count(group.lag.count)} unread messages")


def _abandoned(group: GroupInfo, _: GroupLag | None) -> StreamCondition | None:
    # Consumers renew the messages that they hold, and take over those of dead consumers.
    if not group.pending or group.oldest_pending_idle_ms <= dead_after_ms(group.name):
        return None
    silent = duration(group.oldest_pending_idle_ms / 1000)
    return StreamCondition(
        "stuck", "bad", f"in group {group.name} no consumer has worked on {group.oldest_pending_id} for {silent}"
    )


def _stalled(group: GroupInfo, lag: GroupLag | None) -> StreamCondition | None:
    # A healthy consumer that is busy with pending messages may read nothing for a while.
    if lag is None or not lag.count or group.pending or lag.out_per_s != 0 or lag.age_s <= _STALLED_S:
        return None
    return StreamCondition(
        "stuck",
        "bad",
        f"group {group.name} reads nothing: {count(lag.count)} wait, the oldest for {duration(lag.age_s)}",
    )


def _falls_behind(group: GroupInfo, lag: GroupLag | None) -> StreamCondition | None:
    if lag is None or not lag.count or lag.in_per_s is None or lag.in_per_s <= 1.1 * (lag.out_per_s or 0.0):
        return None
    why = f"for group {group.name} {rate(lag.in_per_s)} come in, but only {rate(lag.out_per_s)} go out"
    return StreamCondition("falling behind", "warn", why)
