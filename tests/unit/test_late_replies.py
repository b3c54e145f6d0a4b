"""A reply that hands out leases is late before it is too late for their first renewal."""

from __future__ import annotations

import pytest

from penstock import ConsumerConfig
from penstock.redis.blocking_read import late_after_s, longest_wait_s
from penstock.tasks import RedisTaskQueue

LEASES_MS = [100, 1_000, 10_000, 60_000, 600_000]
SHARE = 0.1  # of a lease, which remains for the renewal itself


@pytest.mark.parametrize("lease_ms", LEASES_MS)
@pytest.mark.parametrize("part", [3, 4, 10, 1_000])
def test_a_lease_that_a_reply_hands_out_can_be_renewed_before_it_expires(lease_ms: int, part: int) -> None:
    config = ConsumerConfig(group="g", min_idle_claim_ms=lease_ms, heartbeat_interval_ms=max(1, lease_ms // part))
    lease_s, interval_s = config.lease_ms / 1000, config.effective_heartbeat_ms / 1000
    late_s = late_after_s(lease_s, interval_s)
    assert late_s + interval_s <= (1 - SHARE) * lease_s
    assert longest_wait_s(late_s) <= 0.85 * late_s


@pytest.mark.parametrize("lease_ms", LEASES_MS)
def test_with_the_usual_interval_a_read_waits_half_a_lease_and_half_a_minute_at_most(lease_ms: int) -> None:
    config = ConsumerConfig(group="g", min_idle_claim_ms=lease_ms)
    late_s = late_after_s(config.lease_ms / 1000, config.effective_heartbeat_ms / 1000)
    assert longest_wait_s(late_s) == pytest.approx(min(lease_ms / 2000, 30))


@pytest.mark.parametrize("worker_lease_ms", LEASES_MS)
@pytest.mark.parametrize("queue_lease_ms", LEASES_MS)
def test_a_worker_with_leases_of_its_own_can_renew_them_in_time(queue_lease_ms: int, worker_lease_ms: int) -> None:
    interval_ms = ConsumerConfig(group="g", min_idle_claim_ms=worker_lease_ms).effective_heartbeat_ms
    queue = RedisTaskQueue(idle_ms=queue_lease_ms)
    with queue.renewing(interval_ms):
        late_s = queue._reader.late_s
    assert late_s > 0
    assert late_s + interval_ms / 1000 <= (1 - SHARE) * worker_lease_ms / 1000
