"""Every back-end keeps the contract that plug-ins run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from penstock.results.backend import ResultBackend
from penstock.results.fs import FSBackend
from penstock.results.postgres import PostgresBackend
from penstock.results.s3 import S3Backend
from penstock.testing.result_backend_contract import ResultBackendContract
from tests.helpers.postgres import PostgresServer
from tests.helpers.s3 import BUCKET, S3Server

Opener = Callable[[], ResultBackend]


class OwnBackend(ResultBackendContract):
    @pytest.fixture
    async def backend(self, open_backend: Opener) -> AsyncIterator[ResultBackend]:
        backend = open_backend()
        assert isinstance(backend, ResultBackend)
        yield backend
        await backend.close()


class TestFiles(OwnBackend):
    @pytest.fixture
    def open_backend(self, tmp_path: Path) -> Opener:
        return lambda: FSBackend(tmp_path / "results")


class TestPackedFiles(OwnBackend):
    @pytest.fixture
    def open_backend(self, tmp_path: Path) -> Opener:
        return lambda: FSBackend(root=tmp_path / "results", compress=True)


class TestPostgres(OwnBackend):
    @pytest.fixture
    def open_backend(self, postgres: PostgresServer) -> Opener:
        return lambda: PostgresBackend(dsn=postgres.dsn)


class TestS3(OwnBackend):
    @pytest.fixture
    def open_backend(self, s3_server: S3Server) -> Opener:
        return lambda: S3Backend(url=f"s3://{BUCKET}/some/prefix", **s3_server.options())


class TestLocalObjectStore(OwnBackend):
    test_the_oldest_day_comes_first = None  # it lists as the file system does; S3 lists in order

    @pytest.fixture
    def open_backend(self, tmp_path: Path) -> Opener:
        (tmp_path / "store").mkdir()
        return lambda: S3Backend(url=f"file://{tmp_path}/store")
