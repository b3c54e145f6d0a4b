"""Every script is a transition in the diagram of its folder, or listed beside it; every transition is a script or a command."""

from __future__ import annotations

import re

import pytest

from penstock.redis.scripts import names
from tests.docs.pages import ROOT, table_column

PAGES = {
    "streams": ("life-of-a-message.md", "## Scripts that move no message"),
    "queue": ("life-of-a-queued-message.md", "## Scripts that move no message"),
    "tasks": ("life-of-a-task.md", "## Scripts that move no task"),
    "balancer": ("balancer.md", "## Scripts that move no stream"),
}
# Chores of all parts; writes of Spark, which has states of its own; what operators see.
ELSEWHERE = {"shared", "spark", "ops"}
NO_SCRIPTS = {"XREADGROUP", "purge", "the lock runs out"}


def transitions(page: str, folder: str) -> set[str]:
    """Returns the names at the arrows of a diagram, with their folders."""
    labels = re.findall(r"^    \S+ --> \S+: (.+)$", (ROOT / "docs" / "explanation" / page).read_text(), re.MULTILINE)
    found = {name for label in labels for name in label.split(", ")} - NO_SCRIPTS
    return {name if "/" in name else f"{folder}/{name}" for name in found}


def test_every_folder_has_a_diagram() -> None:
    assert {name.partition("/")[0] for name in names()} == PAGES.keys() | ELSEWHERE


@pytest.mark.parametrize("folder", PAGES)
def test_every_script_is_in_the_diagram_or_beside_it(folder: str) -> None:
    page, heading = PAGES[folder]
    drawn = transitions(page, folder)
    listed = table_column(ROOT / "docs" / "explanation" / page, heading)
    helpers = {f"{folder}/{name}" for cell in listed for name in re.findall(r"\w+", cell)}
    assert drawn & helpers == set()
    assert drawn <= set(names()), "an arrow that is no script"
    assert {name for name in drawn | helpers if name.startswith(f"{folder}/")} == {
        name for name in names() if name.startswith(f"{folder}/")
    }
