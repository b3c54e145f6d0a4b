"""Pages of others, texts of messages and people without the token get nothing out of the dashboard, and do nothing by it."""

from __future__ import annotations

import json
import pickle
import re
from html import unescape
from urllib.parse import quote

import httpx
import pytest
import redis

from penstock.dashboard.actions import ACTIONS
from penstock.dashboard.security import CSRF_COOKIE, SESSION_COOKIE, Access, host_of
from penstock.sync import StreamClient
from tests.dashboard.conftest import StartDashboard

pytestmark = pytest.mark.usefixtures("default_server")
TOKEN = "a-token-of-the-tests"
HIDDEN = re.compile(r'<input type="hidden" name="(\w+)" value="([^"]*)">')


class Bomb:
    """Does harm when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("a pickle was decoded",))


def form_of(client: httpx.Client, action: str, **given: str | list[str]) -> dict[str, str | list[str]]:
    """Asks for a confirmation as a browser does, and returns the form that it was given."""
    page = client.get(f"/confirm/{action}", params=given)
    assert page.status_code == 200, page.text
    found = re.search(r'name="csrf" value="(\w+)"', page.text)
    assert found
    fixed = dict(re.findall(r'<input type="hidden" name="(until)" value="([^"]*)">', page.text))
    return {**given, "csrf": found[1], **fixed}


# --- who is let in --------------------------------------------------------------------------------


def test_names_that_others_point_at_this_machine_are_refused(start_dashboard: StartDashboard) -> None:
    client = start_dashboard()
    port = client.base_url.port
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example", "", "a b",
                 "192.168.0.1", "evil.example\\@localhost", "localhost@evil.example"):  # fmt: skip
        for path in ("/", "/streams.json", "/events", "/static/dashboard.js", "/login"):
            assert client.get(path, headers={"host": host}).status_code in {400, 421}, (host, path)
    for host in ("localhost", f"localhost:{port}", "LOCALHOST", "127.0.0.1", "[::1]:80", "penstock.localhost"):
        assert client.get("/streams.json", headers={"host": host}).status_code == 200, host


def test_a_host_that_was_allowed_is_answered(start_dashboard: StartDashboard) -> None:
    client = start_dashboard(allowed_hosts=["ops.example"])
    assert client.get("/streams.json", headers={"host": "ops.example:8443"}).status_code == 200
    assert client.get("/streams.json", headers={"host": "example"}).status_code == 421


def test_with_a_token_an_address_is_enough_as_a_host() -> None:
    assert Access.of(TOKEN, (), allow_actions=False).is_allowed_host("192.168.0.1:9809")
    assert not Access.of(None, (), allow_actions=False).is_allowed_host("192.168.0.1:9809")
    assert not Access.of(TOKEN, (), allow_actions=False).is_allowed_host("evil.example")


@pytest.mark.parametrize("header", ["", "a/b", "a?b", "u@h", "h:x", "[::1", "h:99999999", "a#b"])
def test_a_malformed_host_is_none(header: str) -> None:
    assert host_of(header) is None


def test_without_the_token_nothing_is_shown(start_dashboard: StartDashboard, world: StreamClient) -> None:
    client = start_dashboard(token=TOKEN, allow_actions=True)
    for path in ("/", "/streams", "/stream?name=orders", "/confirm/redrive?stream=orders", "/audit"):
        page = client.get(path)
        assert page.status_code == 303, path
        assert page.headers["location"].startswith("/login?next=")
    for path in ("/streams.json", "/events", "/value?stream=orders&id=1-1"):
        assert client.get(path).status_code == 401, path
    assert client.post("/actions/redrive", data={"stream": "orders"}).status_code == 401
    assert "orders" not in client.get("/login").text


def _asked(client: httpx.Client, headers: dict[str, str]) -> int:
    """Returns the status of a request with these headers, and without the cookies of the client."""
    return httpx.get(f"{client.base_url}/streams.json", headers=headers, timeout=60).status_code


def test_the_token_opens_a_session_and_only_it(start_dashboard: StartDashboard) -> None:
    client = start_dashboard(token=TOKEN)
    assert client.post("/login", data={"token": "another-token-of-mine"}).status_code == 403
    assert client.get("/login", params={"token": TOKEN[:-1]}).status_code == 403
    opened = client.post("/login", data={"token": TOKEN, "next": "/streams"})
    assert (opened.status_code, opened.headers["location"]) == (303, "/streams")
    [cookie] = [each for each in opened.headers.get_list("set-cookie") if each.startswith(SESSION_COOKIE)]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert TOKEN not in cookie
    assert client.get("/streams").status_code == 200
    assert _asked(client, {"authorization": f"Bearer {TOKEN}"}) == 200
    for wrong in (f"Bearer {TOKEN}x", "Bearer", f"Basic {TOKEN}"):
        assert _asked(client, {"authorization": wrong}) == 401
    for wrong in ("0" * 64, "", "é"):
        cookies = {"cookie": f"{SESSION_COOKIE}={quote(wrong)}"}
        assert _asked(client, cookies) == 401


def test_a_token_that_can_be_guessed_is_refused() -> None:
    with pytest.raises(ValueError, match="16 characters"):
        Access.of("secret", (), allow_actions=False)


@pytest.mark.parametrize(
    "target", ["//evil.example/", "https://evil.example/", "/\\evil.example", "\\\\evil", "javascript:alert(1)"]
)
def test_nobody_is_sent_to_another_site(start_dashboard: StartDashboard, target: str) -> None:
    client = start_dashboard(token=TOKEN)
    assert client.post("/login", data={"token": TOKEN, "next": target}).headers["location"] == "/"


# --- what may be changed --------------------------------------------------------------------------


def test_a_dashboard_is_read_only_unless_actions_are_allowed(
    start_dashboard: StartDashboard, world: StreamClient, raw: redis.Redis
) -> None:
    client = start_dashboard()
    before = raw.xlen("orders_dlq")
    for action in ACTIONS:
        assert client.get(f"/confirm/{action}", params={"stream": "orders"}).status_code == 403
        assert client.post(f"/actions/{action}", data={"stream": "orders"}).status_code == 403
    assert "/confirm/" not in client.get("/dead-letters?stream=orders").text
    assert raw.xlen("orders_dlq") == before


def test_forms_that_are_not_ours_do_nothing(
    start_dashboard: StartDashboard, world: StreamClient, raw: redis.Redis
) -> None:
    client = start_dashboard(allow_actions=True)
    before = raw.xlen("orders_dlq")
    form = form_of(client, "purge", stream="orders")
    address = str(client.base_url).rstrip("/")
    for headers in (
        {"origin": "https://evil.example"}, {"origin": "null"}, {"origin": address.replace("127.0.0.1", "localhost")},
        {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site", "origin": address},
    ):  # fmt: skip
        assert client.post("/actions/purge", data=form, headers=headers).status_code == 403, headers
    for changed in ({"csrf": ""}, {"csrf": "0" * 64}, {"csrf": "é"}):
        assert client.post("/actions/purge", data={**form, **changed}).status_code == 403
    del form["csrf"]
    assert client.post("/actions/purge", data=form).status_code == 403
    with httpx.Client(base_url=address, cookies={CSRF_COOKIE: "chosen-by-an-attacker"}, timeout=60) as stranger:
        assert stranger.post("/actions/purge", data=form_of(client, "purge", stream="orders")).status_code == 403
    assert client.get("/actions/purge", params={"stream": "orders"}).status_code == 405
    assert client.request("DELETE", "/streams").status_code == 405
    assert raw.xlen("orders_dlq") == before
    assert not raw.exists("penstock-audit")


def test_an_action_is_recorded_before_and_after_it(
    start_dashboard: StartDashboard, world: StreamClient, raw: redis.Redis
) -> None:
    client = start_dashboard(allow_actions=True, identify=lambda _: "ada")
    form = form_of(client, "redrive", stream="orders", cap="3")
    done = client.post("/actions/redrive", data={**form, "back": "/dead-letters?stream=orders"})
    assert done.status_code == 303
    records = [json.loads(fields[b"data"]) for _, fields in raw.xrange("penstock-audit")]
    assert [(each["event"], each["action"], each["who"]) for each in records] == [
        ("requested", "redrive", "ada"), ("done", "redrive", "ada"),
    ]  # fmt: skip
    assert records[0]["arguments"] == {"stream": ["orders"], "cap": ["3"], "until": [form["until"]]}
    assert "3 dead letters of orders redriven." in client.get(done.headers["location"]).text
    failed = client.post("/actions/redrive", data=form_of(client, "redrive", stream="orders") | {"to": "\0"})
    assert failed.status_code == 400
    assert json.loads(raw.xrevrange("penstock-audit", count=1)[0][1][b"data"])["event"] == "failed"


def test_each_action_does_what_its_confirmation_says(
    start_dashboard: StartDashboard, world: StreamClient, raw: redis.Redis
) -> None:
    client = start_dashboard(allow_actions=True)
    ids = [row["message_id"].decode() for row in raw.xpending_range("orders", "billing", "-", "+", 3)]
    letters = [entry_id.decode() for entry_id, _ in raw.xrange("orders_dlq", count=3)]
    chosen: dict[str, dict[str, str | list[str]]] = {
        "claim": {"stream": "orders", "group": "billing", "id": ids[:1], "to": "other", "idle": ""},
        "retry": {"stream": "orders", "group": "billing", "id": ids[1:2], "idle": ""},
        "dead-letter": {"stream": "orders", "group": "billing", "id": ids[2:], "dead_letters": "orders_dlq"},
        "redrive": {"stream": "orders", "id": letters[:1]},
        "redrive-edited": {"stream": "orders", "id": letters[1], "value": '{"order": 1}'},
        "purge": {"stream": "orders", "id": letters[2:]},
        "cancel": {"queue": "jobs", "id": "photo-5"},
        "run-schedule": {"queue": "jobs", "name": "nightly"},
        "pause-schedule": {"queue": "jobs", "name": "nightly"},
        "resume-schedule": {"queue": "jobs", "name": "weekly"},
        "release": {"service": "telemetry", "data_stream": "device-0"},
        "trim": {"stream": "emails"},
    }
    assert chosen.keys() == ACTIONS.keys()
    for action, given in chosen.items():
        done = client.post(f"/actions/{action}", data=form_of(client, action, **given))
        assert done.status_code == 303, (action, done.text)
    records = [json.loads(fields[b"data"]) for _, fields in raw.xrange("penstock-audit")]
    assert [(each["event"], each["action"]) for each in records] == [
        (event, action) for action in chosen for event in ("requested", "done")
    ]
    told = [each["text"] for each in records]
    assert "1 message of 1 claimed for other in group billing on orders." in told
    assert "1 message of 1 due now in group billing on orders." in told
    assert "1 message of 1 moved from orders to orders_dlq." in told
    assert "1 dead letter of orders deleted." in told
    assert "Task photo-5 of jobs is cancelled." in told
    assert "Schedule nightly of jobs is paused." in told
    assert "Schedule weekly of jobs is resumed." in told
    assert raw.hkeys("{jobs}:paused") == [b"nightly"]
    assert "Data stream device-0 of telemetry released by redis-consumer-reader-1." in told


def test_an_edited_payload_is_confirmed_before_it_is_redriven(
    start_dashboard: StartDashboard, world: StreamClient, raw: redis.Redis
) -> None:
    client = start_dashboard(allow_actions=True)
    letter, waiting = raw.xrange("orders_dlq", count=1)[0][0].decode(), raw.xlen("orders")
    page = client.get("/dead-letter", params={"stream": "orders", "id": letter}).text
    assert 'method="post" action="/confirm/redrive-edited"' in page
    assert "/actions/" not in page
    given = {"stream": "orders", "id": letter, "value": json.dumps({"order": "9" * 100_000})}
    assert client.post("/confirm/redrive-edited", data={**given, "csrf": "guessed"}).status_code == 403
    form = {**given, "csrf": re.findall(r'name="csrf" value="(\w+)"', page)[0]}
    assert client.post("/confirm/redrive-edited", data=form, headers={"origin": "https://evil.example"}).is_error
    question = client.post("/confirm/redrive-edited", data=form)
    assert (question.status_code, raw.xlen("orders")) == (200, waiting)
    assert f"Dead letter {letter} of orders is redriven" in question.text
    kept = {name: unescape(value) for name, value in HIDDEN.findall(question.text)}
    assert kept == {**form, "back": "/"}
    assert client.post("/actions/redrive-edited", data=kept).status_code == 303
    [(_, fields)] = raw.xrevrange("orders", count=1)
    assert json.loads(fields[b"data"]) == json.loads(given["value"])


def test_what_arrives_after_the_question_is_not_deleted(
    start_dashboard: StartDashboard, world: StreamClient, raw: redis.Redis
) -> None:
    client, before = start_dashboard(allow_actions=True), raw.xlen("orders_dlq")
    form = form_of(client, "purge", stream="orders", reason="fatal")
    newest_ms = int(raw.xrevrange("orders_dlq", count=1)[0][0].partition(b"-")[0])
    later = raw.xadd("orders_dlq", {"data": "1", "dlq_reason": "fatal"}, id=f"{newest_ms + 1}-0")
    assert client.post("/actions/purge", data=form | {"cap": "1000"}).status_code == 303
    assert raw.xlen("orders_dlq") < before
    assert raw.xrange("orders_dlq", later, later)


@pytest.mark.parametrize("action", ["redrive", "purge"])
def test_a_selection_of_nothing_is_not_everything(
    start_dashboard: StartDashboard, world: StreamClient, action: str
) -> None:
    client = start_dashboard(allow_actions=True)
    assert 'name="selected"' in client.get("/dead-letters?stream=orders").text
    answer = client.get(f"/confirm/{action}?stream=orders&selected=yes")
    assert (answer.status_code, "Select at least one" in answer.text) == (400, True)


# --- what messages may hold -----------------------------------------------------------------------


def test_a_payload_that_is_nested_without_end_is_refused(start_dashboard: StartDashboard, world: StreamClient) -> None:
    client = start_dashboard(allow_actions=True)
    letter = client.get("/dead-letters.json", params={"stream": "orders"}).json()["page"]["items"][0]["id"]
    form = form_of(client, "redrive-edited", stream="orders", id=letter)
    found = client.post("/actions/redrive-edited", data={**form, "value": "[" * 100_000})
    assert (found.status_code, "The payload is not JSON" in found.text) == (400, True)


def test_every_response_forbids_inline_scripts_framing_and_sniffing(start_dashboard: StartDashboard) -> None:
    client = start_dashboard()
    for path in ("/", "/streams.json", "/static/dashboard.js", "/nowhere", "/login"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers
    page = client.get("/").text
    assert "<style" not in page
    assert not re.findall(r"\son\w+=|\sstyle=|<script(?! defer src=)", page)


def test_files_beside_the_static_ones_are_not_served(start_dashboard: StartDashboard) -> None:
    client = start_dashboard()
    for path in ("../app.py", "..%2fapp.py", "%2e%2e/app.py", "..%5capp.py", "vendor/../../app.py", "/etc/passwd", "%00",
                 "....//app.py", "vendor"):  # fmt: skip
        address = httpx.URL(f"{client.base_url}/static/", raw_path=f"/static/{path}".encode())
        assert client.get(address).status_code in {404, 400}, path


HOSTILE = [
    b"<script>alert(1)</script>", b"\x1b]52;c;aGk=\x07\x1b[2J", b"\xff\xfe\x00\x80", "\u202egnp.exe\u202c".encode(),
    pickle.dumps(Bomb()), b"\x80\x04.", b'{"a": "\\ud800"}', b"\xc1", b"[" * 5000, b"9" * 6000, b'{"a": 1e999}', b"",
    b"</textarea><script>alert(1)</script>", b"{{ 7 * 7 }}{% for %}",
]  # fmt: skip


def test_whatever_a_message_holds_is_shown_harmlessly(
    start_dashboard: StartDashboard, raw: redis.Redis, capfd: pytest.CaptureFixture[str]
) -> None:
    for value in HOSTILE:
        raw.xadd(
            "hostile",
            {b"data": value, value or b"empty": value, b"key": value, b"headers": value, b"message_id": value},
        )
        raw.xadd("hostile_dlq", {b"data": value, b"dlq_reason": value, b"dlq_error": value, b"dlq_traceback": value,
                                 b"dlq_source": value, b"dlq_attempts": value, b"dlq_time": value})  # fmt: skip
    client = start_dashboard(allow_actions=True)
    paths = ["/stream?name=hostile&limit=200", "/stream?name=hostile&show=raw", "/dead-letters?stream=hostile_dlq"]
    paths += [f"/entry?stream=hostile&id={entry_id.decode()}" for entry_id, _ in raw.xrange("hostile")]
    paths += [f"/dead-letter?stream=hostile_dlq&id={entry_id.decode()}" for entry_id, _ in raw.xrange("hostile_dlq")]
    for path in paths:
        page = client.get(path)
        assert page.status_code == 200, (path, page.text[:2000])
        assert "<script>" not in page.text
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", page.text), path
        name, _, query = path.partition("?")
        assert client.get(f"{name}.json?{query}").status_code == 200
    assert "a pickle was decoded" not in "".join(capfd.readouterr())


def test_of_a_value_of_ten_megabytes_the_beginning_is_shown_and_the_whole_can_be_had(
    start_dashboard: StartDashboard, raw: redis.Redis
) -> None:
    value = b"x" * (10 << 20)
    entry_id = raw.xadd("big", {"data": value}).decode()
    client = start_dashboard()
    for path in ("/stream?name=big", f"/entry?stream=big&id={entry_id}"):
        assert len(client.get(path).content) < 1 << 20
    whole = client.get("/value", params={"stream": "big", "id": entry_id})
    assert whole.content == value
    assert whole.headers["content-type"] == "application/octet-stream"
    assert whole.headers["content-disposition"].startswith("attachment")


def test_names_with_anything_in_them_can_be_opened(start_dashboard: StartDashboard, raw: redis.Redis) -> None:
    client = start_dashboard()
    for name in ("../../etc/passwd", "a b+c&d=e#f?g", "naïve/日本", '"><b>', "{{7*7}}", "x.json", "%2e%2e", "\x1b[31m"):
        raw.xadd(name, {"data": "1"})
        raw.xgroup_create(name, name, "0")
        assert client.get("/stream", params={"name": name}).status_code == 200, name
        assert client.get("/group", params={"stream": name, "group": name}).status_code == 200, name
    listed = client.get("/streams").text
    assert "\x1b" not in listed
    assert "<b>" not in listed.partition("<main")[2]


def test_a_form_that_is_too_large_is_refused(start_dashboard: StartDashboard) -> None:
    client = start_dashboard(allow_actions=True)
    assert client.post("/actions/purge", content=b"a=" + b"x" * (9 << 20)).status_code == 413
    assert client.post("/actions/purge", content="&".join(f"a{i}=1" for i in range(3_000))).status_code == 400
    assert client.post("/actions/purge", content=b"\xff\xfe").status_code == 400
