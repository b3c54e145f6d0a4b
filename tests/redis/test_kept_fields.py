"""A script that copies an entry keeps of it what Python would keep."""

from __future__ import annotations

import pytest
import redis

from penstock import dead_letter_record as records
from penstock.redis.scripts import part

pytestmark = pytest.mark.every_server
SOURCE = part("shared/kept_fields")
LARGE = b"x" * (records.MAX_BYTES - 100)


def wide(count: int) -> list[bytes]:
    return [part for n in range(count) for part in (b"f%d" % n, b"v")]


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [b"data", b"x", b"data", b"y"],
        wide(2_000),
        [*wide(2_001), b"kind", b"render", b"data", b"x"],
        [*wide(10_000), *(part for name in records.WELL_KNOWN for part in (name, b"x"))],
        [*([b"a", b"1"] * 5_000), b"a", b"2", b"data", b"1", b"data", b"2"],
        [b"\xff", b"\x00", b"", b"", *wide(3_000)],
        [b"big", LARGE, b"small", b"y" * 50, b"middle", b"z" * 90, b"headers", b"{}", b"data", LARGE],
    ],
    ids=["none", "twice", "just fits", "one too many", "very many", "one name", "odd names", "large"],
)
def test_the_script_and_python_keep_the_same(raw: redis.Redis, fields: list[bytes]) -> None:
    kept, cut = raw.eval(f"{SOURCE}\nlocal kept, cut = kept_fields(ARGV)\nreturn {{kept, cut or ''}}", 0, *fields)
    expected, left_out = records.kept_fields(fields)
    assert (kept, cut.decode()) == ([*expected], left_out)
    assert len(kept) < 4_100  # which leaves room for what a script adds


def test_a_record_of_a_script_has_the_fields_that_python_reads(raw: redis.Redis) -> None:
    source = f"""
    local stream, group, now_ms = 'orders', 'workers', 1700000000000
    {part("shared/dead_letter_record")}
    return dead_letter_record({{'data', 'x'}}, {{'1-1', 'me', 5, 2}}, 'missing', 'ValueError', 'no', '3')
    """
    letter = records.parse("9-9", raw.eval(source, 0))
    assert (letter.reason, letter.source_stream, letter.source_id, letter.group) == (
        "missing",
        "orders",
        "1-1",
        "workers",
    )
    assert (letter.consumer, letter.error, letter.error_text, letter.attempts) == ("me", "ValueError", "no", 3)
    assert (letter.deliveries, letter.dead_at_ms, letter.fields["data"]) == (2, 1_700_000_000_000, b"x")
