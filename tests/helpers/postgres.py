"""A PostgreSQL server of the tests' own, on a free port, never as root."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

import psycopg

from penstock.redis.embedded import LOOPBACK, free_port
from penstock.testing import ServerMissing

_PATIENCE_S = 60.0


class PostgresServer:
    """A server process that can be stopped, killed, frozen and started again on the same data."""

    def __init__(self) -> None:
        self._bin = find_binaries()
        self.port = free_port()
        self._home = Path(tempfile.mkdtemp(prefix="penstock-pg-", dir="/tmp"))
        self._user = _unprivileged_user()
        if self._user is not None:
            os.chown(self._home, self._user.pw_uid, self._user.pw_gid)
        self._process: subprocess.Popen[bytes] | None = None
        self._run(
            "initdb", "-D", str(self._data), "-U", "penstock", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"
        )

    @property
    def _data(self) -> Path:
        return self._home / "data"

    @property
    def dsn(self) -> str:
        return f"postgresql://penstock@{LOOPBACK}:{self.port}/postgres"

    def dsn_through(self, port: int) -> str:
        return self.dsn.replace(f":{self.port}/", f":{port}/")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self._home, ignore_errors=True)

    def start(self) -> Self:
        if self._process is None:
            settings = {
                "listen_addresses": LOOPBACK,
                "port": str(self.port),
                "unix_socket_directories": str(self._home),
                "fsync": "off",  # the tests kill processes, not machines
                "shared_buffers": "16MB",
                "max_connections": "40",
                "autovacuum": "off",  # its transactions count like those of a test
            }
            words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
            self._process = self._popen("postgres", "-D", str(self._data), *words)
            self._wait_until_it_answers()
        return self

    def stop(self) -> None:
        """Ends the server in order, hanging up on its clients."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Ends the server as a crash does; its children go when they notice."""
        self._end(signal.SIGQUIT)

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []

    def asks_for_password(self, user: str) -> None:
        rules = self._data / "pg_hba.conf"
        rules.write_text(f"host all {user} all scram-sha-256\n{rules.read_text()}")
        self.stop()
        self.start()

    def _end(self, sign: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(sign)
            self._process.wait(_PATIENCE_S)
            self._process = None

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                psycopg.connect(self.dsn, connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                assert self._process is not None
                if self._process.poll() is not None or time.monotonic() > deadline:
                    log = (self._home / "log").read_text()[-2000:]
                    raise AssertionError(f"PostgreSQL did not start: {log}") from None
                time.sleep(0.05)

    def _popen(self, program: str, *words: str) -> subprocess.Popen[bytes]:
        who = {} if self._user is None else {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}
        with (self._home / "log").open("ab") as log:
            return subprocess.Popen(
                [self._bin / program, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._home, **who
            )

    def _run(self, program: str, *words: str) -> None:
        if self._popen(program, *words).wait(120) != 0:
            raise AssertionError(f"{program} failed: {(self._home / 'log').read_text()[-2000:]}")


REFUSED_LOGINS = {
    "wrong password": ("ann:wrong@{}/postgres", "password authentication failed"),
    "no password": ("ann@{}/postgres", "no password supplied"),
    "no such user": ("nobody@{}/postgres", 'role "nobody" does not exist'),
    "no such database": ("penstock@{}/nowhere", 'database "nowhere" does not exist'),
    "may not log in": ("idle@{}/postgres", "is not permitted to log in"),
    "no encryption": ("penstock@{}/postgres?sslmode=require", "does not support SSL"),
}


def refused_login(server: PostgresServer, place: str) -> tuple[str, str]:
    """Returns a connection string that the server refuses, and what it says."""
    known = {name for (name,) in server.execute("SELECT rolname FROM pg_roles")}
    if "ann" not in known:
        server.execute("CREATE ROLE ann LOGIN PASSWORD 'right'")
        server.execute("CREATE ROLE idle NOLOGIN")
        server.asks_for_password("ann")
    dsn, why = REFUSED_LOGINS[place]
    return f"postgresql://{dsn.format(f'{LOOPBACK}:{server.port}')}", why


def find_binaries() -> Path:
    """Returns the folder of initdb and postgres: the newest of Debian's, or where PATH finds them."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    if found:
        return found[-1].parent
    if on_path := shutil.which("initdb"):
        return Path(on_path).resolve().parent
    raise ServerMissing("PostgreSQL is not installed: apt-get install postgresql")


def _unprivileged_user() -> pwd.struct_passwd | None:
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise ServerMissing("PostgreSQL does not run as root, and there is no user postgres or nobody")
