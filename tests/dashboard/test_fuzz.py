"""Whatever is asked of whichever route, the answer is no 500."""

from __future__ import annotations

import random

import pytest
import redis

from penstock.dashboard.actions import ACTIONS
from penstock.dashboard.pages import PAGES
from penstock.dashboard.security import SESSION_COOKIE
from penstock.sync import StreamClient
from tests.dashboard.conftest import StartDashboard
from tests.dashboard.test_security import form_of

pytestmark = pytest.mark.usefixtures("default_server")
NAMES = (
    "name", "stream", "group", "id", "queue", "service", "data_stream", "owner", "consumer", "idle", "from", "to", "text",
    "match", "kind", "state", "cursor", "consumers_cursor", "limit", "order", "show", "reason", "error", "fingerprint", "source", "since",
    "until", "cap", "rate", "value", "dead_letters", "note", "done", "back", "next", "token", "field",
)  # fmt: skip
VALUES = (
    "", "orders", "orders_dlq", "jobs", "telemetry", "emails", "billing", "photo-5", "device-0", "penstock-audit", "0", "1", "-1", "1-1", "0-0",
    "18446744073709551615-18446744073709551615", "99999999999999999999", "1e9", "10m", "2026-13-45", "-", "+", "*", "[", "\\", "?",
    "\0", "\r\n", "\x1b", "\ud7ff", "é" * 300, "x" * 600, "<b>", "../..", "{}", "{x", "nan", "inf", "²", "9" * 5000, "raw", "oldest", "done",
    "queued", "stream", "dead", "1970-01-01", "0001-01-01", "9999-12-31T23:59:59Z", "none", "%", "%00", "null", "[1]",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_no_request_makes_a_500(start_dashboard: StartDashboard, world: StreamClient, seed: int) -> None:
    client, chance = start_dashboard(allow_actions=True), random.Random(seed)
    paths = [page.path for page in PAGES] + [page.json_path for page in PAGES]
    paths += [f"/confirm/{action}" for action in ACTIONS] + ["/value", "/login", "/confirm/none"]
    for _ in range(400):
        path = chance.choice(paths)
        given = [(chance.choice(NAMES), chance.choice(VALUES)) for _ in range(chance.randrange(6))]
        found = client.get(path, params=given, follow_redirects=False)
        assert found.status_code in {200, 303, 400, 403, 404}, (path, given, found.text[-3000:])


def test_the_feed_takes_any_parameters(start_dashboard: StartDashboard, world: StreamClient) -> None:
    client, chance = start_dashboard(), random.Random(0)
    for _ in range(30):
        given = [(chance.choice(NAMES), chance.choice(VALUES)) for _ in range(chance.randrange(6))]
        headers = {"last-event-id": chance.choice(["", "0", "x" * 600, "-1", "9" * 5000])}
        with client.stream("GET", "/events", params=given, headers=headers) as feed:
            assert feed.status_code == 200, given
            assert next(feed.iter_lines()).startswith("event: history")


def test_no_login_makes_a_500_and_none_of_them_lets_in(start_dashboard: StartDashboard, world: StreamClient) -> None:
    client, chance = start_dashboard(token="a token of 20 letters"), random.Random(0)
    for _ in range(200):
        given = {chance.choice(NAMES): chance.choice(VALUES) for _ in range(chance.randrange(5))}
        given.setdefault("token", chance.choice(VALUES))
        form = {"data": given} if chance.randrange(3) else {"content": chance.randbytes(200)}
        kind = chance.choice(
            ["application/x-www-form-urlencoded", "multipart/form-data", "multipart/form-data; boundary=x", "text/x"]
        )
        found = client.post("/login", headers={"content-type": kind}, **form)  # type: ignore[arg-type]
        assert found.status_code in {200, 400, 403}, (given, kind, found.text[-3000:])
        assert SESSION_COOKIE not in client.cookies
    assert client.get("/").status_code == 303
    assert client.post("/login", data={"token": "a token of 20 letters"}).status_code == 303
    assert client.get("/").status_code == 200


def test_no_form_makes_a_500(start_dashboard: StartDashboard, world: StreamClient, raw: redis.Redis) -> None:
    client, chance = start_dashboard(allow_actions=True), random.Random(0)
    csrf = form_of(client, "redrive", stream="orders")["csrf"]
    for _ in range(300):
        action = chance.choice(list(ACTIONS))
        given = {chance.choice(NAMES): chance.choice(VALUES) for _ in range(chance.randrange(1, 7))}
        found = client.post(f"/actions/{action}", data={**given, "csrf": csrf})
        assert found.status_code in {303, 400, 404}, (action, given, found.text[-3000:])
