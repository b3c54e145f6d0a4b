"""The campaign's own judgement: what it calls lost, stranded, and explained."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

from campaign import faults
from campaign.checker import FAULTS_FILE, State, Verdict, Window, judge
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


def verdict_of(folder: Path, **state: object) -> Verdict:
    return judge(folder, State(**state), [])  # type: ignore[arg-type]


def test_what_is_confirmed_must_be_handled_dead_or_queued(folder: Path) -> None:
    wrote(folder, "producer-0", *(f"confirmed {n} {n}.0" for n in range(1, 6)), "unknown 6 6.0")
    wrote(folder, "worker-0", "begin 1 10.0", "end 1 10.1", "begin 2 10.0")
    found = verdict_of(folder, dead=Counter(["3"]), queued={"4"})
    assert (found.lost, found.stranded, found.messages, found.unknown) == (["2", "5"], ["4"], 5, 1)
    assert found.innocent == ["3, after 0 runs"]
    assert not found.is_clean


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
    wrote(folder, "worker-0", "begin 1 10.0", "fail 1 10.0", "begin 2 10.1", "dying 2 10.1")
    wrote(folder, "worker-1", "begin 1 11.0", "end 1 11.0", "begin 2 14.0", "end 2 14.5")
    found = verdict_of(folder)
    assert (found.unexplained, found.explained, found.faults) == ([], 1, {"poison": 1})
    assert found.recovery_s == pytest.approx(4.4)


def test_recovery_is_the_time_until_something_published_since_was_handled(folder: Path) -> None:
    wrote(folder, "producer-0", "confirmed 1 1.0", "confirmed 2 7.0", "confirmed 3 7.5")
    wrote(folder, "worker-0", "begin 1 6.0", "end 1 6.0", "begin 2 8.0", "end 2 9.0", "begin 3 8.0", "end 3 8.5")
    broke(folder, Window("server_kill", "*", 5.0, 6.5, "none"))
    assert verdict_of(folder).recovery_s == pytest.approx(3.5)


def test_a_campaign_that_stood_still_itself_is_no_fault_to_recover_from(folder: Path) -> None:
    wrote(folder, "producer-0", "confirmed 1 7.0")
    wrote(folder, "worker-0", "begin 1 8.0", "end 1 8.0")
    broke(folder, Window("stall", "*", 1.0, 2.0, "all"), Window("server_kill", "*", 5.0, 6.5, "none"))
    assert verdict_of(folder).recovery_s == pytest.approx(3.0)


def test_two_results_of_one_task_and_a_missing_one_break_a_promise(folder: Path) -> None:
    wrote(folder, "producer-0", "confirmed 1 1.0", "confirmed 2 1.0")
    wrote(folder, "worker-0", "begin 1 2.0", "end 1 2.0", "begin 2 2.0", "end 2 2.0")
    found = verdict_of(folder, results=Counter({"1": 2}), is_result_due=True)
    assert (found.results_twice, found.results_missing) == (["1"], ["2"])


def test_the_last_line_says_it_all() -> None:
    report = Report(7, verdicts={"a": Verdict(messages=1_000, lost=["1"], recovery_s=2.04, faults={"kill": 3})})
    assert report.last_line() == (
        "1 lost / 0 unexplained duplicates / 0 stranded / 2.0 s worst recovery over 1,000 messages and 3 faults, seed 7"
    )
    assert "--seed 7 --only a" in report.failures()


def test_the_page_names_every_scenario_and_every_fault() -> None:
    page = _PAGE.read_text()
    kinds = [name for name in vars(faults) if getattr(getattr(faults, name), "__module__", "") == faults.__name__]
    public = {name for name in kinds if not name.startswith("_")} - {"survives_a_full_disk"}
    assert {name for name in {*SCENARIOS, *public} if f"`{name}`" not in page} == set()
