"""Cuts a byte stream of the Redis protocol (RESP 2 and 3) into whole requests or replies."""

from __future__ import annotations

from collections.abc import Iterator

_LINES = b"+-:_#,("
_BULKS = b"$=!"
_ARRAYS = b"*~>"
_MAPS = b"%"
_ATTRIBUTES = b"|"
_KNOWN = _LINES + _BULKS + _ARRAYS + _MAPS + _ATTRIBUTES


class NotResp(Exception):
    """The bytes are no RESP: TLS, say, or an inline command."""


class RespFrames:
    """An incremental cutter: the bytes may arrive in any pieces."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._position = 0  # everything before it is understood
        self._wanted = 1  # elements still to come until the frame is whole

    def feed(self, received: bytes) -> Iterator[bytes]:
        """Yields the frames that the bytes complete.

        Raises:
            NotResp: what follows is none; `rest()` has it.

        """
        self._held += received
        while self._element():
            if self._wanted == 0:
                frame = bytes(self._held[: self._position])
                del self._held[: self._position]
                self._position, self._wanted = 0, 1
                yield frame

    def rest(self) -> bytes:
        """Hands out the bytes of the unfinished frame and forgets them."""
        held, self._held = bytes(self._held), bytearray()
        self._position, self._wanted = 0, 1
        return held

    def _element(self) -> bool:
        """Steps over one header, with the body of a bulk; returns False when more bytes are needed."""
        if self._position >= len(self._held):
            return False
        kind = self._held[self._position]
        if kind not in _KNOWN:
            raise NotResp
        end = self._held.find(b"\r\n", self._position)
        if end < 0:
            return False
        after = end + 2
        count = 0 if kind in _LINES else self._count(self._held[self._position + 1 : end])
        if kind in _BULKS:
            after += count + 2 if count >= 0 else 0
            if after > len(self._held):
                return False
            count = 0
        self._position = after
        self._wanted += _children(kind, max(count, 0)) - (kind not in _ATTRIBUTES)
        return True

    @staticmethod
    def _count(digits: bytearray) -> int:
        try:
            return int(digits)
        except ValueError:
            raise NotResp from None


def _children(kind: int, count: int) -> int:
    return 2 * count if kind in _MAPS + _ATTRIBUTES else count


def words_of(request: bytes) -> list[bytes]:
    """Returns the words of a whole request, an array of bulk strings; no words when it is something else."""
    words: list[bytes] = []
    if not request.startswith(b"*"):
        return words
    position = request.index(b"\r\n") + 2
    while position < len(request):
        if request[position] != ord("$"):
            return []
        end = request.index(b"\r\n", position)
        start = end + 2
        position = start + int(request[position + 1 : end]) + 2
        words.append(request[start : position - 2])
    return words
