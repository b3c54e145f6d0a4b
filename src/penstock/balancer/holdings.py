"""The data streams that this consumer owns, known to its event loop and to the heartbeat's thread."""

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


class Holdings:
    """Ownerships by the name of the data stream. Recorded before the first heartbeat, so that none is overlooked."""

    def __init__(self) -> None:
        self._by_name: dict[str, Ownership] = {}
        self._by_id: dict[str, Ownership] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._by_name)

    def add(self, ownership: Ownership) -> None:
        """Record a stream that is owned from now on."""
        with self._lock:
            self._by_name[ownership.payload.data_stream_name] = ownership
            self._by_id[ownership.payload.id_in_lbs] = ownership

    def get(self, name: str) -> Ownership | None:
        """Return the ownership of a stream, if it is owned."""
        return self._by_name.get(name)

    def has_entry(self, entry_id: str) -> bool:
        """Tell whether a stream is owned by this entry."""
        return entry_id in self._by_id

    def remove(self, ownership: Ownership) -> bool:
        """Forget an ownership; False = it was forgotten before."""
        with self._lock:
            if self._by_id.get(ownership.payload.id_in_lbs) is not ownership:
                return False
            del self._by_id[ownership.payload.id_in_lbs]
            if self._by_name.get(ownership.payload.data_stream_name) is ownership:
                del self._by_name[ownership.payload.data_stream_name]
            return True

    def all(self) -> list[Ownership]:
        """Return what is owned now, oldest first."""
        with self._lock:
            return list(self._by_id.values())
