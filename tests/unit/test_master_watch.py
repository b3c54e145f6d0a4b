"""Who is believed of those that are asked for the masters, and what the nodes of a cluster say."""

from __future__ import annotations

import threading

import pytest

from penstock.errors import ServerError
from penstock.redis.master_watch import MasterWatch
from penstock.redis.settings import ConnectionSettings
from penstock.redis.topology import Answer, ClusterNodes, Masters, directory_of, newest, slot_of

A, B, C = (Masters(((0, 16_383, (name, 1)),)) for name in "abc")


@pytest.mark.parametrize(
    ("answers", "known", "found"),
    [
        ([], None, None),
        ([], Answer(A, 1), Answer(A, 1)),  # all are away: what was known holds
        ([Answer(A, 1)], None, Answer(A, 1)),
        ([Answer(A, 1), Answer(B, 2)], Answer(A, 1), Answer(B, 2)),  # one knows of the failover, the other not yet
        ([Answer(B, 2), Answer(A, 1), Answer(A, 1)], Answer(B, 2), Answer(B, 2)),
        ([Answer(A, 1, is_down=True), Answer(A, 1)], Answer(A, 1, is_down=True), Answer(A, 1)),
        ([Answer(B, 1), Answer(A, 1)], Answer(A, 1), Answer(A, 1)),  # two names of one server, perhaps
        ([Answer(A, 1)], Answer(B, 2), Answer(B, 2)),  # it is cut off from the others, and we are
        ([Answer(C, 0), Answer(C, 0)], Answer(B, 2), Answer(C, 0)),  # set up anew
    ],
)
def test_the_latest_failover_counts(answers: list[Answer], known: Answer | None, found: Answer | None) -> None:
    assert newest(answers, known, polled=3) == found


def test_a_lone_sentinel_is_believed() -> None:
    assert newest([Answer(A, 1)], Answer(B, 2), polled=1) == Answer(A, 1)


SLOTS = [
    [5461, 16383, [b"10.0.0.2", 7001, b"two", []], [b"10.0.0.3", 7002, b"three", []]],
    [0, 5460, [b"", 7000, b"one", []]],  # it does not know its own address
]
NODES = b"""one :7000@17000 myself,master - 0 0 4 connected 0-5460
two 10.0.0.2:7001@17001 master - 0 1 7 connected 5461-16383
three 10.0.0.3:7002@17002 slave two 0 1 7 connected
four 10.0.0.4:7003@17003 master,fail - 0 1 9 disconnected
"""


def test_the_nodes_of_a_cluster_say_who_serves_which_keys() -> None:
    answer = ClusterNodes(ConnectionSettings()).answer(("given", 7000), [SLOTS, NODES])
    assert answer.epoch == 7, "the latest that gave somebody slots"
    assert answer.nodes == (("10.0.0.2", 7001), ("10.0.0.3", 7002), ("given", 7000))
    assert answer.masters.hosts == {("given", 7000), ("10.0.0.2", 7001)}
    for key, host in [("{o}a", ("10.0.0.2", 7001)), ("b", ("given", 7000))]:
        assert answer.masters.of(key) == host, slot_of(key)


def test_a_node_that_may_not_be_asked_for_epochs_names_the_masters() -> None:
    answer = ClusterNodes(ConnectionSettings()).answer(("given", 7000), [SLOTS, ServerError("forbidden")])
    assert (answer.epoch, answer.masters.of("b")) == (0, ("given", 7000))


def test_slots_that_nobody_serves_have_no_master() -> None:
    ranges = ((10, 20, ("a", 1)), (30, 40, ("b", 1)))
    assert Masters(ranges).of("b") is None
    assert Masters(()).of("b") is None


def test_a_watch_that_could_not_start_its_threads_starts_them_at_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[threading.Thread] = []

    def start(thread: threading.Thread) -> None:
        if len(started) == 1:
            raise RuntimeError("can't start new thread")
        started.append(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    settings = ConnectionSettings(kind="sentinel", hosts=(("a", 1), ("b", 1), ("c", 1)), service_name="main")
    directory = directory_of(settings)
    assert directory is not None
    watch = MasterWatch(directory)
    with pytest.raises(RuntimeError), watch.notifying(lambda: None):
        pass
    started += [threading.Thread()]
    assert not watch.ask().done()
    assert len(started) == 2 + directory.max_polled
