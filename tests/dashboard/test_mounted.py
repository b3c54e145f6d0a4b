"""The dashboard works below a path of an application of FastAPI, Starlette or Django, beside that one's own pages."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import redis
from starlette.applications import Starlette

from penstock.dashboard import create_app
from penstock.sync import StreamClient
from tests.dashboard.conftest import serving
from tests.dashboard.test_security import form_of

pytestmark = pytest.mark.usefixtures("default_server")
PATH = "/ops/penstock"


def in_starlette(dashboard: Starlette) -> Any:
    from starlette.responses import PlainTextResponse
    from starlette.routing import Mount, Route

    return Starlette(routes=[Mount(PATH, dashboard), Route("/hello", lambda _: PlainTextResponse("hello"))])


def in_fastapi(dashboard: Starlette) -> Any:
    fastapi = pytest.importorskip("fastapi")
    app = fastapi.FastAPI()
    app.mount(PATH, dashboard)
    app.get("/hello")(lambda: "hello")
    return app


def in_django(dashboard: Starlette) -> Any:
    pytest.importorskip("django")
    from django.conf import settings
    from django.core.asgi import get_asgi_application
    from django.http import HttpResponse
    from django.urls import path

    if not settings.configured:
        settings.configure(
            ROOT_URLCONF=(path("hello", lambda _: HttpResponse("hello")),), ALLOWED_HOSTS=["*"], SECRET_KEY="tests"
        )
    django = get_asgi_application()

    # As docs/how-to/dashboard.md has it.
    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].startswith(f"{PATH}/"):
            await dashboard({**scope, "root_path": PATH}, receive, send)
        else:
            await django(scope, receive, send)

    return application


@pytest.mark.parametrize("mounted", [in_starlette, in_fastapi, in_django])
def test_pages_actions_and_the_feed_stay_below_the_path(
    mounted: Callable[[Starlette], Any], redis_url: str, world: StreamClient, raw: redis.Redis
) -> None:
    inner = create_app(redis_url, allow_actions=True, sample_interval_s=0.3)
    with serving(mounted(inner), inner) as address, httpx.Client(base_url=address, timeout=60) as client:
        for path in ("/", "/streams", "/stream?name=orders", "/dead-letters?stream=orders", "/tasks", "/spark"):
            page = client.get(f"{PATH}{path}")
            assert page.status_code == 200, (path, page.text)
            links = re.findall(r'(?:href|src|action|hx-get)="([^"]*)"', page.text)
            assert [link for link in links if not link.startswith((f"{PATH}/", "#"))] == []
        assert client.get(f"{PATH}/static/dashboard.css").status_code == 200
        assert client.get(f"{PATH}/streams.json").json()["page"]["items"]
        assert client.get(f"{PATH}/nowhere").status_code == 404
        below = httpx.Client(base_url=f"{address}{PATH}", timeout=60)
        with below:
            done = below.post("/actions/redrive", data=form_of(below, "redrive", stream="orders", cap="1"))
        assert done.status_code == 303
        assert done.headers["location"].startswith(f"{PATH}/")
        assert raw.xlen("penstock-audit") == 2
        with client.stream("GET", f"{PATH}/events") as feed:
            first = next(line for line in feed.iter_lines() if line.startswith("data: "))
        assert json.loads(first.removeprefix("data: "))[-1]["dead_letters"] > 0
        assert "hello" in client.get("/hello").text
