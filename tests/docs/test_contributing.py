"""CONTRIBUTING.md says which way imports point and who reads the environment: as import-linter and the code have it."""

from __future__ import annotations

import re
import tomllib

from tests.docs.pages import ROOT

PACKAGE = ROOT / "src" / "penstock"
READERS = ("settings/", "balancer/config.py", "spark/", "cli/", "testing/")


def test_the_order_of_imports_is_that_of_the_contract() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    *layers, pure = project["tool"]["importlinter"]["contracts"][0]["layers"]
    contract = [{*re.findall(r"\w+", layer)} for layer in reversed(layers)]
    lines = re.findall(r"^\d+\. (.+)$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    said = [{*re.findall(r"`(\w+)`", line)} for line in lines]
    assert said[1:] == contract
    assert said[0] <= {*re.findall(r"\w+", pure)}


def test_nobody_else_looks_at_the_environment() -> None:
    looking = [
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if re.search(r"\bos\.(environ|getenv)\b", path.read_text())
    ]
    found = [path.removeprefix("sync/") for path in looking]
    assert [path for path in found if not path.startswith(READERS)] == []
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert [reader for reader in READERS if f"`{reader.rstrip('/')}`" not in text] == []
