from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import ConsumerConfig
from penstock.ops.model.groups import dead_after_ms
from penstock.policy import AttemptLimits, Backoff

SEED_FIELDS = {
    "worker_name": None,
    "dlq_stream": None,
    "dlq_group": None,
    "batch_size": 100,
    "block_ms": 5_000,
    "min_idle_claim_ms": 10_000,
    "max_deliveries": 3,
    "max_stream_size": 100_000,
    "max_claim_passes": None,
}


def test_the_known_settings_come_first_with_the_known_defaults() -> None:
    fields = [(field.name, field.default) for field in dataclasses.fields(ConsumerConfig)]
    assert fields[0][0] == "group"
    assert fields[1 : len(SEED_FIELDS) + 1] == list(SEED_FIELDS.items())


def test_settings_are_frozen() -> None:
    config = ConsumerConfig("g")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.batch_size = 5  # type: ignore[misc]
    assert dataclasses.replace(config, batch_size=5).batch_size == 5


@given(st.integers(1, 10_000_000))
def test_what_is_derived_from_the_lease_fits_the_lease(lease_ms: int) -> None:
    config = ConsumerConfig("g", min_idle_claim_ms=lease_ms)
    assert config.lease_ms == lease_ms
    assert 1 <= config.effective_heartbeat_ms <= max(1, lease_ms / 3)
    assert 1 <= config.effective_recovery_ms <= max(1, lease_ms / 2)
    assert 1 <= config.backoff.initial_ms <= min(1_000, lease_ms)


@pytest.mark.parametrize(("lease_ms", "heartbeat_ms"), [(10_000, 2_500), (60_000, 15_000), (3_600_000, 15_000)])
def test_a_consumer_with_a_long_lease_is_heard_of_before_it_counts_as_dead(lease_ms: int, heartbeat_ms: int) -> None:
    assert ConsumerConfig("g", min_idle_claim_ms=lease_ms).effective_heartbeat_ms == heartbeat_ms
    assert 3 * heartbeat_ms < dead_after_ms("g")


def test_what_is_given_is_taken() -> None:
    config = ConsumerConfig(
        "g", heartbeat_interval_ms=7, recovery_interval_ms=8, retry_initial_delay_ms=9, prefetch=500, max_attempts=4
    )
    assert (config.effective_heartbeat_ms, config.effective_recovery_ms, config.max_prefetch) == (7, 8, 500)
    assert config.backoff == Backoff(9, 60_000, 0.1)
    assert config.limits == AttemptLimits(3, 4)


def test_the_longest_delay_is_never_below_the_first() -> None:
    assert ConsumerConfig("g", retry_initial_delay_ms=500, retry_max_delay_ms=100).backoff == Backoff(500, 500, 0.1)


def test_a_given_worker_name_is_kept_and_others_differ() -> None:
    assert ConsumerConfig("g", worker_name="me").resolved_worker_name() == "me"
    config = ConsumerConfig("g")
    assert config.resolved_worker_name() != config.resolved_worker_name()
