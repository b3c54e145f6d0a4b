"""A dashboard that listens on this machine, as `penstock dashboard` does, on a server with something on it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest
import redis
from starlette.applications import Starlette

from penstock.dashboard import create_app
from penstock.dashboard.server import DashboardServer
from penstock.sync import StreamClient
from tests.dashboard.world import busy_server

StartDashboard = Callable[..., httpx.Client]


@contextmanager
def serving(app: Any, dashboard: Starlette) -> Iterator[str]:
    """Serves an application and yields its address; `dashboard` is it, or mounted in it."""
    addresses: queue.Queue[str] = queue.Queue()
    app.state = dashboard.state
    server = DashboardServer(app, "127.0.0.1", 0, addresses.put)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield addresses.get(timeout=60)
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


@contextmanager
def running(url: str, **options: Any) -> Iterator[str]:
    """Serves a dashboard and yields its address."""
    app = create_app(url, sample_interval_s=0.3, **options)
    with serving(app, app) as address:
        yield address


@pytest.fixture
def start_dashboard(redis_url: str) -> Iterator[StartDashboard]:
    """Starts a dashboard with the given options and returns a client of it."""
    with ExitStack() as stack:

        def start(url: str = redis_url, **options: Any) -> httpx.Client:
            address = stack.enter_context(running(url, **options))
            return stack.enter_context(httpx.Client(base_url=address, timeout=60))

        yield start


@pytest.fixture
def world(redis_url: str, raw: redis.Redis) -> Iterator[StreamClient]:
    """The server with streams, groups, dead letters, a queue, tasks and a balanced service on it."""
    with busy_server(redis_url, raw) as client:
        yield client
