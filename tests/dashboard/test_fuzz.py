"""Whatever is asked of whichever route, the answer is no 500."""

from __future__ import annotations

import http.client
import random
from contextlib import closing
from urllib.parse import parse_qsl

import pytest
import redis

from penstock.dashboard.actions import ACTIONS
from penstock.dashboard.pages import PAGES
from penstock.dashboard.security import SESSION_COOKIE
from penstock.dashboard.view import View
from penstock.sync import StreamClient
from tests.dashboard.conftest import StartDashboard
from tests.dashboard.test_pages import addresses
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


def _actions(raw: redis.Redis) -> dict[str, dict[str, str]]:
    """Returns for each action what a form sends."""
    pending = {
        "stream": "orders",
        "group": "billing",
        "id": raw.xpending_range("orders", "billing", "-", "+", 1)[0]["message_id"].decode(),
    }
    letter = raw.xrange("orders_dlq", count=1)[0][0].decode()
    schedule, letters = {"queue": "jobs", "name": "nightly"}, {"stream": "orders_dlq", "id": letter, "selected": "1"}
    return {
        "claim": {**pending, "to": "someone"}, "retry": pending, "dead-letter": {**pending, "dead_letters": "orders_dlq"}, "redrive": letters, "purge": letters,
        "redrive-edited": {"stream": "orders_dlq", "id": letter, "value": '{"order": 1}'}, "cancel": {"queue": "jobs", "id": "photo-5"},
        "run-schedule": schedule, "pause-schedule": schedule, "resume-schedule": schedule,
        "release": {"service": "telemetry", "data_stream": "device-0"}, "trim": {"stream": "orders"},
    }  # fmt: skip


def _routes(raw: redis.Redis) -> list[tuple[str, str, dict[str, str]]]:
    """Returns good requests, one for each route: the method, the path and the parameters."""
    pages = {path: dict(parse_qsl(query)) for path, _, query in (each.partition("?") for each in addresses(raw))}
    found = [("GET", path, given) for path, given in pages.items()]
    found += [("GET", f"{path if path != '/' else '/overview'}.json", given) for path, given in pages.items()]
    for action, given in _actions(raw).items():
        found += [("GET", f"/confirm/{action}", given), ("POST", f"/confirm/{action}", given)]
    entry = raw.xrange("orders", count=1)[0][0].decode()
    return [*found, ("GET", "/value", {"stream": "orders", "id": entry}), ("GET", "/login", {})]


def test_every_parameter_of_every_route_takes_a_hostile_value(
    start_dashboard: StartDashboard,
    world: StreamClient,
    raw: redis.Redis,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The value changes with the rotation."""
    client, read, read_all = start_dashboard(allow_actions=True), set[str](), View.all
    csrf = form_of(client, "redrive", stream="orders")["csrf"]
    actions = _actions(raw)
    assert actions.keys() == ACTIONS.keys()

    def recorded(view: View, name: str) -> list[str]:
        read.add(name)
        return read_all(view, name)

    def send(method: str, path: str, given: dict[str, str]) -> int:
        sent = {"data": {**given, "csrf": csrf}} if method == "POST" else {"params": given}
        found = client.request(method, path, **sent)  # type: ignore[arg-type]
        assert found.status_code in {200, 303, 400, 403, 404}, (method, path, given, found.text[-3000:])
        return found.status_code

    monkeypatch.setattr(View, "all", recorded)
    turn = request.config.getoption("--rotation") or 0
    for method, path, given in _routes(raw):
        read.clear()
        assert send(method, path, given) == 200, (method, path, given)
        for name in sorted(read):
            send(method, path, {**given, name: VALUES[turn % len(VALUES)]})
            turn += 1


def test_no_question_makes_a_500(start_dashboard: StartDashboard, world: StreamClient, raw: redis.Redis) -> None:
    client, chance = start_dashboard(allow_actions=True), random.Random(0)
    csrf = str(form_of(client, "redrive", stream="orders")["csrf"])
    dead, actions = raw.xlen("orders_dlq"), [*ACTIONS, "none"]
    for _ in range(200):
        given = {chance.choice(NAMES): chance.choice(VALUES) for _ in range(chance.randrange(5))}
        body = {"content": chance.randbytes(200)} if not chance.randrange(3) else {"data": {**given, "csrf": csrf}}
        headers = {"content-type": "application/x-www-form-urlencoded"}
        found = client.post(f"/confirm/{chance.choice(actions)}", headers=headers, **body)  # type: ignore[arg-type]
        assert found.status_code in {200, 400, 403, 404}, (given, found.text[-3000:])
    assert raw.xlen("orders_dlq") == dead


@pytest.mark.parametrize("token", [None, "a token of 20 letters"], ids=["open", "with a token"])
def test_only_files_of_the_folder_are_served(start_dashboard: StartDashboard, token: str | None) -> None:
    client, chance = start_dashboard(token=token), random.Random(0)
    script = client.get("/static/dashboard.js").content
    parts = (
        "..", ".", "", "%2e%2e", "%2f", "..%5c", "%00", "%ff", "dashboard.js", "vendor", "app.py", "templates",
        "%252e%252e", "x" * 5_000, "%c0%ae", "etc", "passwd", "~",
    )  # fmt: skip
    with closing(http.client.HTTPConnection(client.base_url.host, client.base_url.port)) as connection:
        for _ in range(200):  # httpx would resolve the dots itself
            path = "/static/" + "/".join(chance.choices(parts, k=chance.randrange(1, 6)))
            connection.request("GET", path)
            with connection.getresponse() as found:
                body = found.read()
            assert found.status in {200, 404}, path
            assert found.status == 404 or body == script, path
