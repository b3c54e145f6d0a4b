"""Commands find their queue by the settings: flags before the environment, the environment before the file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.errors import SettingsError
from penstock.sync.results import FSBackend
from penstock.sync.tasks import RedisTaskQueue, Task

pytestmark = pytest.mark.usefixtures("default_server")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_command_takes_queue_and_place_from_the_file(redis_url: str, folder: Path) -> None:
    (folder / "penstock.toml").write_text(f'[task_queue]\nurl = "{redis_url}"\n[task_queue.redis]\nname = "films"\n')
    with RedisTaskQueue(redis_url, "films") as queue:
        queue.enqueue(Task(kind="render", id="abc"))
    shown = CliRunner().invoke(app, ["queue", "list"])
    assert shown.exit_code == 0, shown.output
    assert "abc\trender" in shown.stdout


def test_the_environment_is_above_the_file_and_a_flag_above_both(
    redis_url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "penstock.toml").write_text('[task_queue]\nurl = "redis://127.0.0.1:1/0"\n')
    monkeypatch.setenv("PENSTOCK__TASK_QUEUE__URL", redis_url)
    assert CliRunner().invoke(app, ["queue", "list"]).exit_code == 0
    monkeypatch.setenv("PENSTOCK__TASK_QUEUE__URL", "redis://127.0.0.1:1/0")
    assert CliRunner().invoke(app, ["queue", "list"]).exit_code == 1
    assert CliRunner().invoke(app, ["queue", "list", "--url", redis_url]).exit_code == 0


def test_a_queue_in_the_memory_of_one_process_is_refused_and_never_a_fallback(folder: Path) -> None:
    (folder / "penstock.toml").write_text('[task_queue]\nprovider = "stub"\n')
    shown = CliRunner().invoke(app, ["queue", "list"])
    assert isinstance(shown.exception, SettingsError)
    assert "no other can reach: use 'redis'" in str(shown.exception)


def test_the_settings_are_checked_as_a_whole(redis_url: str, folder: Path) -> None:
    (folder / "penstock.toml").write_text(f'[task_queue]\nurl = "{redis_url}"\n')
    shown = CliRunner().invoke(app, ["config", "check"])
    assert shown.exit_code == 0, shown.output


@pytest.mark.parametrize(
    ("options", "missing"), [("", "needs a dsn"), ('dsn = "postgresql://db/a"', "penstock[postgres]")]
)
def test_a_check_tells_what_a_back_end_lacks(
    folder: Path, monkeypatch: pytest.MonkeyPatch, options: str, missing: str
) -> None:
    text = f'[result_backend]\nprovider = "postgres"\n[result_backend.postgres]\n{options}\n'
    (folder / "penstock.toml").write_text(text)
    monkeypatch.setitem(sys.modules, "psycopg", None)  # as if it were not installed
    shown = CliRunner().invoke(app, ["config", "check"])
    assert isinstance(shown.exception, SettingsError)
    assert missing in str(shown.exception)
    assert "penstock.toml" in str(shown.exception)


def test_a_worker_saves_results_where_the_file_says(redis_url: str, folder: Path) -> None:
    (folder / "penstock.toml").write_text(
        f'[task_queue]\nurl = "{redis_url}"\nidle_ms = 5000\n[result_backend]\nprovider = "fs"\nroot = "kept"\n'
    )
    with RedisTaskQueue(redis_url) as queue:
        queue.enqueue(Task(kind="pid", id="abc"))
    command = [sys.executable, "-m", "penstock", "worker", "tests.cli.jobs:handlers", "--burst"]
    done = subprocess.run(
        command, cwd=folder, env={"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "PATH": ""}, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    with FSBackend(folder / "kept") as results:
        found = results.get("abc")
    assert found is not None
    assert found.status == "ok", found
