"""Commands find their server: by --url, by PENSTOCK_URL, by the settings."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from penstock.spark.runtime.link import Retries
from penstock.sync.results import FSBackend
from penstock.sync.tasks import RedisTaskQueue, Task
from tests.helpers.commands import run

pytestmark = pytest.mark.usefixtures("default_server")
ROOT = Path(__file__).resolve().parents[2]
_retry_for = Retries.__init__


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_command_takes_queue_and_place_from_the_file(redis_url: str, folder: Path) -> None:
    (folder / "penstock.toml").write_text(f'[task_queue]\nurl = "{redis_url}"\n[task_queue.redis]\nname = "films"\n')
    with RedisTaskQueue(redis_url, "films") as queue:
        queue.enqueue(Task(kind="render", id="abc"))
    shown = run("queue", "list")
    assert shown.exit_code == 0, shown.output
    assert "abc" in shown.stdout
    assert "render" in shown.stdout


def test_the_option_is_above_the_variable_and_the_variable_above_the_settings(
    redis_url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = "redis://127.0.0.1:1/0"
    for given, setting, variable, code in [
        ([], redis_url, None, 0),
        ([], redis_url, dead, 1),
        ([], dead, redis_url, 0),
        (["--url", redis_url], dead, dead, 0),
        (["--url", dead], redis_url, redis_url, 1),
    ]:
        (folder / "penstock.toml").write_text(f'[task_queue]\nurl = "{setting}"\n')
        monkeypatch.delenv("PENSTOCK_URL", raising=False)
        if variable is not None:
            monkeypatch.setenv("PENSTOCK_URL", variable)
        for words in (["stream", "ls"], ["queue", "ls"], ["workers"]):
            assert run(*words, *given).exit_code == code
    assert run("stream", "ls", "--url", "").exit_code == 2, "a variable that is not set means no other server"
    shown = run("config", "show", "--url", redis_url)
    [line] = [line for line in shown.stdout.splitlines() if "task_queue.url" in line]
    assert line.split()[-3:] == ["--url", "or", "PENSTOCK_URL"]


def test_a_pipeline_takes_the_option_its_file_the_variable_and_the_settings_in_this_order(
    redis_url: str, raw: redis.Redis, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw.xadd("orders", {"data": "{}"})
    dead = "redis://127.0.0.1:1/0"
    monkeypatch.setattr(Retries, "__init__", lambda self, _: _retry_for(self, 0.0))
    for option, own, profile, variable, setting, code in [
        (redis_url, dead, None, dead, dead, 0),
        (dead, redis_url, None, redis_url, redis_url, 1),
        (None, redis_url, None, dead, dead, 0),
        (None, dead, redis_url, dead, dead, 0),
        (redis_url, dead, dead, dead, dead, 0),
        (None, dead, None, redis_url, redis_url, 1),
        (None, None, None, redis_url, dead, 0),
        (None, None, None, dead, redis_url, 1),
        (None, None, None, None, redis_url, 0),
    ]:
        text = 'name = "orders"\ncheckpoint = "place"\n[[sink]]\nkind = "console"\n[source]\nstreams = "orders"\n'
        text += f'url = "{own}"\n' if own else ""
        text += f'[profile.other.source]\nurl = "{profile}"\n' if profile else ""
        (folder / "orders.toml").write_text(text)
        (folder / "settings.toml").write_text(f'[task_queue]\nurl = "{setting}"\n')
        monkeypatch.delenv("PENSTOCK_URL", raising=False)
        if variable is not None:
            monkeypatch.setenv("PENSTOCK_URL", variable)
        words = ["--url", option] if option else []
        words += ["--profile", "other"] if profile else []
        shown = run("pipeline", "status", "orders.toml", "--json", "--config", "settings.toml", *words)
        assert shown.exit_code == code, shown.output
        assert code or json.loads(shown.stdout)["lag"] == 1


def test_a_queue_in_the_memory_of_one_process_is_refused_and_never_a_fallback(folder: Path) -> None:
    (folder / "penstock.toml").write_text('[task_queue]\nprovider = "stub"\n')
    shown = run("queue", "list")
    assert shown.exit_code == 2
    assert "other processes cannot reach: set it to 'redis'" in shown.stderr


def test_the_settings_are_checked_as_a_whole(redis_url: str, folder: Path) -> None:
    (folder / "penstock.toml").write_text(f'[task_queue]\nurl = "{redis_url}"\n')
    shown = run("config", "check")
    assert shown.exit_code == 0, shown.output


@pytest.mark.parametrize(
    ("options", "missing"), [("", "needs dsn"), ('dsn = "postgresql://db/a"', "penstock[postgres]")]
)
def test_a_check_tells_what_a_back_end_lacks(
    folder: Path, monkeypatch: pytest.MonkeyPatch, options: str, missing: str
) -> None:
    text = f'[result_backend]\nprovider = "postgres"\n[result_backend.postgres]\n{options}\n'
    (folder / "penstock.toml").write_text(text)
    monkeypatch.setitem(sys.modules, "psycopg", None)  # as if it were not installed
    shown = run("config", "check")
    assert shown.exit_code == 2
    assert missing in shown.stderr
    assert "penstock.toml" in shown.stderr


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
