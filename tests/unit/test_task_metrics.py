"""Metrics have a bounded number of labels, whatever somebody writes into a queue."""

from __future__ import annotations

import pytest

pytest.importorskip("prometheus_client")

from penstock.cli.task_metrics import _queue_metrics
from penstock.tasks.listed import LaneGauges, QueueGauges


def test_lanes_beyond_the_first_hundred_share_a_label() -> None:
    lanes = [LaneGauges(f"jobs.tasks.normal:kind=junk-{n}", 0, 0, float(n)) for n in range(300)]
    lanes.append(LaneGauges("jobs.tasks", 1, 0, 7.0))
    found = _queue_metrics([QueueGauges("jobs", "jobs.tasks", 0, 0, 0, 0, lanes=tuple(lanes))])
    [idle] = [family for family in found if family.name == "queue_pending_idle_max_seconds"]
    by_stream = {sample.labels["stream"]: sample.value for sample in idle.samples}
    assert len(by_stream) == 101
    assert (by_stream["jobs.tasks"], by_stream["other"]) == (7.0, 299.0)
