"""The page of names and units: every name in its table is one of the code."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

import pytest

import penstock
from penstock import tasks
from penstock.balancer.config import BalancerConfig
from penstock.queue.processing import Processing
from penstock.spark.pipeline.steps import Handler
from penstock.spark.reprocess.task import Work
from penstock.tasks.dead_tasks import DeadTasks
from tests.docs.pages import ROOT, table_column

PAGE = (ROOT / "docs" / "reference" / "vocabulary.md").read_text()
TABLE = PAGE.partition("## Names")[2].partition("## Events")[0]
EVENTS = PAGE.partition("## Events")[2].partition("## Units")[0]
UNITS = PAGE.partition("## Units")[2]
WORDS = sorted(set(re.findall(r"`([^`]+)`", TABLE)))
OTHERS: dict[str, Any] = {
    "Processing": Processing, "DeadTasks": DeadTasks, "Handler": Handler, "Work": Work,
}  # fmt: skip


def _class(name: str) -> Any:
    return OTHERS.get(name) or getattr(tasks, name, None) or getattr(penstock, name)


def _names(kind: Any) -> set[str]:
    names = {*dir(kind), *inspect.signature(kind).parameters}
    if dataclasses.is_dataclass(kind):
        names |= {field.name for field in dataclasses.fields(kind)}
    if kind is penstock.StreamBalancer:
        names |= {field.name for field in dataclasses.fields(BalancerConfig)}
    return names


@pytest.mark.parametrize("word", [word for word in WORDS if "." in word])
def test_every_name_of_the_table_is_a_parameter_or_an_attribute(word: str) -> None:
    owner, name, call = re.fullmatch(r"(\w+)\.(\w+)(?:\((\w*)\))?", word).groups()  # type: ignore[union-attr]
    if call is None:
        # Set in the constructor: what it was given, or made of that.
        assert name in _names(_class(owner)) or f"self.{name}" in inspect.getsource(_class(owner))
    else:
        method = getattr(_class(owner), name)
        assert callable(method)
        assert not call or call in inspect.signature(method).parameters


@pytest.mark.parametrize("word", [word for word in WORDS if re.fullmatch(r"[a-z]+[A-Z]\w+|url", word)])
def test_every_option_of_spark_in_the_table_is_one(word: str) -> None:
    source = "".join(path.read_text() for path in (ROOT / "src" / "penstock" / "spark").rglob("*.py"))
    assert f'"{word}"' in source


def test_every_part_of_the_vocabulary_has_its_column() -> None:
    rows = [line.count("|") for line in TABLE.strip().splitlines()]
    assert set(rows) == {7}


@pytest.mark.parametrize(
    ("part", "headings"),
    [
        ("streams", ["## Consumers", "## Producers"]), ("queue", ["## Queues"]), ("tasks", ["## Tasks"]),
        ("balancer", ["## Balancers"]),
    ],
)  # fmt: skip
def test_every_event_of_a_part_is_one_of_its_events(part: str, headings: list[str]) -> None:
    header, _, *rows = [[cell.strip() for cell in line.split("|")] for line in EVENTS.splitlines() if "|" in line]
    column = header.index(part)
    named = {word for row in rows for word in re.findall(r"`([a-z_]+)`", row[column].partition(",")[0])}
    page = ROOT / "docs" / "reference" / "events.md"
    known = {word for heading in headings for word in table_column(page, heading)}
    if part == "queue":  # which sends these as consumers do
        known |= {"consumer_removed", "trimmed"}
    assert named
    assert named <= known


def test_every_duration_of_the_balancer_without_a_unit_in_its_name_has_one_on_the_page() -> None:
    names = [field.name for field in dataclasses.fields(BalancerConfig)]
    bare = {name for name in names if re.search(r"(time|timeout|interval|delay)$", name)}
    assert bare == {name for name in names if f"`{name}`⁴" in UNITS}
