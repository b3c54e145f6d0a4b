"""Every `penstock` command in the documentation can be given as it stands, and the reference has all of them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from penstock.cli.app import app
from tests.docs.pages import PAGES, blocks, name
from tools import cli_reference

TREE = dict(cli_reference.leaves(typer.main.get_command(app)))
NOT_HERE = {"dashboard"}  # needs an extra


def commands(page: Path) -> list[tuple[int, list[str]]]:
    """Returns the lines of a page's shell blocks that begin with penstock, as words."""
    return [
        (block.line + number, shlex.split(re.split(r" [|>] ", line)[0], comments=True)[1:])
        for block in blocks(page)
        if block.language == "bash"
        for number, line in enumerate(block.text.replace("\\\n", "  ").splitlines())
        if line.startswith("penstock ")
    ]


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=name)
def test_the_commands_of_the_page_are_commands(page: Path) -> None:
    for line, words in commands(page):
        if words[0] in NOT_HERE:
            continue
        path, command = _found(words)
        try:
            command.make_context(" ".join(path), words[len(path) :]).close()
        except Exception as error:
            pytest.fail(f"{name(page)}:{line}: penstock {shlex.join(words)}: {error}")


def _found(words: list[str]) -> tuple[tuple[str, ...], Any]:
    return next((path, TREE[path]) for path in (tuple(words[:n]) for n in (3, 2, 1)) if path in TREE)


def test_the_reference_of_the_command_line_is_fresh() -> None:
    assert cli_reference.PAGE.read_text() == cli_reference.page(), "run `make reference`"
