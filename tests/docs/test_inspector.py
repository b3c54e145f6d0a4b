"""The page about the Inspector names every method of every noun, every metric and every check of the findings."""

from __future__ import annotations

import inspect
import re

import pytest

from penstock.ops import Inspector, findings, server_findings
from penstock.ops.model import Severity
from penstock.redis.client import StreamClient
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "reference" / "inspector.md").read_text()
NOUNS = [
    name for name, value in vars(Inspector(StreamClient())).items() if not name.startswith("_") and name != "client"
]


@pytest.mark.parametrize("noun", NOUNS)
def test_every_method_of_a_noun_is_described(noun: str) -> None:
    section = PAGE.partition(f"| `{noun}` |")[2]
    rows = re.split(r"\n\| `\w+` \|", section)[0]
    methods = inspect.getmembers(type(getattr(Inspector(StreamClient()), noun)), inspect.isfunction)
    public = {name for name, _ in methods if not name.startswith("_")} - {"describe", "overview"}
    assert {name for name in public if f"`{name}(" not in rows} == set()


def test_every_metric_is_described() -> None:
    source = (ROOT / "src" / "penstock" / "ops" / "metrics.py").read_text()
    metrics = set(re.findall(r'"((?:penstock|queue)_\w+)"', source))
    described = set(re.findall(r"`((?:penstock|queue)_\w+)`", PAGE))
    assert metrics == described


def test_every_check_of_the_doctor_is_described() -> None:
    page = ROOT / "docs" / "how-to" / "monitor.md"
    cells = page.read_text().partition("| check |")[2].partition("\n\n")[0]
    described = set(
        re.findall(r"`([a-z-]+)`", "".join(line.split("|")[1] for line in cells.splitlines() if "|" in line))
    )
    source = inspect.getsource(findings) + inspect.getsource(server_findings)
    known = set(re.findall(r'Finding\(\s*"([a-z-]+)"', source)) | {"unknown-kind", "no-consumer"}
    assert described == known
    assert {severity.value for severity in Severity} == {"ok", "info", "warning", "error"}
