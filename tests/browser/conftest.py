"""Chromium on a dashboard: every page that a test opens must stay free of errors and of requests to other hosts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from penstock.sync import StreamClient
from penstock.testing import ServerMissing
from tests.dashboard.conftest import running
from tests.dashboard.world import busy_server

PATIENCE_MS = 120_000  # Chromium starts, and loads pages, on cores that are busy with other tests
_TIMEOUT_S = 600  # of a test: several pages


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives each test time for several pages."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(_TIMEOUT_S))


if not os.environ.get("PENSTOCK_BROWSER"):
    collect_ignore_glob = ["test_*.py"]
else:
    from playwright.sync_api import Browser, Page, expect, sync_playwright

    expect.set_options(timeout=60_000)  # samples are taken less often while the machine is busy

    _PROGRAMS = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")

    @pytest.fixture(scope="session")
    def browser() -> Iterator[Browser]:
        program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
        if program is None:
            raise ServerMissing("Chromium is missing: apt-get install --no-install-recommends chromium")
        with sync_playwright() as playwright:
            found = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"], timeout=PATIENCE_MS)
            yield found
            found.close()

    @pytest.fixture
    def world(redis_url: str, raw: redis.Redis) -> Iterator[StreamClient]:
        """A server with something of everything on it."""
        with busy_server(redis_url, raw) as client:
            yield client

    @pytest.fixture
    def address(redis_url: str, world: StreamClient) -> Iterator[str]:
        """A dashboard on it that allows actions."""
        with running(redis_url, allow_actions=True) as address:
            yield address

    @pytest.fixture
    def page(browser: Browser, address: str) -> Iterator[Page]:
        """A page at the address; at its end, nothing may have gone wrong on it."""
        context = browser.new_context(base_url=address, viewport={"width": 1280, "height": 860})
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        wrong: list[str] = []
        page.on("console", lambda said: wrong.append(said.text) if said.type in {"error", "warning"} else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        host = urlsplit(address).netloc
        page.on("request", lambda asked: wrong.append(asked.url) if urlsplit(asked.url).netloc != host else None)
        yield page
        context.close()
        assert wrong == []

    @pytest.fixture(scope="session")
    def axe() -> str:
        """The source of axe-core, which looks for what people with disabilities cannot use."""
        return Path(__file__).with_name("vendor").joinpath("axe.min.js").read_text()
