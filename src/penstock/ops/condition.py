"""How a stream does, in two words: what somebody who looks at many streams should see first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.ops.model import GroupInfo, GroupKind, GroupLag, StreamInfo
from penstock.ops.model.groups import dead_after_ms
from penstock.units import count, duration, rate

_STANDS_STILL_S = 60.0


@dataclass(frozen=True, slots=True)
class StreamCondition:
    """Two words, how bad that is (bad, warn, good, or '' where nothing happens), and why."""

    text: str
    tone: str = ""
    why: str = ""

    @property
    def is_bad(self) -> bool:
        """Whether somebody has to do something."""
        return self.tone == "bad"


def condition_of(stream: StreamInfo, lags: Iterable[GroupLag]) -> StreamCondition:
    """Return how a stream does; `lags` are those of its groups, with rates where a Sampler has taken two samples."""
    readers = [group for group in stream.groups if group.kind is GroupKind.CONSUMERS]
    by_group = {lag.group: lag for lag in lags}
    for check in (_unread_by_anybody, _left_alone, _stands_still, _falls_behind):
        for group in readers:
            found = check(group, by_group.get(group.name))
            if found is not None:
                return found
    if stream.dead_letters:
        return StreamCondition("dead letters", "warn")
    if any(group.lag.count or group.pending for group in readers):
        return StreamCondition("working", "good")
    return StreamCondition("idle")


def _unread_by_anybody(group: GroupInfo, _: GroupLag | None) -> StreamCondition | None:
    if group.consumers or not group.lag.count:
        return None
    return StreamCondition("no consumers", "bad", f"group {group.name} has {count(group.lag.count)} unread messages")


def _left_alone(group: GroupInfo, _: GroupLag | None) -> StreamCondition | None:
    # Consumers renew what they hold, and the living ones take over what a dead one held.
    if not group.pending or group.oldest_pending_idle_ms <= dead_after_ms(group.name):
        return None
    silent = duration(group.oldest_pending_idle_ms / 1000)
    return StreamCondition(
        "stuck", "bad", f"in group {group.name} nobody has worked on {group.oldest_pending_id} for {silent}"
    )


def _stands_still(group: GroupInfo, lag: GroupLag | None) -> StreamCondition | None:
    # With its hands full a consumer reads nothing for a while, and is well.
    if lag is None or not lag.count or group.pending or lag.out_per_s != 0 or lag.age_s <= _STANDS_STILL_S:
        return None
    return StreamCondition(
        "stuck",
        "bad",
        f"group {group.name} reads nothing: {count(lag.count)} wait, the oldest for {duration(lag.age_s)}",
    )


def _falls_behind(group: GroupInfo, lag: GroupLag | None) -> StreamCondition | None:
    if lag is None or not lag.count or lag.in_per_s is None or lag.in_per_s <= 1.1 * (lag.out_per_s or 0.0):
        return None
    why = f"for group {group.name} {rate(lag.in_per_s)} come in, and {rate(lag.out_per_s)} go out"
    return StreamCondition("falling behind", "warn", why)
