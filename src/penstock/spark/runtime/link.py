"""The way from a Spark process to Redis: settings that travel with a task, and one client per process for them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from penstock.dead_letter_limits import DeadLetterLimits
from penstock.errors import ConfigurationError
from penstock.protection import Protection
from penstock.spark.runtime.option_values import Options
from penstock.sync.redis.client import StreamClient

_PREFIX = "redis."
_NUMBERS = {"socket_timeout": float, "socket_connect_timeout": float, "max_connections": int, "pool_timeout": float}
_FLAGS = {"socket_keepalive", "ssl_check_hostname"}
_clients: dict[tuple[int, Link], StreamClient] = {}


@dataclass(frozen=True)
class Link:
    """How to reach Redis. It is pickled into tasks, so it holds no connection; its text shows no secret."""

    url: str = field(repr=False)
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    password_file: str | None = None
    password_env: str | None = None
    protection_file: str | None = None
    dead_letter_limits: DeadLetterLimits = field(default_factory=DeadLetterLimits)

    @classmethod
    def from_options(cls, options: Options) -> Link:
        """Take `url`, options that name files and variables, and `redis.*`, which are the options of StreamClient."""
        url = options.text("url")
        if not url:
            raise ConfigurationError(
                "option url is missing: say where Redis is, for example .option('url', 'redis://localhost:6379')"
            )
        if url.startswith("embedded"):
            raise ConfigurationError(
                "option url: an embedded:// server belongs to one process, and Spark has many; start a server and give "
                "its redis:// or unix:// address"
            )
        settings = tuple(sorted(options.starting_with(_PREFIX).items()))
        files = (options.text("passwordFile"), options.text("passwordEnv"), options.text("protectionFile"))
        link = cls(url, settings, *files)
        link._make()  # says what is wrong now and not in the first task; nothing is connected yet
        return link

    def client(self) -> StreamClient:
        """Return the client of this process; Python workers are reused by tasks, and so is the connection."""
        key = (os.getpid(), self)
        client = _clients.get(key)
        if client is None:
            client = _clients[key] = self._make()
        return client

    def _make(self) -> StreamClient:
        given: dict[str, object] = {"dead_letter_limits": self.dead_letter_limits}
        for name, value in self.settings:
            given[name] = _typed(name, value)
        password = self._password()
        if password is not None:
            given["password"] = password
        if self.protection_file is not None:
            given["protection"] = Protection.from_file(self.protection_file)
        return StreamClient.from_url(self.url, **given)

    def _password(self) -> str | None:
        if self.password_file is not None and self.password_env is not None:
            raise ConfigurationError("give passwordFile or passwordEnv, not both")
        if self.password_file is not None:
            try:
                return Path(self.password_file).read_text(encoding="utf-8").strip()
            except OSError as error:
                raise ConfigurationError(f"option passwordFile: {error}; every node needs the file") from None
        if self.password_env is not None:
            if self.password_env not in os.environ:
                raise ConfigurationError(
                    f"option passwordEnv: {self.password_env} is not set in this process; for executors set "
                    f"spark.executorEnv.{self.password_env}"
                )
            return os.environ[self.password_env]
        return None


def _typed(name: str, value: str) -> object:
    if name in _NUMBERS:
        try:
            return _NUMBERS[name](value)
        except ValueError:
            raise ConfigurationError(f"option redis.{name}={value!r} must be a number") from None
    if name in _FLAGS:
        return value.strip().lower() == "true"
    return value
