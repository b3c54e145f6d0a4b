"""How many streams each consumer should own: pure arithmetic over what the consumers say about themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Peer:
    """A live consumer: what it owns and how much it can own (0 = any number)."""

    owned: int
    capacity: int = 0

    @property
    def has_room(self) -> bool:
        """Whether it can take another stream."""
        return not self.capacity or self.owned < self.capacity


def fair_share(peers: Mapping[str, Peer], me: str) -> int:
    """Return the most that a consumer should own: an equal part, where small ones take what they can."""
    left, waiting = sum(peer.owned for peer in peers.values()), dict(peers)
    while waiting:
        part = -(-left // len(waiting))
        small = {name: peer for name, peer in waiting.items() if peer.capacity and peer.capacity < part}
        if not small or me in small:
            return min(part, waiting[me].capacity or part) if me in waiting else part
        for name, peer in small.items():
            left -= peer.capacity
            del waiting[name]
    return 0


def surplus(peers: Mapping[str, Peer], me: str) -> int:
    """Return how many streams a consumer should hand over: what is beyond its share and somebody is short of."""
    if me not in peers or len(peers) < 2:
        return 0
    beyond = peers[me].owned - fair_share(peers, me)
    short = sum(max(0, fair_share(peers, name) - peer.owned) for name, peer in peers.items() if name != me)
    least = min((peer.owned for name, peer in peers.items() if name != me and peer.has_room), default=None)
    if least is None or peers[me].owned - least < 2:
        return 0  # moving one would only change places
    if min(beyond, short) > 0:
        return min(beyond, short)
    # Shares are rounded up, so that somebody may be left short: one of those who have most helps out.
    return int(me == max(peers, key=lambda name: (peers[name].owned, name)))


def is_ahead(peers: Mapping[str, Peer], me: str, owned: int) -> bool:
    """Tell whether another consumer with room owns fewer streams, so that it should have the next one."""
    return any(name != me and peer.has_room and peer.owned < owned for name, peer in peers.items())
