"""The thread that renews leases: whom it serves together, and that none of them costs another its lease."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from penstock.delivery import leases
from penstock.delivery.leases import Renewable, Renewal, StreamLeases
from penstock.errors import ConsumerNameTaken, GroupLost
from penstock.keys import StreamKeys
from penstock.redis.scripts import Call
from penstock.redis.settings import ConnectionSettings
from tests.helpers.threads import eventually

HERE, ELSEWHERE = (ConnectionSettings(hosts=((host, 1),)) for host in ("here", "elsewhere"))
KEYS = StreamKeys.of("orders")
Answer = Callable[[Call], Any]


class Server:
    """Answers calls as a test says, and remembers what was sent in one round trip."""

    def __init__(self) -> None:
        self.trips: list[tuple[str, list[str]]] = []
        self.answers: dict[str, Answer] = {}  # by the key of the call

    def runner(self, settings: ConnectionSettings, key: str = "") -> Any:
        server, host = self, settings.hosts[0][0]

        class Runner:
            def run_all(self, calls: Sequence[Call], timeout_s: float) -> list[Any]:
                server.trips.append((host, [call.key for call in calls]))
                return [server.answers.get(call.key, lambda _: [[], []])(call) for call in calls]

            def abort(self) -> None: ...

            def close(self) -> None: ...

        return Runner()

    def count(self, key: str) -> int:
        return sum(keys.count(key) for _, keys in self.trips)


class Steps(Renewable):
    """Makes so many calls, one after the other."""

    def __init__(self, name: str, settings: ConnectionSettings = HERE, steps: int = 1, patience_s: float = 1.0) -> None:
        super().__init__(settings, name, 0.001, patience_s, name)
        self.name, self.steps = name, steps

    def renew(self) -> Renewal:
        for _ in range(self.steps):
            yield [Call(self.name, None, ())]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    monkeypatch.setattr(leases, "ScriptRunner", server.runner)
    return server


@pytest.fixture
def keep(threads: Callable[[], int]) -> Iterator[Callable[..., None]]:
    kept: list[Renewable] = []

    def start(*renewables: Renewable) -> None:
        kept.extend(renewables)
        for renewable in renewables:
            renewable.start()

    yield start
    for renewable in kept:
        renewable.stop()
    eventually(lambda: not threads())


@pytest.fixture
def threads() -> Callable[[], int]:
    before = set(threading.enumerate())  # those of queues that earlier tests left open
    return lambda: sum(thread.name == "penstock-leases" for thread in set(threading.enumerate()) - before)


def of_stream(in_flight: dict[StreamKeys, list[str]], on_lost: Any = lambda *_: None) -> StreamLeases:
    return StreamLeases(HERE, KEYS.stream, "g", "me", 0.001, 60_000, lambda: in_flight, on_lost)


# --- together -------------------------------------------------------------------------------------


def test_those_of_one_server_share_a_thread_and_a_round_trip(server: Server, keep: Any, threads: Any) -> None:
    keep(Steps("a"), Steps("b"), Steps("c"))
    eventually(lambda: any(set(keys) == {"a", "b", "c"} for _, keys in server.trips))
    assert threads() == 1


def test_other_servers_and_those_with_less_patience_have_threads_of_their_own(
    server: Server, keep: Any, threads: Any
) -> None:
    keep(Steps("a"), Steps("b", ELSEWHERE), Steps("c", patience_s=0.1))
    eventually(lambda: server.count("a") and server.count("b") and server.count("c"))
    assert threads() == 3


def test_streams_of_a_cluster_have_threads_of_their_own(server: Server, keep: Any, threads: Any) -> None:
    nodes = ConnectionSettings(kind="cluster", hosts=(("here", 1),))
    keep(Steps("a", nodes), Steps("b", nodes))
    eventually(lambda: server.count("a") and server.count("b"))
    assert threads() == 2


def test_the_thread_ends_with_the_last_and_begins_again(server: Server, keep: Any, threads: Any) -> None:
    first, second = Steps("a"), Steps("b")
    keep(first, second)
    first.stop()
    before = server.count("b")
    eventually(lambda: server.count("b") > before)
    second.stop()
    assert threads() == 0
    before = server.count("a")
    keep(first)
    eventually(lambda: server.count("a") > before)


# --- none costs another its lease -----------------------------------------------------------------


def test_a_mute_server_holds_up_no_lease_of_another(server: Server, keep: Any) -> None:
    is_heard = threading.Event()
    server.answers["mute"] = lambda _: is_heard.wait(60)
    keep(Steps("mute"), Steps("a", ELSEWHERE))
    eventually(lambda: server.count("mute"))
    before = server.count("a")
    eventually(lambda: server.count("a") > before + 3)
    assert server.count("mute") == 1
    is_heard.set()


def test_a_renewal_of_many_steps_holds_up_no_other_for_longer_than_one(server: Server, keep: Any) -> None:
    endless = Steps("endless", steps=1_000_000_000)
    keep(endless)
    eventually(lambda: server.count("endless") > 3)
    keep(Steps("a"))
    eventually(lambda: server.count("a") > 3)


def test_it_goes_on_whatever_goes_wrong(server: Server, keep: Any, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: Call) -> None:
        raise KeyError("what nobody expected")

    class Troubled(Steps):
        def renew(self) -> Renewal:
            yield from super().renew()
            raise KeyError("nor this")

    server.answers["a"] = fail
    keep(Steps("a"), Troubled("b", ELSEWHERE))
    eventually(lambda: server.count("a") >= 3 and server.count("b") >= 3)
    assert "what nobody expected" in caplog.text
    assert "nor this" in caplog.text


def test_a_stream_without_its_group_costs_no_other_stream_its_leases(server: Server, keep: Any) -> None:
    lanes = [StreamKeys.of(f"lane-{number}") for number in range(20)]
    server.answers["lane-0"] = lambda _: GroupLost("gone")
    keep(of_stream({lane: ["1-0"] for lane in lanes}))
    eventually(lambda: server.count("lane-19") >= 3)


def test_who_is_told_of_a_loss_may_take_any_time_and_is_told_once(server: Server, keep: Any) -> None:
    told: list[list[str]] = []
    may_go_on = threading.Event()

    def lost(_keys: StreamKeys, ids: list[str]) -> None:
        told.append(ids)
        assert may_go_on.wait(60)
        in_flight[KEYS].remove("1-0")

    in_flight = {KEYS: ["1-0", "2-0"]}
    server.answers["orders"] = lambda _: [[b"1-0"], []]
    keep(of_stream(in_flight, lost))
    eventually(lambda: told)
    before = server.count("orders")
    eventually(lambda: server.count("orders") > before + 3)
    may_go_on.set()
    eventually(lambda: in_flight == {KEYS: ["2-0"]})
    assert told == [["1-0"]]


# --- no more threads ------------------------------------------------------------------------------


@pytest.fixture
def no_more_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        yield patch


def test_leases_that_no_thread_could_renew_are_renewed_once_one_can_be_started(
    server: Server, keep: Any, threads: Any, no_more_threads: pytest.MonkeyPatch
) -> None:
    leases = Steps("a")
    with pytest.raises(RuntimeError, match="new thread"):
        leases.start()
    leases.stop()
    no_more_threads.undo()
    keep(Steps("b"))
    eventually(lambda: server.count("b"))
    keep(leases)
    eventually(lambda: server.count("a"))
    assert threads() == 1


def test_a_loss_that_no_thread_could_report_is_reported_later(
    server: Server, keep: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[list[str]] = []
    refused: list[str] = []
    start = threading.Thread.start

    def start_at_the_third_try(thread: threading.Thread) -> None:
        if thread.name == "penstock-lease-told" and len(refused) < 2:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_at_the_third_try)
    server.answers["orders"] = lambda _: [[b"1-0"], []]
    keep(of_stream({KEYS: ["1-0", "2-0"]}, lambda _, ids: told.append(ids)))
    eventually(lambda: told)
    assert told[0] == ["1-0"]
    assert len(refused) == 2


# --- the end --------------------------------------------------------------------------------------


def test_what_was_settled_meanwhile_is_not_lost(server: Server, keep: Any) -> None:
    told: list[list[str]] = []
    in_flight = {KEYS: ["1-0"]}

    def settle(_: Call) -> list[list[bytes]]:
        in_flight[KEYS] = []
        return [[b"1-0"], []]

    server.answers["orders"] = settle
    keep(of_stream(in_flight, lambda _, ids: told.append(ids)), Steps("a"))
    before = server.count("a")
    eventually(lambda: not in_flight[KEYS] and server.count("a") > before + 3)
    assert told == []
    assert server.count("orders") == 1, "nothing is in flight"


def test_stopping_waits_for_the_command_that_is_under_way_and_nothing_follows(server: Server, keep: Any) -> None:
    answered = threading.Event()
    several = Steps("a", steps=3)

    def answer(_: Call) -> None:
        stopping.start()
        eventually(lambda: not several._thread.has(several))
        answered.set()

    stopping = threading.Thread(target=lambda: (several.stop(), ended.append(answered.is_set())), daemon=True)
    ended: list[bool] = []
    server.answers["a"] = answer
    keep(several, Steps("b"))
    eventually(lambda: ended)
    before = server.count("b")
    eventually(lambda: server.count("b") > before + 3)
    assert ended == [True]
    assert server.count("a") == 1


def test_a_name_that_another_process_has_taken_is_kept_no_longer(server: Server, keep: Any) -> None:
    fenced: list[bool] = []
    server.answers["orders"] = lambda _: ConsumerNameTaken("a newer process")
    named = of_stream({KEYS: []})
    named.keep_name("this one", lambda: fenced.append(True))
    keep(named, Steps("a"))
    eventually(lambda: fenced)
    before = server.count("a")
    eventually(lambda: server.count("a") > before + 3)
    assert (fenced, server.count("orders")) == ([True], 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_renews_what_it_registers_itself_and_nothing_else(server: Server, keep: Any) -> None:
    keep(Steps("parent's"))
    eventually(lambda: server.count("parent's"))
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            server.trips.clear()
            Steps("child's").start()
            eventually(lambda: server.count("child's") > 3)
            os.write(writing, b"both" if server.count("parent's") else b"its own")
        finally:
            os._exit(0)
    os.close(writing)
    assert os.read(reading, 10) == b"its own"
    os.waitpid(child, 0)
    os.close(reading)
