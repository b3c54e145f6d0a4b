"""The files of the guide for web applications are what they say: they are run in processes of their own, as printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

from penstock.redis.embedded import EmbeddedServer
from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs/how-to/web-application.md"
AWAY = "redis://127.0.0.1:1"
# What the reader of the part about Django has already.
DJANGO = {
    "shop/__init__.py": "",
    "shop/settings.py": """
SECRET_KEY = "of the tests"
INSTALLED_APPS = ["shop"]
DATABASES = {"default": {
    "ENGINE": "django.db.backends.sqlite3", "NAME": "shop.sqlite3",
    "OPTIONS": {"transaction_mode": "IMMEDIATE"},  # two threads that write wait for each other
}}
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
ROOT_URLCONF = "shop.urls"
ALLOWED_HOSTS = ["testserver"]
""",
    "shop/urls.py": """
from django.urls import path
from shop.views import buy
urlpatterns = [path("buy", buy)]
""",
    "shop/models.py": """
from django.db import models


class Order(models.Model):
    article = models.CharField(max_length=20)
    is_shipped = models.BooleanField(default=False)
""",
}


class Reader:
    """Somebody who has written the files of the page into a folder and runs them there."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self._url = folder, url
        self.files = {block.file: block.text for block in blocks(PAGE) if block.file}

    def write(self, *names: str, url: str | None = None) -> None:
        for name in names:
            path = self._folder / name
            path.parent.mkdir(exist_ok=True)
            text = DJANGO[name] if name in DJANGO else self.files[name]
            path.write_text(text.replace("redis://localhost:6379", url or self._url))

    def run(self, *words: str, **environment: str) -> str:
        """Runs a command; returns what it printed."""
        given = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([".", *sys.path]),
            "PENSTOCK_URL": self._url,
            **environment,
        }
        done = subprocess.run(
            words, cwd=self._folder, env=given, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def python(self, source: str, **environment: str) -> Any:
        """Runs a program; returns what it printed, which is JSON."""
        return json.loads(self.run(sys.executable, "-c", source, **environment))

    def penstock(self, *words: str, **environment: str) -> str:
        return self.run(sys.executable, "-m", "penstock", *words, **environment)


@pytest.fixture
def reader(tmp_path: Path, default_server: EmbeddedServer, raw: redis.Redis) -> Reader:
    return Reader(tmp_path, f"redis://127.0.0.1:{default_server.port}")


def test_every_file_of_the_page_is_run_here(reader: Reader) -> None:
    assert set(reader.files) == {
        "invoices.py", "fast.py", "web.py", "shop/views.py", "shop/workers.py", "monitored.py"
    }  # fmt: skip
    assert [block for block in blocks(PAGE) if block.language == "python" and not block.file] == []


CLIENTS = {
    "fast": "from fastapi.testclient import TestClient\nfrom fast import app\nwith TestClient(app) as client:\n",
    "web": "from web import app\nwith app.test_client() as client:\n",
}
ASK = """
    def answer(reply):
        text = reply.get_json if hasattr(reply, "get_json") else reply.json
        return [reply.status_code, text()]
"""


@pytest.mark.parametrize("module", CLIENTS)
def test_a_request_sends_a_task_and_another_has_its_result(reader: Reader, module: str) -> None:
    pytest.importorskip("fastapi" if module == "fast" else "flask")
    reader.write("invoices.py", f"{module}.py")
    program = CLIENTS[module] + ASK
    sent = reader.python(
        f"{program}    answers = [answer(client.post('/orders/7/invoice')) for _ in range(2)]\n"
        "    import json; print(json.dumps(answers))"
    )
    assert sent == [[202, {"task": "invoice-7"}]] * 2
    assert "ended" in reader.penstock("worker", "invoices:handlers", "--queue", "shop", "--burst")
    found = reader.python(
        f"{program}    answers = [answer(client.get('/tasks/invoice-7'))]\n    import json; print(json.dumps(answers))"
    )
    assert found == [[200, {"status": "ok", "data": {"pdf": "invoice-7.pdf"}, "error": None}]]


@pytest.mark.parametrize("module", CLIENTS)
def test_while_redis_is_away_the_answer_is_503(reader: Reader, module: str) -> None:
    pytest.importorskip("fastapi" if module == "fast" else "flask")
    reader.write(f"{module}.py", url=AWAY)
    [[status, _]] = reader.python(
        f"{CLIENTS[module]}{ASK}    answers = [answer(client.post('/orders/7/invoice'))]\n"
        "    import json; print(json.dumps(answers))"
    )
    assert status == 503


def test_a_queue_of_flask_may_be_made_before_a_fork(reader: Reader, raw: redis.Redis) -> None:
    pytest.importorskip("flask")
    reader.write("web.py")
    program = """
import os
from web import app
with app.test_client() as client:
    client.post('/orders/1/invoice')
    child = os.fork()
    client.post(f'/orders/{2 if child else 3}/invoice')
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
print('[]')
"""
    reader.python(program)
    assert sorted(raw.hkeys("{shop}:index")) == [b"invoice-1", b"invoice-2", b"invoice-3"]


BUY = """
import json, django
django.setup()
from django.core.management import call_command
from django.test import Client
from shop.models import Order
call_command("migrate", run_syncdb=True, verbosity=0)
replies = [Client().post("/buy", {"article": article}) for article in ("tea", "rice")]
print(json.dumps([reply.json() for reply in replies]))
"""
ROLLED_BACK = """
import json, django
django.setup()
from django.db import transaction
from django.test import RequestFactory
from shop.views import buy
try:
    with transaction.atomic():
        buy(RequestFactory().post("/buy", {"article": "soap"}))
        raise ValueError
except ValueError:
    print("[]")
"""
SHIPPED = """
import json, django
django.setup()
from shop.models import Order
print(json.dumps(list(Order.objects.order_by("pk").values_list("article", "is_shipped"))))
"""


def test_a_view_of_django_publishes_what_is_committed_and_a_worker_uses_its_models(
    reader: Reader, raw: redis.Redis
) -> None:
    pytest.importorskip("django")
    reader.write(*DJANGO, "shop/views.py", "shop/workers.py")
    settings = {"DJANGO_SETTINGS_MODULE": "shop.settings"}
    assert reader.python(BUY, **settings) == [{"order": 1}, {"order": 2}]
    reader.python(ROLLED_BACK, **settings)
    assert raw.xlen("orders") == 2, "what was rolled back is not published"
    words = ("consume", "shop.workers:ship", "--stream", "orders", "--group", "shipping", "--burst")
    assert "2 done, 0 failed" in reader.penstock(*words, **settings)
    assert reader.python(SHIPPED, **settings) == [["tea", True], ["rice", True]]


SENTRY = """
import json, sys
import sentry_sdk
from sentry_sdk.transport import Transport

events, init = [], sentry_sdk.init


class Kept(Transport):
    def capture_envelope(self, envelope):
        events.extend(item.get_event() for item in envelope.items)


sentry_sdk.init = lambda: init(dsn="http://key@localhost/1", transport=Kept)
from penstock.cli import main
sys.argv = ["penstock", "consume", "monitored:ship", "--stream", "orders", "--group", "shipping", "--burst",
            "--max-deliveries", "2"]
try:
    main()
except SystemExit:
    pass
sentry_sdk.flush()
with open("events.json", "w") as file:
    json.dump(events, file, default=str)
"""


def test_sentry_has_an_event_for_what_is_given_up(reader: Reader, raw: redis.Redis, tmp_path: Path) -> None:
    pytest.importorskip("sentry_sdk")
    reader.write("monitored.py")
    raw.xadd("orders", {"data": '{"order": 7}'})
    reader.run(sys.executable, "-c", SENTRY)
    [event] = json.loads((tmp_path / "events.json").read_text())
    assert event["exception"]["values"][-1]["value"] == "order 7 has no address"
    assert (event["extra"]["stream"], event["extra"]["group"], event["extra"]["attempt"]) == ("orders", "shipping", 2)
    assert [each["level"] for each in event["breadcrumbs"]["values"] if "failed" in each["message"]] == ["warning"]
