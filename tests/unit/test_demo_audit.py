"""The demo's audit finds whatever is wrong: a balance that cannot fail proves nothing."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.cli.demo import command as demo_command
from penstock.cli.demo.audit import Balance, HandlerRun, Kill, Ledger, balance, duplicates, duplicates_of, recovery
from penstock.cli.demo.orders import make_plan
from penstock.cli.demo.run import DemoSummary

IDS = ["1000-0", "1000-1", "1001-0", "1002-0"]


def books(
    stored: list[str] = IDS,
    runs: dict[str, list[HandlerRun]] | None = None,
    dead: list[str] = (),
    queued: list[str] = (),
) -> Ledger:
    done = (
        runs
        if runs is not None
        else {entry: [HandlerRun("w", 2.0)] for entry in stored if entry not in {*dead, *queued}}
    )
    return Ledger(
        set(stored), defaultdict(list, done), dict.fromkeys(dead, "fatal"), records=len(dead), queued=set(queued)
    )


def test_the_balance_holds_when_every_order_is_in_one_place():
    found = balance(IDS, books(dead=[IDS[1]], queued=[IDS[3]]))
    assert found == Balance(published=4, acknowledged=2, dead_lettered=1, queued=1, lost=0, doubled=0)
    assert found.holds


def test_an_order_that_was_acknowledged_unhandled_is_lost():
    found = balance(IDS, books(runs={entry: [HandlerRun("w", 2.0)] for entry in IDS[:3]}))
    assert (found.lost, found.holds) == (1, False)


def test_an_order_that_vanished_from_the_stream_is_lost():
    found = balance(IDS, books(stored=IDS[:3]))
    assert (found.lost, found.holds) == (1, False)


def test_an_order_that_is_handled_and_dead_is_in_two_places():
    found = balance(IDS, books(runs={entry: [HandlerRun("w", 2.0)] for entry in IDS}, dead=[IDS[0]]))
    assert (found.doubled, found.holds) == (1, False)


def test_an_order_that_was_published_twice_is_in_two_places():
    found = balance(IDS[:3], books())
    assert (found.doubled, found.holds) == (1, False)


def test_a_second_dead_letter_for_an_order_breaks_the_balance():
    twice = books(dead=[IDS[0]])
    twice.records = 2
    assert not balance(IDS, twice).holds


def test_an_order_that_was_handled_but_is_still_pending_counts_as_queued_only():
    found = balance(IDS, books(runs={entry: [HandlerRun("w", 2.0)] for entry in IDS}, queued=[IDS[0]]))
    assert (found.acknowledged, found.queued, found.holds) == (3, 1, True)


def test_recovery_lasts_until_another_worker_handled_the_last_order_of_the_dead_one():
    kill = Kill("dead", at_s=10.0, held=frozenset(IDS[:3]))
    runs = {
        IDS[0]: [HandlerRun("dead", 9.5), HandlerRun("heir", 12.5)],
        IDS[1]: [HandlerRun("heir", 13.0)],
        IDS[2]: [HandlerRun("dead", 10.5)],
        IDS[3]: [HandlerRun("heir", 20.0)],
    }
    found = books(runs=runs)
    assert recovery(kill, found) == (2, 3.0)
    assert duplicates(found) == 1
    assert duplicates_of("dead", found) == 1
    assert duplicates_of("heir", found) == 0


def test_the_same_seed_plans_the_same_run():
    assert make_plan(1000, 7) == make_plan(1000, 7)
    assert make_plan(1000, 7) != make_plan(1000, 8)
    assert make_plan(1000, 7).order(3) == make_plan(1000, 7).order(3)


def test_the_bad_orders_are_all_different():
    plan = make_plan(100, 1)
    assert len({*plan.poisoned, plan.fatal, plan.scrambled}) == 5


@pytest.fixture
def summary() -> DemoSummary:
    return DemoSummary(
        server="Redis 7.0.15", seed=4, balance=balance(IDS, books()), dead_letters={}, killed="worker-1", held=1,
        handled_again=1, recovery_s=2.2, lease_s=2.0, runs=4, duplicates=0, duplicates_by_the_kill=0, work_ms=8.0,
        at_a_time=32, seconds=3.0, per_second=1.3, is_finished=True,
    )  # fmt: skip


def test_a_broken_balance_ends_with_code_1_and_says_what_is_missing(monkeypatch, summary):
    broken = replace(summary, balance=balance([*IDS, "9-9"], books()))
    monkeypatch.setattr(demo_command, "play", lambda *_: broken)
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 1
    assert "The balance does NOT hold: published 5, acknowledged 4" in result.stderr
    assert "lost 1" in result.stderr
    assert "--seed 4" in result.stderr


def test_a_broken_balance_is_told_beside_the_json(monkeypatch, summary):
    broken = replace(summary, balance=balance([*IDS, "9-9"], books()))
    monkeypatch.setattr(demo_command, "play", lambda *_: broken)
    result = CliRunner().invoke(app, ["demo", "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["is_balanced"] is False
    assert "does NOT hold" in result.stderr


def test_what_time_did_not_allow_is_told(monkeypatch, summary):
    monkeypatch.setattr(demo_command, "play", lambda *_: replace(summary, is_finished=False))
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 0
    assert "Time ran out" in result.stderr


def test_the_command_that_is_named_next_is_one_that_the_shell_finds(monkeypatch, tmp_path, summary):
    script = tmp_path / "my clone" / "bin" / "penstock"
    monkeypatch.setattr("sys.executable", str(script.with_name("python")))
    monkeypatch.setattr(demo_command, "play", lambda *_: summary)
    monkeypatch.setenv("PATH", "/nowhere")
    assert demo_command.program() == f"'{script.with_name('python')}' -m penstock"
    script.parent.mkdir(parents=True)
    script.touch(mode=0o755)
    assert demo_command.program() == f"'{script}'"
    monkeypatch.chdir(script.parents[1])
    assert "Run `bin/penstock demo --stay` to keep" in CliRunner().invoke(app, ["demo"]).stderr
    monkeypatch.setenv("PATH", str(script.parent))
    assert demo_command.program() == "penstock"
