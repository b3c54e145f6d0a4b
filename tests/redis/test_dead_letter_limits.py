"""Dead letters stay within their limits: the oldest go, and never what a group has not acknowledged."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import redis

from penstock import DeadLetterLimits
from penstock.sync import StreamClient
from penstock.sync.redis.dead_letter_retention import DeadLetterRetention
from tests.helpers.commandstats import calls

pytestmark = pytest.mark.every_server

DEAD = "orders_dlq"
LARGE = b"x" * 300_000
Janitor = Callable[..., DeadLetterRetention]


@pytest.fixture
def janitor(redis_url: str) -> Iterator[Janitor]:
    """Makes what applies limits, of which there are no others."""
    with ExitStack() as clients:

        def make(**limits: object) -> DeadLetterRetention:
            given = {"max_count": None, "max_age_s": None, "max_bytes": None, **limits}
            made = StreamClient.from_url(redis_url, dead_letter_limits=DeadLetterLimits(**given))  # type: ignore[arg-type]
            return clients.enter_context(made).dead_letter_retention

        yield make


def add(raw: redis.Redis, numbers: range, data: bytes = b"", age_s: float = 0) -> list[bytes]:
    pipeline = raw.pipeline(transaction=False)
    entry_id = f"{int((time.time() - age_s) * 1000)}-*" if age_s else "*"
    for number in numbers:
        # 6.2 completes no ids: there the sequence is given.
        pipeline.xadd(DEAD, {"n": number, "data": data}, id=entry_id.replace("*", str(number)) if age_s else "*")
    added: list[bytes] = pipeline.execute()
    return added


def kept(raw: redis.Redis) -> list[int]:
    return [int(fields[b"n"]) for _, fields in raw.xrange(DEAD)]


# --- what goes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 300, 5_000])
def test_the_oldest_go_when_there_are_too_many(raw: redis.Redis, janitor: Janitor, size: int) -> None:
    add(raw, range(150), b"x" * size)
    limited = janitor(max_count=7)
    assert limited.apply(DEAD) == 143
    assert kept(raw) == list(range(143, 150))
    assert limited.apply(DEAD) == 0


def test_what_is_too_old_goes(raw: redis.Redis, janitor: Janitor) -> None:
    add(raw, range(1, 150), age_s=120)
    add(raw, range(150, 160), age_s=30)
    limited = janitor(max_age_s=60)
    assert limited.apply(DEAD) == 149
    assert kept(raw) == list(range(150, 160))
    assert limited.apply(DEAD) == 0


def test_nothing_is_too_old_for_an_age_beyond_all_times(raw: redis.Redis, janitor: Janitor) -> None:
    add(raw, range(10))
    assert janitor(max_age_s=1e12).apply(DEAD) == 0


def test_the_oldest_go_when_they_take_too_much_memory(raw: redis.Redis, janitor: Janitor) -> None:
    add(raw, range(40), LARGE)
    limited = janitor(max_bytes=3_500_000)
    removed = limited.apply(DEAD)
    assert kept(raw) == list(range(removed, 40))
    assert raw.memory_usage(DEAD, samples=0) <= 3_500_000 < raw.memory_usage(DEAD, samples=0) + len(LARGE) * 2


def test_large_old_records_do_not_make_small_ones_count_as_large(raw: redis.Redis, janitor: Janitor) -> None:
    add(raw, range(3), LARGE)
    add(raw, range(3, 2_003), b"x" * 5_000)
    assert janitor(max_bytes=16_000_000).apply(DEAD) == 0


def test_the_newest_record_stays_however_large_it_is(raw: redis.Redis, janitor: Janitor) -> None:
    add(raw, range(5), LARGE)
    assert janitor(max_bytes=1).apply(DEAD) == 4
    assert kept(raw) == [4]


def test_no_limit_removes_nothing_and_asks_nothing(raw: redis.Redis, janitor: Janitor) -> None:
    add(raw, range(1, 20), age_s=10_000)
    before = scripts(raw)
    limited = janitor()
    assert limited.apply(DEAD) == limited.after(DEAD) == 0
    assert (len(kept(raw)), scripts(raw) - before) == (19, 0)


def test_a_stream_that_does_not_exist_is_within_all_limits(raw: redis.Redis, janitor: Janitor) -> None:
    assert janitor(max_count=1, max_age_s=1, max_bytes=1).apply(DEAD) == 0
    assert not raw.exists(DEAD)


# --- groups ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [{"max_count": 2}, {"max_age_s": 60}, {"max_bytes": 1_000}], ids=str)
def test_what_a_group_has_not_acknowledged_stays(
    raw: redis.Redis, janitor: Janitor, caplog: pytest.LogCaptureFixture, limits: dict[str, float]
) -> None:
    ids = add(raw, range(1, 11), b"x" * 5_000, age_s=120)
    raw.xgroup_create(DEAD, "inspectors", id="0")
    limited = janitor(**limits)
    assert limited.apply(DEAD) == 0
    assert "because a consumer group has not acknowledged them" in caplog.text
    raw.xreadgroup("inspectors", "eve", {DEAD: ">"}, count=5)
    raw.xack(DEAD, "inspectors", *ids[:3], ids[4])
    assert limited.apply(DEAD) == 3
    assert kept(raw) == [4, 5, 6, 7, 8, 9, 10]


def test_what_groups_need_goes_if_that_is_asked_for(raw: redis.Redis, janitor: Janitor) -> None:
    add(raw, range(10))
    raw.xgroup_create(DEAD, "inspectors", id="0")
    assert janitor(max_count=2, ignore_groups=True).apply(DEAD) == 8


# --- what it costs --------------------------------------------------------------------------------


def scripts(raw: redis.Redis) -> int:
    return calls(raw, "evalsha") + calls(raw, "eval")


def test_large_records_are_removed_a_few_at_a_time(raw: redis.Redis, janitor: Janitor) -> None:
    add(raw, range(60), LARGE)
    limited = janitor(max_count=5)
    limited.apply("another")  # loads the script
    before, read = scripts(raw), calls(raw, "xrange")
    assert limited.apply(DEAD) == 55
    assert 4 <= scripts(raw) - before <= 6
    assert calls(raw, "xrange") == read


def test_limits_that_hold_are_checked_without_reading_a_payload(raw: redis.Redis, janitor: Janitor) -> None:
    add(raw, range(20), LARGE)
    limited = janitor(max_count=100, max_age_s=3_600, max_bytes=1 << 30)
    limited.apply("another")
    before, read = scripts(raw), calls(raw, "xrange")
    assert limited.apply(DEAD) == 0
    assert (scripts(raw) - before, calls(raw, "xrange") - read) == (1, 0)


def test_of_many_new_records_few_make_a_round_trip(
    raw: redis.Redis, janitor: Janitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.sync.redis.dead_letter_retention._REAPPLY_S", 3_600)
    limited = janitor(max_count=5_000)
    limited.apply("another")
    before = scripts(raw)
    for _ in range(1_000):
        limited.after(DEAD)
    assert scripts(raw) - before == 1 + 999 // 50
    limited.after(DEAD, 60)
    assert scripts(raw) - before == 2 + 999 // 50


def test_after_a_second_the_next_record_is_enough(
    raw: redis.Redis, janitor: Janitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.sync.redis.dead_letter_retention._REAPPLY_S", 0)
    limited = janitor(max_count=5_000)
    limited.apply("another")
    before = scripts(raw)
    limited.after(DEAD)
    limited.after(DEAD)
    assert scripts(raw) - before == 2


# --- what is said ---------------------------------------------------------------------------------


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_what_went_is_counted_and_logged_once_in_a_while(
    raw: redis.Redis, janitor: Janitor, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = janitor(max_count=5)
    for numbers in (range(10), range(10, 14), range(14, 17)):
        add(raw, numbers)
        limited.apply(DEAD, "counts")
    assert warnings(caplog) == [
        f"dead letters {DEAD}: removed the 5 oldest records, beyond max_count=5 (dead_letter_limits)"
    ]
    assert limited.removed == {DEAD: 12}
    assert raw.hgetall("counts") == {b"dead_trimmed": b"12"}
    monkeypatch.setattr("penstock.sync.redis.dead_letter_retention._LOG_EVERY_S", 0)
    add(raw, range(17, 18))
    limited.apply(DEAD)
    assert "removed the 8 oldest records" in warnings(caplog)[1]


@pytest.mark.servers("7.0", "valkey")
def test_rights_that_lack_are_said_and_raise_nothing(
    redis_url: str, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    add(raw, range(10))
    raw.execute_command("ACL", "SETUSER", "poor", "on", ">secret", "~*", "+@all", "-xtrim")
    options = {"username": "poor", "password": "secret", "dead_letter_limits": {"max_count": 5}}
    with StreamClient.from_url(redis_url, **options) as client:
        assert client.dead_letter_retention.apply(DEAD) == 0
        assert client.dead_letter_retention.apply(DEAD) == 0
    [told] = warnings(caplog)
    assert told.startswith(f"dead letters {DEAD}: cannot apply dead_letter_limits: ")
    assert len(kept(raw)) == 10
