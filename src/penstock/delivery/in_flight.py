"""What a consumer holds: every message that it was handed and has not settled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TypeAlias

from penstock import ids
from penstock.model import StreamMessage

Row: TypeAlias = tuple[bytes, list[bytes]]  # id and fields of an entry, as the server sends them


class InFlight:
    """The messages of this process that the server has not settled: the heartbeat renews exactly these.

    A batch that a worker handles is held as a whole: to enter and to strike out every message by its id would cost as
    much as to decode it. Only when somebody asks for one of them the batches are broken up. New messages wait as the
    entries that the server sent and are decoded when a worker takes them: a thousand decoded payloads that lie about
    would cost the garbage collector as much as decoding them.

    Guarantees: a message is seen as held from its arrival until it is settled, by every thread, also while it passes
    from one place to the other. Who must change something else in the same moment takes `lock`.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._fresh: list[Row] = []  # back to front: what is taken from the end of a list moves nothing
        self._batches: dict[int, list[Row] | list[StreamMessage]] = {}  # with the workers, by the identity of the list
        self._single: dict[str, StreamMessage | None] = {}  # None = not decoded
        self._newest = (0, 0)  # no entry with a greater id has ever been held
        self.finished: list[str] = []  # their handlers are done, and nobody has told the server
        self.in_acks: list[list[str]] = []  # told, and the server has not answered

    def __len__(self) -> int:
        with self.lock:
            return len(self._fresh) + len(self._single) + sum(map(len, self._batches.values()))

    @property
    def waiting(self) -> int:
        """How many new messages wait for a worker."""
        return len(self._fresh)

    # --- coming in ----------------------------------------------------------------------------------

    def add_fresh(self, rows: list[Row]) -> int:
        """Take in new entries, in the order of their ids; return how many were not held already."""
        if not rows:
            return 0
        with self.lock:
            first, last = ids.parse(rows[0][0].decode()), ids.parse(rows[-1][0].decode())
            if first <= self._newest:  # the group was set back and hands out once more what we may have
                known = set(self.unsettled_ids())
                rows = [row for row in rows if row[0].decode() not in known]
            self._newest = max(self._newest, last)
            self._fresh[:0] = reversed(rows)
            return len(rows)

    def add_all(self, messages: Iterable[StreamMessage]) -> list[StreamMessage]:
        """Take in messages that were handed out before; return those that were not held already."""
        with self.lock:
            by_id = {message.id: message for message in messages}
            for entry_id in self.find(by_id):
                del by_id[entry_id]
            self._single.update(by_id)
            self._newest = max([self._newest, *map(ids.parse, by_id)])
            return list(by_id.values())

    def set_apart(self, message: StreamMessage) -> None:
        """Hold a message that a worker was to decode as one by itself: it has no payload to be handled."""
        with self.lock:
            self._single[message.id] = message

    # --- to and from the workers --------------------------------------------------------------------

    def take_fresh(self, limit: int, decode: Callable[[list[Row]], list[StreamMessage]]) -> list[StreamMessage]:
        """Return new messages for a worker; they are held as a batch until finish() gets the same list."""
        with self.lock:
            rows = self._fresh[-limit:]
            if not rows:
                return []
            del self._fresh[-limit:]
            rows.reverse()
            self._batches[id(rows)] = rows
        messages = decode(rows)
        with self.lock:
            if self._batches.pop(id(rows), None) is None:  # somebody asked for one of them meanwhile
                messages = [message for message in messages if message.id in self._single]
                self._single.update({message.id: message for message in messages})
            elif messages:
                self._batches[id(messages)] = messages
        return messages

    def finish(self, messages: list[StreamMessage]) -> list[StreamMessage]:
        """Let go of messages; return those that were still held, the same list if that is a whole batch."""
        with self.lock:
            if self._batches.pop(id(messages), None) is not None:
                return messages
            single = self._itemized()
            found = [message for message in messages if single.get(message.id) is message]
            for message in found:
                del single[message.id]
            return found

    def _itemized(self) -> dict[str, StreamMessage | None]:
        for batch in self._batches.values():
            for item in batch:
                if isinstance(item, StreamMessage):
                    self._single[item.id] = item
                else:
                    # One that its worker has set apart meanwhile stays what it is.
                    self._single.setdefault(item[0].decode(), None)
        self._batches.clear()
        return self._single

    # --- one by one ---------------------------------------------------------------------------------

    def ids(self) -> list[str]:
        """Return the ids of all messages whose handlers are not done."""
        with self.lock:
            return [*self._itemized(), *(row[0].decode() for row in self._fresh)]

    def unsettled_ids(self) -> list[str]:
        """Return the ids of all messages that the server has not settled: also of those that are done here."""
        with self.lock:
            return [*self.ids(), *self.finished, *(entry_id for told in self.in_acks for entry_id in told)]

    def find(self, wanted: Iterable[str]) -> dict[str, StreamMessage | None]:
        """Return those of the messages that are held, by id; None = not decoded yet."""
        with self.lock:
            single, unseen, found = self._itemized(), set[bytes](), dict[str, StreamMessage | None]()
            for entry_id in wanted:
                if entry_id in single:
                    found[entry_id] = single[entry_id]
                else:
                    unseen.add(entry_id.encode())
            if unseen:
                found.update((row[0].decode(), None) for row in self._fresh if row[0] in unseen)
            return found

    def get(self, entry_id: str) -> StreamMessage | None:
        """Return the message if it is held and decoded."""
        return self.find([entry_id]).get(entry_id)

    def drop(self, unwanted: Iterable[str]) -> list[str]:
        """Let go of messages by their ids, wherever they are; return the ids of those that were held."""
        with self.lock:
            found = self.find(unwanted)
            waiting = {entry_id.encode() for entry_id in found if self._single.pop(entry_id, None) is None}
            if waiting:
                self._fresh[:] = [row for row in self._fresh if row[0] not in waiting]
            return list(found)

    def call_off(self) -> list[str]:
        """Let no worker take what waits any more; return the ids of these messages, which stay held."""
        with self.lock:
            called_off = [row[0].decode() for row in reversed(self._fresh)]
            self._single.update(dict.fromkeys(called_off))
            self._fresh.clear()
            return called_off
