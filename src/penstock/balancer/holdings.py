"""The data streams that this consumer owns or is claiming, and how many each consumer should own."""

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
    """How often the stream was handed out, including this time."""
    since_s: float = field(default_factory=time.monotonic, compare=False, repr=False)


class PendingClaim:
    """A data stream that this consumer is claiming.

    Its lock is extended from the start, because the server may grant it long before the reply is handled.
    """

    def __init__(self, payload: LBSInfo) -> None:
        self.payload = payload
        self._held_until_s = 0.0

    def hold(self, sent_s: float, ttl_ms: int) -> None:
        """Record that a command sent at this time sets the lock's whole TTL if the claim is granted."""
        self._held_until_s = sent_s + ttl_ms / 1000

    @property
    def is_held(self) -> bool:
        """Whether the lock, if it was granted, cannot have expired yet."""
        return time.monotonic() < self._held_until_s


class Holdings:
    """Ownerships by the name of the data stream, shared by the event loop and the heartbeat's thread.

    Recorded before the first heartbeat, so that it misses none.
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
        """Record a stream that is now owned, in place of its claim."""
        with self._lock:
            self._claims.pop(ownership.payload.id_in_lbs, None)
            self._by_name[ownership.payload.data_stream_name] = ownership
            self._by_id[ownership.payload.id_in_lbs] = ownership

    def get(self, name: str) -> Ownership | None:
        """Return the ownership of a stream, if it is owned."""
        return self._by_name.get(name)

    def has_entry(self, entry_id: str) -> bool:
        """Return whether a stream is owned through this entry."""
        return entry_id in self._by_id

    @contextmanager
    def claiming(self, payload: LBSInfo) -> Iterator[PendingClaim | None]:
        """Record a claim; None = the stream is owned, or another claim of this process is under way.

        To the server, two claims of one process look like one that is repeated: it would grant both.
        """
        entry_id, claim = payload.id_in_lbs, None
        with self._lock:
            if entry_id not in self._by_id and entry_id not in self._claims:
                claim = self._claims[entry_id] = PendingClaim(payload)
        try:
            yield claim
        finally:
            with self._lock:
                if claim is not None and self._claims.get(entry_id) is claim:  # else an ownership has replaced it
                    del self._claims[entry_id]

    def settle(self, ownership: Ownership, *, is_kept: bool) -> bool:
        """Mark an ownership that is about to be finished or handed over; return False if it is already marked.

        Until it is removed or resumed, heartbeats extend its lock only if `is_kept`, and do not report it as lost: they
        may be answered before the command that releases it.
        """
        with self._lock:
            entry_id = ownership.payload.id_in_lbs
            if entry_id in self._settling or self._by_id.get(entry_id) is not ownership:
                return False
            self._settling[entry_id] = is_kept
            return True

    def resume(self, ownership: Ownership) -> None:
        """Remove the mark, because it could not be finished or handed over."""
        with self._lock:
            self._settling.pop(ownership.payload.id_in_lbs, None)

    def remove(self, ownership: Ownership) -> bool:
        """Remove an ownership; return False if it was already removed."""
        with self._lock:
            return self._remove(ownership)

    def lose(self, ownership: Ownership) -> bool:
        """Remove an ownership that another consumer has; return False if it was about to end anyway."""
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
        """Return the current ownerships, oldest first."""
        with self._lock:
            return list(self._by_id.values())


# --- fair shares, computed from what consumers register -----------------------------------------------


@dataclass(frozen=True, slots=True)
class Peer:
    """A live consumer: how many streams it owns and can own (0 = any number)."""

    owned: int
    capacity: int = 0

    @property
    def has_room(self) -> bool:
        """Whether it can take another stream."""
        return not self.capacity or self.owned < self.capacity


def fair_share(peers: Mapping[str, Peer], me: str) -> int:
    """Return the most that a consumer should own: an equal share of what consumers with less capacity leave."""
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
    """Return how many streams a consumer should hand over: those beyond its share that another consumer lacks."""
    if me not in peers or len(peers) < 2:
        return 0
    beyond = peers[me].owned - fair_share(peers, me)
    short = sum(max(0, fair_share(peers, name) - peer.owned) for name, peer in peers.items() if name != me)
    least = min((peer.owned for name, peer in peers.items() if name != me and peer.has_room), default=None)
    if least is None or peers[me].owned - least < 2:
        return 0  # moving one would only change places
    if min(beyond, short) > 0:
        return min(beyond, short)
    # Shares are rounded up, so a consumer may lack one: then one of those with the most streams hands one over.
    return int(me == max(peers, key=lambda name: (peers[name].owned, name)))


def is_ahead(peers: Mapping[str, Peer], me: str, owned: int) -> bool:
    """Return whether another consumer with room owns fewer streams, so that it should get the next one."""
    return any(name != me and peer.has_room and peer.owned < owned for name, peer in peers.items())
