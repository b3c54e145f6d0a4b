"""The dashboard works for users with the rights that `penstock acl` prints: a reader looks, an operator acts as well."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest
import redis
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.redis.embedded import EmbeddedServer
from tests.dashboard.conftest import running
from tests.dashboard.test_pages import addresses
from tests.dashboard.test_security import form_of
from tests.dashboard.world import busy_server
from tests.helpers.users import refused

NAMED = ("--stream", "orders", "--stream", "invoices", "--stream", "emails", "--stream", "device-*", "--queue", "jobs",
         "--service", "telemetry")  # fmt: skip
# Asked for in vain: the doctor does without.
OPTIONAL = {"config", "config|get", "acl", "acl|getuser", "acl|whoami", "client", "client|setinfo"}


def missing(server: EmbeddedServer, raw: redis.Redis) -> list[str]:
    """Returns what was refused that somebody needs: dead letters are looked for under names that nobody has."""
    return [
        name
        for name in refused(server)
        if name not in OPTIONAL and (raw.exists(name) or not name.endswith(("_dlq", "::dlq", ".dead")))
    ]


@contextmanager
def dashboard_of(server: EmbeddedServer, raw: redis.Redis, role: str) -> Iterator[httpx.Client]:
    """Serves a dashboard that logs in with the rights that are printed for the role."""
    printed = CliRunner().invoke(app, ["acl", "--role", role, "--user", role, *NAMED, "--url", server.url])
    raw.execute_command(*shlex.split(printed.stdout))
    raw.execute_command("ACL", "SETUSER", role, ">secret")
    raw.execute_command("ACL", "LOG", "RESET")
    url = server.url.replace("redis://", f"redis://{role}:secret@")
    with running(url, allow_actions=True) as address, httpx.Client(base_url=address, timeout=60) as client:
        yield client


@pytest.mark.parametrize("role", ["readonly", "operator"])
def test_every_page_is_shown_with_the_printed_rights(role: str, start_server: Callable[..., EmbeddedServer]) -> None:
    server = start_server(port=0)
    with (
        redis.Redis(unix_socket_path=server.unix_socket) as raw,
        busy_server(server.unix_url, raw),
        dashboard_of(server, raw, role) as client,
    ):
        for address in addresses(raw):
            page = client.get(address)
            assert page.status_code == 200, (address, page.text)
        assert missing(server, raw) == []
        form = form_of(client, "redrive", stream="orders", cap="2")
        done = client.post("/actions/redrive", data=form)
        if role == "operator":
            assert done.status_code == 303, done.text
            assert raw.xlen("penstock-audit") == 2
            assert missing(server, raw) == []
        else:
            assert done.status_code == 403, done.text
            assert not raw.exists("penstock-audit")
