"""The command line of the campaign."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

from campaign.checker import Verdict
from campaign.children import ROOT
from campaign.report import Report
from campaign.scenarios import SCENARIOS, Missing, Scenario
from campaign.stage import Stage

RESULTS = ROOT / "campaign" / "results"
_INTERRUPTED = 130
_MESSAGES, _MINUTES = 300_000, 15.0


def main(arguments: list[str] | None = None) -> int:
    """Run the campaign and return the exit code: 1 if a promise was broken."""
    options = _parser().parse_args(arguments)
    if options.list:
        print("\n".join(f"{scenario.name:16} {scenario.about}" for scenario in SCENARIOS.values()))
        return 0
    usual = (options.messages, options.minutes) == (_MESSAGES, _MINUTES)
    size = "" if usual else f"--messages {options.messages} --minutes {options.minutes:g} "
    report = Report(options.seed, size + (f"--durability {options.durability} " if options.durability else ""))
    folder = Path(tempfile.mkdtemp(prefix="penstock-campaign-"))
    print(f"Campaign with seed {options.seed}: {', '.join(options.only)}.", flush=True)
    try:
        _run(options, report, folder)
    except KeyboardInterrupt:
        report.is_interrupted = True
        print("\nInterrupted: everything that was started has ended.")
    finally:
        if options.keep:
            print(f"Journals and logs: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"\n{report.table()}\n\n{report.bounds()}\n")
    if report.failures():
        print(report.failures() + "\n")
    print(f"Report: {report.write(RESULTS)}")
    print(report.last_line())
    if report.is_interrupted:
        return _INTERRUPTED
    return 0 if report.is_clean else 1


def _run(options: argparse.Namespace, report: Report, folder: Path) -> None:
    chosen = [SCENARIOS[name] for name in options.only]
    # The shares are those of a whole campaign, so that one scenario alone is what it is among the others.
    weights = sum(scenario.weight for scenario in SCENARIOS.values())
    times = sum(scenario.time for scenario in SCENARIOS.values())
    for scenario in chosen:
        messages = int(options.messages * scenario.weight / weights)
        seconds = options.minutes * 60 * scenario.time / times
        if why := scenario.missing():
            report.skipped[scenario.name] = why
            print(f"{scenario.name}: skipped: {why}", flush=True)
            continue
        try:
            stage = Stage(scenario.name, folder / scenario.name, options.seed, messages, seconds, options.durability)
            report.verdicts[scenario.name] = _play(scenario, stage)
        except Missing as error:
            report.skipped[scenario.name] = str(error)
            print(f"{scenario.name}: skipped: {error}", flush=True)


def _play(scenario: Scenario, stage: Stage) -> Verdict:
    print(f"{scenario.name}: {scenario.about}; {stage.messages:,} messages in {stage.seconds:.0f} s", flush=True)
    began = time.monotonic()
    try:
        verdict = scenario.play(stage)
    except Missing:
        raise
    except Exception as error:
        traceback.print_exc(file=sys.stdout)
        verdict = Verdict(complaints=[f"the scenario itself failed: {type(error).__name__}: {error}"])
    finally:
        stage.close()
    told = "clean" if verdict.is_clean else "BROKEN"
    print(
        f"{scenario.name}: {told} after {time.monotonic() - began:.0f} s: {verdict.messages:,} messages, "
        f"{sum(verdict.faults.values())} faults, {len(verdict.lost)} lost, {len(verdict.unexplained)} unexplained, "
        f"{len(verdict.stranded)} stranded, {verdict.explained} again, recovery {verdict.recovery_s:.1f} s",
        flush=True,
    )
    return verdict


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m campaign", description="Break things, and count what was lost.")
    parser.add_argument("--messages", type=int, default=_MESSAGES, help="messages over all scenarios")
    parser.add_argument("--minutes", type=float, default=_MINUTES, help="minutes of faults over all scenarios")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="what chooses the faults and their moments")
    parser.add_argument("--only", type=_names, default=list(SCENARIOS), help="comma list of scenarios (see --list)")
    parser.add_argument(
        "--durability", default="", choices=["fast", "local"], help="measure what it loses (server, sentinel, cluster)"
    )
    parser.add_argument("--list", action="store_true", help="list the scenarios and stop")
    parser.add_argument("--keep", action="store_true", help="keep journals and logs, and say where they are")
    return parser


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in SCENARIOS]:
        raise argparse.ArgumentTypeError(f"unknown scenario {', '.join(unknown)}; known: {', '.join(SCENARIOS)}")
    return names
