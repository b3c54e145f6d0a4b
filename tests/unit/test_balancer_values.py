"""Messages, settings and waiting notices of the balancer: pure values."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import StreamBalancer, StreamClient
from penstock.balancer.config import BalancerConfig, BalancerOptions, MetricsRecorder, RetryConfig, consumer_id
from penstock.balancer.messages import LBSInputMessage
from penstock.balancer.owned_stream import StreamWatcher
from penstock.errors import ConfigurationError, EncodeError, MalformedEntry, PayloadTooLarge
from penstock.keys import BalancerKeys, hashed_part
from penstock.runtime.aio import Flag


def _utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


TEXT = st.text(max_size=20).filter(_utf8)
NAMES = st.text(min_size=1, max_size=40).filter(lambda n: n.strip() and not set("\0\r\n") & set(n) and _utf8(n))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=10,
)


@given(NAMES, st.none() | st.dictionaries(TEXT, JSON, max_size=3))
def test_what_is_written_is_read_back(name: str, info: dict[str, Any] | None) -> None:
    message = LBSInputMessage(name, info)
    assert LBSInputMessage.decode(message.encode()) == message


def test_keys_are_read_in_any_case_and_unknown_ones_ignored() -> None:
    value = b'{"datastreamname": "a", "INFO": {"x": 1}, "Extra": 2}'
    assert LBSInputMessage.decode(value) == LBSInputMessage("a", {"x": 1})
    assert LBSInputMessage.of_entry([b"more", b"1", b"lbs-input", b'{"DataStreamName":"b"}']).info is None


def test_of_fields_with_one_name_the_last_one_counts() -> None:
    fields = [b"lbs-input", b'{"DataStreamName":"a"}', b"lbs-input", b'{"DataStreamName":"b"}']
    assert LBSInputMessage.of_entry(fields).data_stream_name == "b"


def test_what_is_said_about_a_stream_has_the_limit_of_payloads() -> None:
    with pytest.raises(PayloadTooLarge, match="1048576"):
        LBSInputMessage("a", {"x": "y" * 1_048_576}).encode()
    with pytest.raises(MalformedEntry, match="1048576"):
        LBSInputMessage.decode(b'{"DataStreamName":"a","Info":{"x":"%s"}}' % (b"y" * 1_048_576))


@given(st.binary(max_size=60))
def test_anything_else_is_malformed_and_raises_nothing_else(value: bytes) -> None:
    try:
        LBSInputMessage.decode(value)
    except MalformedEntry:
        return
    assert isinstance(json.loads(value), dict)


@pytest.mark.parametrize("info", [{"x": {1, 2}}, {"x": float("nan")}, ["a"], "text"])
def test_info_that_json_cannot_hold_is_refused(info: Any) -> None:
    with pytest.raises(EncodeError):
        LBSInputMessage("a", info).encode()


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "x" * 513, 7])
def test_names_that_cannot_be_keys_are_refused(name: Any) -> None:
    with pytest.raises(ConfigurationError):
        LBSInputMessage(name)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"heartbeat_interval_ms": 1001}, "at most half of lease_ms"),
        ({"lbs_idle_time": 3.9}, "at least twice lease_ms"),
        ({"lbs_recovery_count": 0}, "lbs_recovery_count"),
        ({"ksp_chan_size": 0}, "ksp_chan_size"),
        ({"ksp_chan_timeout": 59.0}, "at least 60"),
        ({"output_chan_size": -1}, "output_chan_size"),
        ({"capacity": 0}, "capacity"),
        ({"max_deliveries": 0}, "max_deliveries"),
        ({"recovery_interval_ms": 1.5}, "recovery_interval_ms"),
        ({"lease_ms": True}, "lease_ms"),
        ({"retry_config": 5}, "RetryConfig"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        BalancerConfig(**settings)


def test_every_setting_is_a_keyword_of_a_balancer_and_none_stands_for_its_default() -> None:
    assert list(BalancerOptions.__annotations__) == [field.name for field in dataclasses.fields(BalancerConfig)]
    client = StreamClient.from_url("redis://localhost")
    nothing: Any = dict.fromkeys(BalancerOptions.__annotations__)
    assert StreamBalancer(client, "svc", id="a", **nothing).config == BalancerConfig()
    recorder = MetricsRecorder()
    chosen = StreamBalancer(
        client, "svc", id="a", heartbeat_interval_ms=300, capacity=2, metrics_recorder=recorder
    ).config
    assert (chosen.heartbeat_interval_ms, chosen.capacity, chosen.metrics_recorder) == (300, 2, recorder)
    with pytest.raises(TypeError, match="hartbeat_ms"):
        StreamBalancer(client, "svc", id="a", hartbeat_ms=300)  # type: ignore[call-arg]


def test_the_times_are_those_of_the_go_client() -> None:
    config = BalancerConfig()
    assert (config.lease_ms, config.heartbeat_interval_ms, config.refreshed_idle_ms) == (2000, 1000, 3000)
    assert (config.lbs_idle_time, config.lbs_recovery_count, config.ksp_chan_size) == (40.0, 1000, 500)
    assert (config.ksp_chan_timeout, config.output_chan_size) == (600.0, 500)


def test_retries_double_up_to_the_longest_delay_and_end() -> None:
    retry = RetryConfig(max_retries=4, initial_retry_delay=0.1, max_retry_delay=0.5)
    assert [retry.delay_s(failures) for failures in range(1, 6)] == [0.1, 0.2, 0.4, 0.5, None]
    assert RetryConfig(max_retries=-1).delay_s(10_000) == 30.0
    with pytest.raises(ConfigurationError, match="max_retries"):
        RetryConfig(max_retries=-2)
    with pytest.raises(ConfigurationError, match="max_retry_delay"):
        RetryConfig(initial_retry_delay=2.0, max_retry_delay=1.0)


def test_ids_come_from_the_argument_or_the_environment() -> None:
    assert consumer_id(None, {"POD_IP": "10.0.0.1"}) == "redis-consumer-10.0.0.1"
    assert consumer_id(None, {"POD_NAME": "pod", "POD_IP": "10.0.0.1"}) == "redis-consumer-pod"
    assert consumer_id("redis-consumer-x", {}) == "redis-consumer-x"
    with pytest.raises(ConfigurationError, match="pod name or pod IP is missing"):
        consumer_id(None, {})


@pytest.mark.parametrize("service", ["billing", "{billing}", "a{b}c"])
def test_all_keys_of_a_service_share_a_slot(service: str) -> None:
    keys = BalancerKeys.of(service)
    others = [keys.owners, keys.peers, keys.token, keys.shards, keys.dead_letters, keys.request("1")]
    assert {hashed_part(key) for key in others} == {hashed_part(keys.stream)}
    assert hashed_part(keys.position("orders")) == "orders"


def test_braces_that_are_no_tag_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="braces"):
        BalancerKeys.of("a{b")


async def test_a_stream_whose_handler_was_cancelled_is_watched_no_longer() -> None:
    watcher = StreamWatcher(cast("StreamClient", SimpleNamespace(is_cluster=False)))
    waiting = asyncio.ensure_future(watcher.wait("orders", "0-0", Flag(), 60))
    await asyncio.sleep(0)  # lets the task begin to wait
    assert list(watcher._waiting) == ["orders"]
    waiting.cancel()
    await asyncio.wait([waiting])
    assert not watcher._waiting
