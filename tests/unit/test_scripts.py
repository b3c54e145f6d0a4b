"""Every Lua script is a file with a header that tells its keys, its arguments and what calling it twice does."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files

import pytest

from penstock.redis.scripts import names, part, script

FOLDER = files("penstock.redis") / "lua"
TEXTS = {
    f"{folder.name}/{file.name.removesuffix('.lua')}": file.read_text()
    for folder in FOLDER.iterdir()
    for file in folder.iterdir()
}
INCLUDED = {name for text in TEXTS.values() for name in re.findall(r"^-- include: (.+)\.lua$", text, re.MULTILINE)}


def test_what_nobody_includes_is_a_script() -> None:
    assert set(names()) == TEXTS.keys() - INCLUDED


@pytest.mark.parametrize("name", names())
def test_a_script_is_whole_and_known_by_its_hash(name: str) -> None:
    found = script(name)
    assert "-- include:" not in found.source
    assert found.sha == hashlib.sha1(found.source.encode(), usedforsecurity=False).hexdigest()
    assert script(name) is found


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_a_part_is_in_a_script_once(name: str) -> None:
    functions = re.findall(r"^local function (\w+)", part(name), re.MULTILINE)
    assert sorted(functions) == sorted(set(functions))


@pytest.mark.parametrize("name", sorted(INCLUDED))
def test_what_scripts_of_several_folders_include_is_shared(name: str) -> None:
    folders = {user.partition("/")[0] for user, text in TEXTS.items() if f"-- include: {name}.lua\n" in text}
    assert name.startswith("shared/") or folders == {name.partition("/")[0]}


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_a_script_says_what_it_does(name: str) -> None:
    wanted = ("-- Included by",) if name in INCLUDED else ("-- KEYS:", "-- ARGV:", "-- Returns:", "-- Called twice:")
    assert [words for words in wanted if words not in TEXTS[name]] == []


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_no_script_makes_up_a_key(name: str) -> None:
    assert "KEYS[1] .." not in TEXTS[name]
    assert "'{'" not in TEXTS[name]
