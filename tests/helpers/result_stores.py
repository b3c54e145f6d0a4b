"""Fixtures: the stores that results are kept in, one of each per test process, emptied before each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.postgres import PostgresServer
from tests.helpers.s3 import S3Server


@pytest.fixture(scope="session")
def postgres_of_session() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def postgres(postgres_of_session: PostgresServer) -> PostgresServer:
    """An empty PostgreSQL server; a test may stop it."""
    server = postgres_of_session.start()
    server.execute("DROP TABLE IF EXISTS penstock_results, penstock_schema")
    return server


@pytest.fixture(scope="session")
def s3_of_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3_server(s3_of_session: S3Server) -> S3Server:
    """An S3 server with one empty bucket."""
    s3_of_session.empty()
    return s3_of_session
