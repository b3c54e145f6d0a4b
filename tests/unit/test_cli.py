"""The command line in general: what holds for every command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import penstock
from penstock.cli import main
from penstock.cli.app import app
from penstock.cli.command import command
from penstock.errors import ConfigurationError, ConnectionFailed, NotFound, PenstockError


def test_the_version_is_shown():
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"penstock {penstock.__version__}\n")


def test_python_dash_m_is_the_same_command():
    shown = subprocess.run([sys.executable, "-m", "penstock", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == f"penstock {penstock.__version__}\n"


def test_the_installed_command_is_the_same_command():
    command = Path(sys.executable).with_name("penstock")
    shown = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == f"penstock {penstock.__version__}\n"


def test_without_a_command_the_commands_are_listed():
    result = CliRunner().invoke(app, [])
    assert "demo" in result.output


def test_everything_that_serves_is_for_this_machine_alone_unless_it_is_told_otherwise():
    served = {}
    commands = [("penstock", typer.main.get_command(app))]
    for name, each in commands:
        commands += [(f"{name} {word}", child) for word, child in getattr(each, "commands", {}).items()]
        served |= {(name, option.name): option.default for option in each.params}
    assert {place: default for place, default in served.items() if place[1] in {"host", "metrics_host"}} == {
        ("penstock consume", "metrics_host"): "127.0.0.1",
        ("penstock dashboard", "host"): "127.0.0.1",
        ("penstock exporter", "host"): "127.0.0.1",
        ("penstock pipeline run", "metrics_host"): "127.0.0.1",
        ("penstock worker", "metrics_host"): "127.0.0.1",
    }


@pytest.mark.parametrize("module", ["typer", "rich"])
def test_a_missing_extra_is_named(monkeypatch, module):
    for name in list(sys.modules):
        if name.startswith("penstock.cli.") or name.partition(".")[0] == module:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SystemExit) as exit_:
        main()
    assert "pip install 'penstock[cli]'" in str(exit_.value)


def test_a_bug_of_ours_is_not_taken_for_a_missing_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "penstock.cli.app", None)
    with pytest.raises(ModuleNotFoundError):
        main()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PenstockError("it broke"), 1),
        (ConnectionFailed("no server answers"), 1),
        (OSError(28, "No space left on device"), 1),
        (ConfigurationError("no server was found: install one"), 2),
        (NotFound("stream 'orders' does not exist"), 3),
        (KeyboardInterrupt(), 130),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(error: BaseException, code: int) -> None:
    app = typer.Typer()

    @command(app)
    def fail() -> None:
        raise error

    result = CliRunner().invoke(app, [])
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr == (f"penstock: {error}\n" if code != 130 else "")


def test_a_bug_keeps_its_traceback() -> None:
    app = typer.Typer()

    @command(app)
    def fail() -> None:
        raise ZeroDivisionError

    assert isinstance(CliRunner().invoke(app, []).exception, ZeroDivisionError)
