"""The data streams that this consumer owns or has asked for, known to its event loop and to the heartbeat's thread."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from penstock.balancer.messages import Info, LBSInfo


@dataclass(frozen=True, slots=True)
class Ownership:
    """A data stream that this consumer owns, with a token that is greater than that of every owner before it."""

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
    """Ownerships by the name of the data stream. Recorded before the first heartbeat, so that none is overlooked."""

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

    def begin_claim(self, payload: LBSInfo) -> PendingClaim | None:
        """Record that a stream is being asked for; None = it is owned, or another claim of this process is under way.

        To the server two claims of one process look like one that is repeated: it would grant both.
        """
        with self._lock:
            if payload.id_in_lbs in self._by_id or payload.id_in_lbs in self._claims:
                return None
            claim = self._claims[payload.id_in_lbs] = PendingClaim(payload)
            return claim

    def end_claim(self, claim: PendingClaim) -> None:
        """Forget a claim, unless the ownership has taken its place."""
        with self._lock:
            if self._claims.get(claim.payload.id_in_lbs) is claim:
                del self._claims[claim.payload.id_in_lbs]

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
