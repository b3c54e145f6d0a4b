"""Queues and back-ends are made from settings, by name: what was asked for, or an error."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

from penstock import plugins
from penstock.errors import ConfigurationError
from penstock.providers import RESULT_BACKENDS, TASK_QUEUES, make_result_backend, make_task_queue
from penstock.results.fs import FSBackend
from penstock.results.postgres import PostgresBackend
from penstock.results.s3 import S3Backend
from penstock.settings import ResultBackendSettings, Settings, TaskQueueSettings
from penstock.task import Result


class OwnQueue:
    def __init__(self, settings: TaskQueueSettings) -> None:
        self.settings = settings

    @classmethod
    def from_settings(cls, settings: TaskQueueSettings) -> OwnQueue:
        return cls(settings)


class PlainQueue:
    def __init__(self, *, size: int, password: str = "") -> None:
        if size < 0:
            raise RuntimeError(f"cannot log in with {password}")
        self.size = size


@pytest.fixture
def _offered(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = [
        (TASK_QUEUES.group, "own", f"{__name__}:OwnQueue"),
        (TASK_QUEUES.group, "plain", f"{__name__}:PlainQueue"),
        (TASK_QUEUES.group, "broken", "no_such_package:Queue"),
        (RESULT_BACKENDS.group, "useless", f"{__name__}:PlainQueue"),
    ]
    points = EntryPoints(EntryPoint(name, target, group) for group, name, target in offered)
    monkeypatch.setattr(plugins, "entry_points", lambda group: points.select(group=group))


def loaded(**variables: str) -> Settings:
    return Settings.load(environment={f"PENSTOCK__{name}": value for name, value in variables.items()})


async def test_the_default_back_end_keeps_files(tmp_path: Path) -> None:
    backend = make_result_backend(loaded(RESULT_BACKEND__ROOT=str(tmp_path), RESULT_BACKEND__COMPRESS="yes"))
    assert isinstance(backend, FSBackend)
    await backend.save(Result(task_id="t1", kind="resize"))
    assert [path.name for path in tmp_path.glob("2*/*")] == ["resize-t1.msgpack.gz"]  # noqa: ASYNC240
    await backend.close()


async def test_other_back_ends_are_made_from_their_own_tables() -> None:
    options: dict[str, Any] = {"dsn": "postgresql://u:pa55@h/d", "timeout_s": 3}
    backend = make_result_backend(ResultBackendSettings(provider="postgres", options=options))
    assert isinstance(backend, PostgresBackend)
    assert repr(backend) == "PostgresBackend(PostgreSQL h:5432/d)"
    settings = loaded(
        RESULT_BACKEND__PROVIDER="s3", RESULT_BACKEND__S3__URL="s3://b/p", RESULT_BACKEND__S3__REGION="eu"
    )
    assert isinstance(make_result_backend(settings), S3Backend)


@pytest.mark.parametrize(
    ("provider", "options", "message"),
    [
        ("postgres", {}, "needs dsn: set PENSTOCK__RESULT_BACKEND__POSTGRES__DSN, or dsn or dsn_file"),
        ("s3", {}, "needs url: set PENSTOCK__RESULT_BACKEND__S3__URL"),
        ("fs", {"color": 1}, r"'fs' cannot be created with the keys \['color'\] of its table: TypeError: .*color"),
        ("postgres", {"dsn": "host=h", "pool": 1}, "TypeError: .*pool"),
        ("s3", {"url": "s3://b", "bogus": 1}, "bogus"),
        ("postgre", {}, r"unknown result back-end 'postgre'; did you mean 'postgres'\?"),
    ],
)
async def test_settings_that_a_back_end_refuses_are_told(provider: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_result_backend(ResultBackendSettings(provider=provider, options=options))


@pytest.mark.usefixtures("_offered")
async def test_a_queue_is_made_by_its_own_method_or_from_its_own_keys() -> None:
    settings = Settings(task_queue=TaskQueueSettings(provider="own", max_retry=9, options={"x": 1}))
    queue = make_task_queue(settings)
    assert isinstance(queue, OwnQueue)
    assert queue.settings is settings.task_queue
    plain = make_task_queue(TaskQueueSettings(provider="plain", options={"size": 3}))
    assert plain.size == 3


@pytest.mark.usefixtures("_offered")
async def test_a_plug_in_that_fails_is_told_without_secrets() -> None:
    broken = TaskQueueSettings(provider="plain", options={"size": -1, "password": "pa55word"})
    with pytest.raises(ConfigurationError, match=r"RuntimeError: cannot log in with \*\*\*") as error:
        make_task_queue(broken)
    assert error.value.__cause__ is None
    with pytest.raises(ConfigurationError, match="cannot be imported"):
        make_task_queue(TaskQueueSettings(provider="broken"))
    with pytest.raises(ConfigurationError, match="does not implement save, save_many, get, iter, close"):
        make_result_backend(ResultBackendSettings(provider="useless", options={"size": 1}))


@pytest.mark.usefixtures("_offered")
async def test_there_is_no_fall_back_to_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is wrong with Redis, nobody gets the stub who did not ask for it."""
    loads: list[str] = []
    load = plugins.Plugins.load

    def failing(self: plugins.Plugins, name: str) -> Any:
        loads.append(name)
        if name == "redis":
            raise ConfigurationError("Redis cannot be had")
        return load(self, name)

    monkeypatch.setattr(plugins.Plugins, "load", failing)
    with pytest.raises(ConfigurationError, match="Redis cannot be had"):
        make_task_queue(Settings())
    assert loads == ["redis"]
