"""How a Spark process reaches Redis: settings that are pickled into tasks, one client per process, and retries."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from penstock.dead_letter_limits import DeadLetterLimits
from penstock.errors import ConfigurationError, GroupLost, PenstockError, ServerBusy, TransientError
from penstock.protection import Protection
from penstock.redis.retry import pause_s
from penstock.redis.translate import Redirected
from penstock.runtime.threads import pause
from penstock.spark.runtime.option_values import Options
from penstock.sync.redis.client import StreamClient

_PREFIX = "redis."
_NUMBERS = {
    "socket_timeout": float, "socket_connect_timeout": float, "max_connections": int, "pool_timeout": float, "db": int
}  # fmt: skip
_FLAGS = {"socket_keepalive", "ssl_check_hostname"}
_clients: dict[tuple[int, Link], StreamClient] = {}
logger = logging.getLogger("penstock.spark")
T = TypeVar("T")
_rng = random.Random()


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
                "option url is missing: set it to the Redis server, for example .option('url', "
                "'redis://localhost:6379')"
            )
        if url.startswith("embedded"):
            raise ConfigurationError(
                "option url: an embedded:// server belongs to one process, but Spark has many; start a server "
                "and use its redis:// or unix:// address"
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
            raise ConfigurationError("set either passwordFile or passwordEnv, not both")
        if self.password_file is not None:
            try:
                return Path(self.password_file).read_text(encoding="utf-8").strip()
            except OSError as error:
                raise ConfigurationError(f"option passwordFile: {error}; the file must exist on every node") from None
        if self.password_env is not None:
            if self.password_env not in os.environ:
                raise ConfigurationError(
                    f"option passwordEnv: {self.password_env} is not set in this process; for executors, set "
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
        if value.strip().lower() not in ("true", "false"):
            raise ConfigurationError(f"option redis.{name}={value!r} must be true or false")
        return value.strip().lower() == "true"
    return value


class Retries:
    """Counts the failures of one undertaking. A success ends it: the next undertaking has retries of its own."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._failures = 0
        self._until = 0.0

    def wait_or_raise(self, error: PenstockError, what: str) -> None:
        """Wait and return if the step should be retried; raise the error otherwise."""
        if not isinstance(error, TransientError) or isinstance(error, GroupLost):
            raise error
        now = time.monotonic()
        if not self._failures:
            self._until = now + self._timeout_s
            logger.warning("%s failed; retrying for up to %g s: %s", what, self._timeout_s, error)
        elif now >= self._until:
            text = (
                f"{what} failed for {self._timeout_s:g} s, in {self._failures + 1} attempts (option "
                f"retryTimeout): {error}"
            )
            # A redirection is made of the server's words, and of no others.
            kind = ServerBusy if isinstance(error, Redirected) else type(error)
            raise kind(text) from error
        self._failures += 1
        # A slot that is migrating is served elsewhere in a moment; after a longer pause the next one is migrating.
        pause(pause_s(1 if isinstance(error, Redirected) else self._failures, _rng))


def retry(
    step: Callable[[], T],
    timeout_s: float = 60.0,
    what: str = "reading streams",
    is_stopping: Callable[[], bool] = lambda: False,
) -> T:
    """Repeat a step that only reads while Redis is away, restarts, is paused or moves slots, but not for ever.

    It raises the next failure at once if `is_stopping` returns True.
    """
    retries = Retries(timeout_s)
    while True:
        try:
            return step()
        except TransientError as error:
            if is_stopping():
                raise
            retries.wait_or_raise(error, what)
