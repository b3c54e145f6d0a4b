"""No page has a placeholder, which its author has forgotten to fill."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, blocks, name, prose

# A line of its own, such as SEED3. Code may have such lines: the end of a here-document is one.
_LINE = re.compile(r"^\s*([A-Z][A-Z0-9_]+)\s*$", re.MULTILINE)
_NOTE = re.compile(r"\b(?:TODO|FIXME|XXX)\b")


def placeholders(prose: str, printed: list[str], page: str) -> list[str]:
    """Returns what looks like one: in the prose, in blocks of plain text, and notes anywhere on the page."""
    return [*_LINE.findall(prose), *(line for text in printed for line in _LINE.findall(text)), *_NOTE.findall(page)]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_has_no_placeholder(page: Path) -> None:
    printed = [block.text for block in blocks(page) if block.language in {"", "text", "output"}]
    assert placeholders(prose(page), printed, page.read_text()) == []


def test_placeholders_are_found() -> None:
    assert placeholders("Measured:\n\nNUMBER_1\n\nOK.", ["0 lost\nSEED3\n", "499500\n"], "an XXX") == [
        "NUMBER_1", "SEED3", "XXX"
    ]  # fmt: skip
