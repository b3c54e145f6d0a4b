"""The campaign's own judgement: what it calls lost, stranded, and explained."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest
import redis

from campaign import faults, state
from campaign.checker import State, Verdict, judge
from campaign.journal import FAULTS_FILE, HELD_FILE, InFlight, Window
from campaign.machine import ours_s
from campaign.recovery import OTHERS_S, REACTION_S, Bounds, KindOfRecovery
from campaign.report import Report
from campaign.scenarios import SCENARIOS

_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "reliability.md"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    """The folder of a scenario; the process `worker-0` and others write into it."""
    return tmp_path


def wrote(folder: Path, process: str, *lines: str) -> None:
    (folder / f"{process}.journal").write_text("".join(f"{line}\n" for line in lines))


def broke(folder: Path, *windows: Window) -> None:
    (folder / FAULTS_FILE).write_text("".join(json.dumps(asdict(window)) + "\n" for window in windows))


def held(folder: Path, *records: InFlight) -> None:
    (folder / HELD_FILE).write_text("".join(json.dumps(asdict(record)) + "\n" for record in records))


def verdict_of(folder: Path, bounds: Bounds | None = None, **state: object) -> Verdict:
    return judge(folder, State(**state), [], bounds)  # type: ignore[arg-type]


def test_what_is_confirmed_must_be_handled_dead_or_queued(folder: Path) -> None:
    wrote(folder, "producer-0", *(f"confirmed {n} {n}.0" for n in range(1, 6)), "unknown 6 6.0")
    wrote(folder, "worker-0", "begin 1 10.0", "end 1 10.1", "begin 2 10.0")
    found = verdict_of(folder, dead=Counter(["3"]), queued={"4"})
    assert (found.lost, found.stranded, found.messages, found.unknown) == (["2", "5"], ["4"], 5, 1)
    assert found.innocent == ["3, after 0 runs"]
    assert not found.is_clean


def test_an_innocent_message_is_told_with_what_ended_each_of_its_runs(folder: Path) -> None:
    wrote(folder, "producer-0", "confirmed 1 1.0", "confirmed 2 1.0")
    wrote(folder, "worker-0", "begin 1 10.0", "fail 1 10.1")
    wrote(folder, "worker-1", "begin 1 20.0")
    wrote(folder, "worker-2", "begin 2 30.0", "dying 2 30.5")
    broke(
        folder,
        Window("nap", "worker-1", 20.1, 20.2, "none"),
        Window("kill", "worker-1", 20.5, 20.5, "all"),
        Window("freeze", "worker-3", 40.0, 49.0, "all"),
    )
    held(
        folder, InFlight("worker-1", 20.6, ["1"]), InFlight("worker-2", 30.6, ["1"]), InFlight("worker-3", 40.1, ["1"])
    )
    [told] = verdict_of(folder, dead=Counter(["1", "2"])).innocent
    assert told == (
        "1, after 2 runs; worker-0 from 10.000: failed; worker-1 from 20.000: kill at 20.500; "
        "worker-2, not begun: poison at 30.500; worker-3, not begun: freeze at 40.000"
    )


def test_what_a_flush_took_is_counted_apart(folder: Path) -> None:
    wrote(folder, "producer-0", "confirmed 1 1.0", "confirmed 2 9.0")
    broke(folder, Window("flushall", "*", 5.0, 5.1, "all"))
    found = verdict_of(folder)
    assert (found.flushed, found.lost) == (1, ["2"])


def test_the_line_that_a_killed_process_did_not_finish_counts_for_nothing(folder: Path) -> None:
    (folder / "worker-0.journal").write_text("begin 1 10.0\nend 1 1")
    assert verdict_of(folder).handled == 0


@pytest.mark.parametrize(
    ("window", "is_explained"),
    [
        (Window("kill", "worker-0", 10.5, 10.5, "all"), True),  # before it was acknowledged
        (Window("kill", "worker-0", 15.0, 15.0, "all"), False),  # long after
        (Window("kill", "worker-7", 10.5, 10.5, "all"), False),  # somebody else
        (Window("freeze", "worker-1", 5.0, 19.9, "all"), True),  # the second run began before it could find out
        (Window("freeze", "worker-1", 5.0, 12.0, "all"), False),
        (Window("nap", "worker-0", 9.0, 11.0, "none"), False),
        (Window("term", "worker-0", 10.5, 10.5, "unended"), False),  # it had ended
        (Window("reset", "*", 10.1, 10.1, "none"), False),
    ],
)
def test_a_second_run_wants_an_explanation(folder: Path, window: Window, is_explained: bool) -> None:
    wrote(folder, "worker-0", "begin 1 10.0", "end 1 10.2")
    wrote(folder, "worker-1", "begin 1 20.0", "end 1 20.2")
    broke(folder, window)
    found = verdict_of(folder)
    assert (found.explained, len(found.unexplained)) == ((1, 0) if is_explained else (0, 1))


def test_a_run_that_failed_or_killed_its_process_explains_the_next(folder: Path) -> None:
    wrote(folder, "worker-0", "begin 1 10.0", "fail 1 10.0", "begin 3 10.0", "begin 2 10.1", "dying 2 10.1")
    wrote(folder, "worker-1", "begin 1 11.0", "end 1 11.0", "begin 3 14.0", "end 3 14.5", "begin 2 20.0", "end 2 20.1")
    found = verdict_of(folder)
    assert (found.unexplained, found.explained, found.faults) == ([], 2, {"poison": 1})
    assert found.recovery_s == pytest.approx(4.4), "what killed the process may wait until it is alone"


def test_the_time_that_a_process_slept_does_not_count_before_it_dies(folder: Path) -> None:
    wrote(folder, "worker-0", "begin 1 10.0", "end 1 10.2")
    wrote(folder, "worker-1", "begin 1 20.0", "end 1 20.2")
    broke(folder, Window("nap", "worker-0", 10.3, 12.9, "none"), Window("kill", "worker-0", 13.0, 13.0, "all"))
    assert (verdict_of(folder).explained, verdict_of(folder).unexplained) == (1, [])


@pytest.mark.parametrize(
    ("window", "recovery_s"),
    [
        (Window("reset", "*", 5.0, 5.0, "none"), 3.5),
        (Window("server_kill", "*", 5.0, 6.5, "none"), 2.0),  # since the server is back
        (Window("failover_kill", "*", 5.0, 20.0, "all", restored=6.75), 1.75),  # since there are master and replica
        (Window("cluster_kill", "*", 5.0, 20.0, "all", restored=6.75), 3.5),
    ],
)
def test_recovery_is_the_time_until_something_published_since_was_handled(
    folder: Path, window: Window, recovery_s: float
) -> None:
    wrote(folder, "producer-0", "confirmed 1 1.0", "confirmed 2 7.0", "confirmed 3 7.5")
    wrote(folder, "worker-0", "begin 1 6.0", "end 1 6.0", "begin 2 8.0", "end 2 9.0", "begin 3 8.0", "end 3 8.5")
    broke(folder, window)
    assert verdict_of(folder).recovery_s == pytest.approx(recovery_s)


_BOUNDS = Bounds(lease_s=3.0, sweep_s=1.5)
_BOUND_S = 4.5 + REACTION_S


def killed_at_10(folder: Path, handled_at: float, *windows: Window, started: float = 0.0) -> KindOfRecovery:
    """Worker 0 dies with message 1 in hand, which it has not begun; worker 1 handles it."""
    wrote(folder, "worker-0", "started worker 0.0")
    wrote(folder, "worker-1", f"started worker {started}", f"begin 1 {handled_at}", f"end 1 {handled_at}")
    broke(folder, Window("kill", "worker-0", 10.0, 10.0, "all"), *windows)
    held(folder, InFlight("worker-0", 10.1, ["1"]))
    return verdict_of(folder, _BOUNDS).recoveries["kill"]


def test_what_a_worker_had_in_hand_must_come_to_another_in_a_lease_and_a_sweep(folder: Path) -> None:
    found = killed_at_10(folder, 10.0 + _BOUND_S - 0.1)
    assert (found.alone_s, found.bound_s, found.verdict) == (pytest.approx(_BOUND_S - 0.1), _BOUND_S, "kept")
    assert verdict_of(folder, _BOUNDS).is_clean
    found = killed_at_10(folder, 10.0 + _BOUND_S + 0.1)
    assert (found.broken, found.verdict) == (1, "BROKEN, 1 times")
    assert not verdict_of(folder, _BOUNDS).is_clean
    assert "kill of worker-0" in verdict_of(folder, _BOUNDS).late[0]


def test_what_is_in_the_hands_of_the_next_worker_that_dies_had_come_to_it(folder: Path) -> None:
    killed_at_10(folder, 20.0, Window("kill", "worker-2", 15.0, 15.0, "all"))
    held(folder, InFlight("worker-0", 10.1, ["1"]), InFlight("worker-2", 15.1, ["1"]))
    found = verdict_of(folder, _BOUNDS)
    kill = found.recoveries["kill"]
    assert (kill.measured, kill.alone_s, kill.verdict) == (2, pytest.approx(5.0), "kept")
    assert found.slowest_s == pytest.approx(10.0), "each was in time, and the message has waited for both"


@pytest.mark.parametrize(
    ("window", "extra_s"),
    [
        (Window("reset", "*", 12.0, 12.0, "none"), OTHERS_S),
        (Window("client_pause", "*", 12.0, 13.0, "none"), 1.0 + OTHERS_S),
        (Window("freeze", "worker-1", 12.0, 14.0, "all"), 1.0),  # nobody was there when the lease was over
        (Window("kill", "worker-5", 12.0, 12.0, "all"), 0.0),  # others were
    ],
)
def test_another_fault_allows_for_what_it_costs_itself(folder: Path, window: Window, extra_s: float) -> None:
    assert killed_at_10(folder, 10.0 + _BOUND_S + extra_s - 0.1, window).broken == 0
    assert killed_at_10(folder, 10.0 + _BOUND_S + extra_s + 0.1, window).broken == 1


def test_what_waited_before_a_fault_is_not_its_doing(folder: Path) -> None:
    wrote(folder, "producer-0", *(f"confirmed {n} {n}.0" for n in range(1, 9)))
    wrote(folder, "worker-0", *(f"{what} {n} {n + 4}.0" for n in range(1, 9) for what in ("begin", "end")))
    broke(folder, Window("server_kill", "*", 7.2, 7.4, "none"))
    found = verdict_of(folder).recoveries["server_kill"]
    assert (found.alone_s, found.beside_s, found.verdict) == (0.0, pytest.approx(4.6), "kept")


def test_the_time_until_a_worker_has_started_is_allowed_for(folder: Path) -> None:
    found = killed_at_10(folder, 16.0, started=15.0)
    assert (found.alone_s, found.beside_s, found.verdict) == (0.0, pytest.approx(6.0), "kept")


def test_a_bound_is_not_judged_while_other_programs_have_the_machine(folder: Path) -> None:
    found = killed_at_10(folder, 30.0, Window("busy", "*", 12.0, 13.0, "none"))
    assert (found.broken, len(found.unjudged)) == (0, 1)
    assert "others had the machine" in found.verdict
    assert verdict_of(folder, _BOUNDS).is_clean
    assert verdict_of(folder, _BOUNDS).faults == {"kill": 1}
    assert killed_at_10(folder, 30.0, Window("busy", "*", 31.0, 32.0, "none")).broken == 1


def test_what_the_campaign_starts_is_not_taken_for_other_programs() -> None:
    before, children = ours_s(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", "sum(range(10_000_000))"], check=True)
    used_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - children.ru_utime
    assert ours_s() - before >= used_s - 0.05  # both are counted in hundredths


def test_a_campaign_that_stood_still_itself_is_no_fault_to_recover_from(folder: Path) -> None:
    wrote(folder, "producer-0", "confirmed 1 7.0")
    wrote(folder, "worker-0", "begin 1 8.0", "end 1 8.0")
    broke(folder, Window("stall", "*", 1.0, 2.0, "all"), Window("server_kill", "*", 5.0, 6.5, "none"))
    assert verdict_of(folder).recovery_s == pytest.approx(1.5)


def test_two_results_of_one_task_and_a_missing_one_break_a_promise(folder: Path) -> None:
    wrote(folder, "producer-0", "confirmed 1 1.0", "confirmed 2 1.0")
    wrote(folder, "worker-0", "begin 1 2.0", "end 1 2.0", "begin 2 2.0", "end 2 2.0")
    found = verdict_of(folder, results=Counter({"1": 2}), is_result_due=True)
    assert (found.results_twice, found.results_missing) == (["1"], ["2"])
    found = verdict_of(folder, results=Counter("12"), saved=Counter({"2": 2}), is_result_due=True)
    assert (found.results_twice, found.results_missing) == (["2"], ["1"])


def test_the_last_line_says_it_all() -> None:
    kill = KindOfRecovery(faults=3, measured=2, bound_s=1.5, alone_s=2.04, broken=1)
    verdict = Verdict(messages=1_000, lost=["1"], late=["kill"], recoveries={"kill": kill}, faults={"kill": 3})
    report = Report(7, verdicts={"a": verdict})
    assert report.last_line() == (
        "1 lost / 0 unexplained duplicates / 0 stranded / 0 results twice / 1 bounds broken, worst recovery 2.0 s / "
        "1,000 messages, 3 faults, seed 7"
    )
    assert "| a | kill | 3 | 2 | 2.0 s | 0.0 s | 1.5 s | BROKEN, 1 times |" in report.bounds()
    assert "--seed 7 --only a" in report.failures()


def test_the_page_names_every_scenario_and_every_fault() -> None:
    page = _PAGE.read_text()
    kinds = [name for name in vars(faults) if getattr(getattr(faults, name), "__module__", "") == faults.__name__]
    public = {name for name in kinds if not name.startswith("_")} - {"survives_a_full_disk"}
    assert {name for name in {*SCENARIOS, *public} if f"`{name}`" not in page} == set()


def test_an_owner_has_the_next_message_of_each_of_its_streams_in_hand(raw: redis.Redis) -> None:
    first, second, third = (raw.xadd("svc-session-1", {"data": f'{{"n": {n}}}'}) for n in (1, 2, 3))
    raw.xadd("svc-session-2", {"data": '{"n": 4}'})
    raw.xadd("svc-session-3", {"data": '{"n": 5}'})
    raw.hset("{svc-session-1}:balancer:svc", "position", first)
    for stream, owner in (("svc-session-1", "w1"), ("svc-session-2", "w1"), ("svc-session-3", "w10")):
        raw.set(f"{stream}<MUTEX_KEY_SEP>1-0", f"redis-consumer-{owner}")
    assert state.sessions_held_by(raw, "svc", "w1") == {"2", "4"}
    assert state.sessions_held_by(raw, "svc", "w2") == set()
    raw.hset("{svc-session-1}:balancer:svc", "position", third)
    assert second < third
    assert state.sessions_held_by(raw, "svc", "w1") == {"4"}


def test_a_worker_has_in_hand_what_is_pending_and_does_not_wait_for_a_retry(raw: redis.Redis) -> None:
    raw.xgroup_create("orders", "workers", "0", mkstream=True)
    ids = [raw.xadd("orders", {"data": f'{{"n": {n}}}'}) for n in (1, 2)]
    raw.xreadgroup("workers", "w_host_1f00000000", {"orders": ">"})
    raw.zadd("{orders}:retries:workers", {ids[0]: 1})
    assert state.held_by(raw, "orders", "workers", 0x1F) == {"2"}
