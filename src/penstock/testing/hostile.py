"""Hostile stream entries: what anyone who may XADD can write, from a seed.

Pure: nothing here talks to a server. An entry is a flat list of names and values, as XADD takes them, and the id to add
it under. What becomes of one depends on who reads it; no entry may stop its neighbours.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

NUMBERS = ("expires_at", "redrives", "attempts", "dlq_attempts", "dlq_deliveries", "dlq_time")
"""Fields that Penstock reads as numbers."""
TEXTS = ("key", "message_id", "content_type", "kind", "task_id", "dedup_key", "origin", "dlq_error_text")
"""Fields that Penstock reads as texts, or shows."""
_DAY_MS = 86_400_000
_MARKUP = b"[bold red]x[/] [link=http://x]y[/link] [/nothing] :boom:"
_ESCAPES = b"\x1b[2J\x1b[31m\x1b]0;title\x07\x1b]52;c;ZWNobw==\x07\x9b1m"


@dataclass(frozen=True)
class HostileEntry:
    """One entry: its kind, its fields as XADD takes them, and the id to add it under."""

    kind: str
    fields: list[bytes]
    id: str = "*"

    @property
    def words(self) -> list[bytes | str]:
        """What follows the key in an XADD."""
        return [self.id, *self.fields]


@dataclass
class _EntryWriter:
    """What a maker of entries writes with."""

    rng: random.Random
    payloads: Iterator[bytes]
    others: Mapping[str, bytes]
    now_ms: int
    _ids: int = field(default=0)

    def payload(self) -> bytes:
        """Return the data of an entry that would be a good one."""
        return next(self.payloads)

    def good(self, *more: bytes) -> list[bytes]:
        """Return the fields of an entry whose payload is whole, and more."""
        return [b"data", self.payload(), *more]

    def later_id(self, sequence: int) -> str:
        """Return an id a day ahead, after every one that was returned before."""
        self._ids += 1
        return f"{self.now_ms + _DAY_MS + self._ids}-{sequence}"

    def name(self, prefix: str) -> str:
        """Return a name that was not returned before, most likely."""
        return f"{prefix}-{self.rng.randrange(10**12)}"

    def bytes(self, most: int) -> bytes:
        """Return some random bytes."""
        return self.rng.randbytes(self.rng.randrange(most))


Maker = Callable[[_EntryWriter], "list[bytes]"]


def _number(text: str | Callable[[_EntryWriter], str]) -> Maker:
    def make(writer: _EntryWriter) -> list[bytes]:
        value = text if isinstance(text, str) else text(writer)
        return writer.good(writer.rng.choice(NUMBERS).encode(), value.encode())

    return make


def _data(value: bytes | Callable[[_EntryWriter], bytes]) -> Maker:
    return lambda writer: [b"data", value if isinstance(value, bytes) else value(writer)]


def _headers(value: bytes | Callable[[_EntryWriter], bytes]) -> Maker:
    return lambda writer: writer.good(b"headers", value if isinstance(value, bytes) else value(writer))


def _named(*names: bytes) -> Maker:
    return lambda writer: writer.good(*(word for name in names for word in (name, writer.bytes(20))))


def _text(value: bytes) -> Maker:
    return lambda writer: writer.good(writer.rng.choice(TEXTS).encode(), value)


def _of_other(name: str) -> Maker:
    """Take the name of a good message; the payload is junk."""
    return lambda writer: [b"data", writer.bytes(40), name.encode(), writer.others.get(name, b"0")]


def _whole_task(writer: _EntryWriter) -> list[bytes]:
    """Write what enqueue() writes, with the id of a good task and another payload."""
    task = writer.others.get("whole_task") or writer.payload()
    return [b"data", task, b"task_id", writer.others.get("task_id", b"0"), b"kind", b"job"]


def _filler(low: int, high: int, payload: bytes = b"") -> Maker:
    def make(writer: _EntryWriter) -> list[bytes]:
        more = [word for i in range(writer.rng.randrange(low, high)) for word in (b"f%d" % i, b"v")]
        return [b"data", payload or writer.payload(), *more]

    return make


def _sized(low: int, high: int) -> Callable[[_EntryWriter], bytes]:
    def make(writer: _EntryWriter) -> bytes:
        return json.dumps({"pad": "x" * writer.rng.randrange(low, high)}).encode()

    return make


def _task(**fields: object) -> Maker:
    """Write a whole task, of which no worker of the queue can do anything."""
    return lambda writer: [b"data", json.dumps({"id": writer.name("task"), **fields}).encode()]


def _announced(*names: str) -> Maker:
    """Name a data stream to a balanced service."""
    return lambda writer: [b"data", json.dumps({"DataStreamName": writer.rng.choice(names)}).encode()]


def _long_kind(writer: _EntryWriter) -> list[bytes]:
    return [b"data", b"{", b"kind", writer.name("kind").encode() + b"k" * 1_000_000]


def _nested(depth: int, opening: bytes, closing: bytes) -> bytes:
    return opening * depth + closing * depth


_MAKERS: dict[str, Maker] = {
    "fields.foreign": lambda writer: [word for i in range(writer.rng.randrange(1, 6)) for word in (b"x%d" % i, b"1")],
    "fields.hundreds": _filler(100, 900),
    "fields.thousands": _filler(4_000, 6_000),
    "fields.thousands_and_junk": _filler(4_000, 6_000, payload=b"\xc1{"),
    "fields.duplicated": lambda writer: [*writer.good(), b"data", b"{", b"message_id", b"a", b"message_id", b"b"],
    "fields.empty_names": _named(b"", b""),
    "fields.empty_values": lambda _: [word for name in ("data", *TEXTS, *NUMBERS) for word in (name.encode(), b"")],
    "names.not_utf8": _named(b"\xff", b"\xc3", b"\xed\xa0\x80"),
    "names.one_after_decoding": _named(b"\xff", "\xff".encode(), b"\xfe", b"\\xff"),
    "names.control": _named(b"\x00", b"\r\n", b"\x7f", "\u202e".encode()),
    "names.markup": _named(_MARKUP),
    "names.escapes": _named(_ESCAPES),
    "numbers.many_digits": _number(lambda writer: "9" * writer.rng.randrange(4_301, 9_000)),
    "numbers.twenty_digits": _number(lambda writer: str(writer.rng.randrange(10**19, 10**20))),
    "numbers.superscript": _number("\u00b2"),
    "numbers.other_digits": _number("\u0664\u0662"),
    "numbers.negative": _number("-1"),
    "numbers.float": _number("1e308"),
    "numbers.nan": _number("NaN"),
    "numbers.underscored": _number("1_000"),
    "encodings.not_utf8": _data(b'{"n": "\xff\xfe"}'),
    "encodings.lone_surrogate": _data(b'{"n": "\\ud800"}'),
    "encodings.bytes_keys": _data(b"\x81\xc4\x02\xff\x00\x01"),
    "encodings.truncated": _data(lambda writer: writer.payload()[: writer.rng.randrange(1, 8)]),
    "encodings.random": _data(lambda writer: writer.bytes(200)),
    "encodings.nested": _data(_nested(50_000, b"[", b"]")),
    "encodings.nested_objects": _data(_nested(20_000, b'{"a":', b"}")),
    "encodings.nested_msgpack": _data(b"\x91" * 50_000 + b"\x00"),
    "encodings.claims_4_billion": _data(b"\xdd\xff\xff\xff\xff\x01"),
    "encodings.huge_number": _data(b'{"n": ' + b"9" * 5_000 + b"}"),
    "encodings.no_object": _data(b"[1, 2, 3]"),
    "encodings.null": _data(b"null"),
    "sizes.nothing": _data(b""),
    "sizes.kilobytes": _data(_sized(1_000, 100_000)),
    "sizes.megabytes": _data(_sized(1_100_000, 2_000_000)),
    "headers.not_json": _headers(b"a=b; c=d"),
    "headers.not_utf8": _headers(b'{"a": "\xff"}'),
    "headers.array": _headers(b'["a", 1]'),
    "headers.number": _headers(b"17"),
    "headers.number_values": _headers(b'{"a": 1, "b": null}'),
    "headers.nested": _headers(_nested(20_000, b'{"a":', b"}")),
    "headers.lone_surrogate": _headers(b'{"a": "\\udfff"}'),
    "texts.not_utf8": _text(b"\xff\xfe\x00"),
    "texts.markup": _text(_MARKUP),
    "texts.escapes": _text(_ESCAPES),
    "texts.formula": _text(b"=cmd|' /C calc'!A0"),
    "texts.long": _text(b"k" * 70_000),
    "others.task_id": _of_other("task_id"),
    "others.message_id": _of_other("message_id"),
    "others.dedup_key": _of_other("dedup_key"),
    "others.payload": _data(lambda writer: writer.others.get("payload", b"")),
    "others.whole_task": _whole_task,
    "keys.kind_of_a_megabyte": _long_kind,
    "keys.task_of_a_long_kind": _task(kind="k" * 500),
    "keys.task_of_a_kind_of_umlauts": _task(kind="\u00e4" * 90),
    "keys.task_of_a_new_kind": lambda writer: _task(kind=writer.name("kind"))(writer),
    "keys.task_with_many_tags": _task(kind="job", requires=[f"{n}" * 64 for n in range(8)]),
    "keys.task_with_a_new_tag": lambda writer: _task(kind="job", requires=[writer.name("tag")])(writer),
    "keys.stream": _announced("s" * 512, "s" * 513, "{", "a<MUTEX_KEY_SEP>b", "jobs.results", "\x00", "\r\n"),
    "ids.huge_sequence": lambda writer: writer.good(),
    "ids.last_sequence": lambda writer: writer.good(),
}
_SEQUENCES: dict[str, Callable[[random.Random], int]] = {
    "ids.huge_sequence": lambda rng: rng.randrange(2**53, 2**64 - 2),
    "ids.last_sequence": lambda _: 2**64 - 1,
}

KINDS = tuple(_MAKERS)
"""Every kind of hostile entry."""


def hostile_entries(
    seed: int,
    count: int,
    *,
    kinds: Iterable[str] = KINDS,
    payloads: Iterable[bytes] = (b'{"n": -1}',),
    others: Mapping[str, bytes] | None = None,
    payload_field: str = "data",
    now_ms: int | None = None,
) -> Iterator[HostileEntry]:
    """Yield entries of these kinds, all kinds before one comes again.

    `payloads` are such as the reader under test accepts, in its `payload_field`; `others` are the `task_id`,
    `message_id`, `dedup_key` and `payload` of good messages, and the `whole_task` that an entry with this `task_id`
    has instead of the good one; they may change between two entries. Ids that are not `*` rise, from a day after
    `now_ms` on: a stream takes them unless it has later ones.
    """
    chosen = list(kinds)
    writer = _EntryWriter(
        random.Random(seed),
        itertools.cycle(payloads),
        others if others is not None else {},
        now_ms or int(time.time() * 1000),
    )
    for number in range(count):
        if number % len(chosen) == 0:
            writer.rng.shuffle(chosen)
        kind = chosen[number % len(chosen)]
        sequence = _SEQUENCES.get(kind)
        entry_id = writer.later_id(sequence(writer.rng)) if sequence else "*"
        fields = _MAKERS[kind](writer)
        if payload_field != "data":
            fields[::2] = [payload_field.encode() if name == b"data" else name for name in fields[::2]]
        yield HostileEntry(kind, fields, entry_id)
