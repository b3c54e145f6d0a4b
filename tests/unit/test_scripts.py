"""Every Lua script is a file with a header that tells its keys, its arguments and what calling it twice does."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files

import pytest

from penstock.redis.scripts import script

FOLDER = files("penstock.redis") / "lua"
NAMES = sorted(path.name.removesuffix(".lua") for path in FOLDER.iterdir() if path.name.endswith(".lua"))
INCLUDED = {
    name
    for path in FOLDER.iterdir()
    if path.name.endswith(".lua")
    for name in re.findall(r"^-- include: (\w+)\.lua$", path.read_text(), re.MULTILINE)
}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in INCLUDED])
def test_a_script_is_whole_and_known_by_its_hash(name: str) -> None:
    found = script(name)
    assert "-- include:" not in found.source
    assert found.sha == hashlib.sha1(found.source.encode(), usedforsecurity=False).hexdigest()
    assert script(name) is found


@pytest.mark.parametrize("name", NAMES)
def test_a_script_says_what_it_does(name: str) -> None:
    text = (FOLDER / f"{name}.lua").read_text()
    wanted = ("-- Included by",) if name in INCLUDED else ("-- KEYS:", "-- ARGV:", "-- Returns:", "-- Called twice:")
    assert [part for part in wanted if part not in text] == []


@pytest.mark.parametrize("name", NAMES)
def test_no_script_makes_up_a_key(name: str) -> None:
    text = (FOLDER / f"{name}.lua").read_text()
    assert "KEYS[1] .." not in text
    assert "'{'" not in text
