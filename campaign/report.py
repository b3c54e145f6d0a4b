"""The report: a line for each scenario, the verdict in the last line, and the same as Markdown and JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from campaign.checker import Verdict

_SHOWN = 40
_HEAD = (
    "| scenario | messages | faults | lost | flushed | again, explained | unexplained | stranded | results twice "
    "| dead | recovery | slowest message |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
)
_BOUNDS_HEAD = (
    "| scenario | fault | faults | measured | worst alone | worst beside others | bound | verdict |\n"
    "|---|---|---|---|---|---|---|---|"
)
_COUNTED = ("lost", "unexplained", "stranded", "results_twice", "late")


@dataclass
class Report:
    """The verdicts of one campaign."""

    seed: int
    size: str = ""
    """Options, if they were not the usual ones: a seed repeats a campaign of the same size."""
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    is_interrupted: bool = False

    @property
    def is_clean(self) -> bool:
        return all(verdict.is_clean for verdict in self.verdicts.values())

    def last_line(self) -> str:
        """Return the whole campaign in one line."""
        found = list(self.verdicts.values())
        counts = [sum(len(getattr(v, name)) for v in found) for name in _COUNTED]
        lost, unexplained, stranded, twice, late = counts
        worst = max((v.recovery_s for v in found), default=0.0)
        messages, faults = sum(v.messages for v in found), sum(sum(v.faults.values()) for v in found)
        return (
            f"{lost} lost / {unexplained} unexplained duplicates / {stranded} stranded / {twice} results twice / "
            f"{late} bounds broken, worst recovery {worst:.1f} s / "
            f"{messages:,} messages, {faults:,} faults, seed {self.seed}"
        )

    def table(self) -> str:
        """Return the scenarios as a Markdown table."""
        rows = [_HEAD]
        for name, v in self.verdicts.items():
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(v.faults.items()))
            kinds += f"{v.hostile:,} hostile entries" if v.hostile else ""
            cells = [
                name, f"{v.messages:,}", kinds or "-", len(v.lost), v.flushed, v.explained,
                len(v.unexplained), len(v.stranded), len(v.results_twice), v.dead,
                f"{v.recovery_s:.1f} s", f"{v.slowest_s:.1f} s",
            ]  # fmt: skip
            rows.append("| " + " | ".join(map(str, cells)) + " |")
        rows += [f"| {name} | skipped: {why} | | | | | | | | | | |" for name, why in self.skipped.items()]
        return "\n".join(rows)

    def bounds(self) -> str:
        """Return how long each kind of fault was felt, as a Markdown table."""
        rows = [_BOUNDS_HEAD]
        for name, verdict in self.verdicts.items():
            for kind, found in verdict.recoveries.items():
                bound = "-" if found.bound_s is None else f"{found.bound_s:.1f} s"
                cells = [
                    name, kind, found.faults, found.measured, f"{found.alone_s:.1f} s", f"{found.beside_s:.1f} s",
                    bound, found.verdict,
                ]  # fmt: skip
                rows.append("| " + " | ".join(map(str, cells)) + " |")
        kinds = [(name, kind) for name, verdict in self.verdicts.items() for kind in verdict.recoveries.values()]
        unjudged = [f"* {name}, not judged: {one}" for name, kind in kinds for one in kind.unjudged]
        return "\n".join([*rows, *([""] if unjudged else []), *unjudged])

    def failures(self) -> str:
        """Return what was broken, with the command that repeats it."""
        told = []
        for name, verdict in self.verdicts.items():
            if verdict.is_clean:
                continue
            told.append(f'{name}: repeat it with `make campaign ARGS="--seed {self.seed} {self.size}--only {name}"`')
            for what in (
                "lost",
                "unexplained",
                "stranded",
                "innocent",
                "late",
                "results_twice",
                "results_missing",
                "crashes",
                "complaints",
            ):
                found = getattr(verdict, what)
                told += [f"  {what} ({len(found)}): {item}" for item in found[:_SHOWN]]
        return "\n".join(told)

    def write(self, folder: Path) -> Path:
        """Write the report into a folder, as Markdown and as JSON; return the Markdown."""
        folder.mkdir(parents=True, exist_ok=True)
        facts = {
            "seed": self.seed, "is_interrupted": self.is_interrupted, "skipped": self.skipped,
            "scenarios": {name: verdict.as_dict() for name, verdict in self.verdicts.items()},
        }  # fmt: skip
        (folder / "report.json").write_text(json.dumps(facts, indent=1))
        path = folder / "report.md"
        failures = f"\n```\n{self.failures()}\n```\n" if self.failures() else ""
        path.write_text(
            f"# Campaign, seed {self.seed}\n\n{self.table()}\n\n{self.bounds()}\n{failures}\n{self.last_line()}\n"
        )
        return path
