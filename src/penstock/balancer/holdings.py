"""The data streams that this consumer owns or has asked for, and how many of them each consumer should own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from penstock.balancer.messages import Info, LBSInfo


@dataclass(frozen=True, slots=True)
class Ownership:
    """A data stream that this consumer owns, with a token greater than that of every earlier owner."""

    payload: LBSInfo
    token: int
    additional_info: Info | None = None
    deliveries: int = 1
    """How often the stream was handed out, this time included."""
    since_s: float = field(default_factory=time.monotonic, compare=False, repr=False)


class PendingClaim:
    """A data stream that this consumer has asked for.

    The server may have granted it long before the reply is handled: the lock is extended from the beginning.
    """

    def __init__(self, payload: LBSInfo) -> None:
        self.payload = payload
        self._held_until_s = 0.0

    def hold(self, sent_s: float, ttl_ms: int) -> None:
        """Record that a command sent at this time gives the lock its whole TTL, provided that the claim is granted."""
        self._held_until_s = sent_s + ttl_ms / 1000

    @property
    def is_held(self) -> bool:
        """Whether the lock, if it was granted, cannot have run out yet."""
        return time.monotonic() < self._held_until_s


class Holdings:
    """Ownerships by the name of the data stream, known to the event loop and to the heartbeat's thread.

    Recorded before the first heartbeat, so that none is overlooked.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, Ownership] = {}
        self._by_id: dict[str, Ownership] = {}
        self._settling: dict[str, bool] = {}  # entry id -> whether it is kept until that is done
        self._claims: dict[str, PendingClaim] = {}  # by entry id
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._by_name)

    def add(self, ownership: Ownership) -> None:
        """Record a stream that is owned from now on, in place of the claim that led to it."""
        with self._lock:
            self._claims.pop(ownership.payload.id_in_lbs, None)
            self._by_name[ownership.payload.data_stream_name] = ownership
            self._by_id[ownership.payload.id_in_lbs] = ownership

    def get(self, name: str) -> Ownership | None:
        """Return the ownership of a stream, if it is owned."""
        return self._by_name.get(name)

    def has_entry(self, entry_id: str) -> bool:
        """Tell whether a stream is owned by this entry."""
        return entry_id in self._by_id

    @contextmanager
    def claiming(self, payload: LBSInfo) -> Iterator[PendingClaim | None]:
        """Record that a stream is being asked for; None = it is owned, or another claim of this process is under way.

        To the server two claims of one process look like one that is repeated: it would grant both.
        """
        entry_id, claim = payload.id_in_lbs, None
        with self._lock:
            if entry_id not in self._by_id and entry_id not in self._claims:
                claim = self._claims[entry_id] = PendingClaim(payload)
        try:
            yield claim
        finally:
            with self._lock:
                if claim is not None and self._claims.get(entry_id) is claim:  # else the ownership has taken its place
                    del self._claims[entry_id]

    def settle(self, ownership: Ownership, *, is_kept: bool) -> bool:
        """Mark an ownership that is about to be finished or handed over; False = it is about to be already.

        Until it is removed or resumed, heartbeats extend its lock only if it is kept, and do not count it as lost: they
        may come before the answer of whatever gives it up.
        """
        with self._lock:
            entry_id = ownership.payload.id_in_lbs
            if entry_id in self._settling or self._by_id.get(entry_id) is not ownership:
                return False
            self._settling[entry_id] = is_kept
            return True

    def resume(self, ownership: Ownership) -> None:
        """Take back the mark: it could not be given up."""
        with self._lock:
            self._settling.pop(ownership.payload.id_in_lbs, None)

    def remove(self, ownership: Ownership) -> bool:
        """Forget an ownership; False = it was forgotten before."""
        with self._lock:
            return self._remove(ownership)

    def lose(self, ownership: Ownership) -> bool:
        """Forget an ownership that is another consumer's; False = it is known to end anyway."""
        with self._lock:
            return ownership.payload.id_in_lbs not in self._settling and self._remove(ownership)

    def _remove(self, ownership: Ownership) -> bool:
        entry_id, name = ownership.payload.id_in_lbs, ownership.payload.data_stream_name
        if self._by_id.get(entry_id) is not ownership:
            return False
        del self._by_id[entry_id]
        self._settling.pop(entry_id, None)
        if self._by_name.get(name) is ownership:
            del self._by_name[name]
        return True

    def beating(self) -> tuple[list[Ownership], list[PendingClaim]]:
        """Return the ownerships and the claims whose locks are to be extended."""
        with self._lock:
            settling = self._settling
            owned = [item for entry_id, item in self._by_id.items() if settling.get(entry_id, True)]
            return owned, list(self._claims.values())

    def all(self) -> list[Ownership]:
        """Return what is owned now, oldest first."""
        with self._lock:
            return list(self._by_id.values())


# --- fair shares: pure arithmetic over what the consumers say about themselves -----------------------


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
