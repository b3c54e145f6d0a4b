"""Keeps the raw figures of a run as JSON."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

from bench.figures import Samples
from bench.plan import Plan
from bench.targets import Verdict

_FOLDER = Path(__file__).resolve().parent / "results"


def write(samples: Samples, verdicts: list[Verdict], plan: Plan, server: str) -> Path:
    """Writes everything into a new file and returns its path."""
    _FOLDER.mkdir(exist_ok=True)
    path = _FOLDER / time.strftime("%Y%m%d-%H%M%S.json")
    content = {
        "server": server,
        "plan": asdict(plan),
        "targets": [{**asdict(verdict), "is_met": verdict.is_met} for verdict in verdicts],
        "samples": [asdict(sample) for sample in samples.all],
    }
    path.write_text(json.dumps(content, indent=1))
    return path
