"""Finds the server that serves a key, blocking half: the twin of aio_locator.py for threads, method by method."""

from __future__ import annotations

import threading
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

from penstock.errors import ConnectionFailed
from penstock.redis.blocking import Connection, connect
from penstock.redis.master_watch import MasterReplaced, MasterWatch, Routes
from penstock.redis.settings import ConnectionSettings, Host
from penstock.redis.topology import Masters


class _Attempt:
    """A connection that a thread opens, because connecting cannot be interrupted."""

    def __init__(self, settings: ConnectionSettings, host: Host) -> None:
        self._settings, self._host = settings, host
        self._made: Future[Connection] = Future()

    @property
    def is_open(self) -> bool:
        """Whether it is under way."""
        return not self._made.done()

    def result(self) -> Connection:
        """Return the connection."""
        threading.Thread(target=self._connect, name="penstock-connect", daemon=True).start()
        try:
            return self._made.result()
        except BaseException:
            self.abort_from_outside()
            raise

    def _connect(self) -> None:
        try:
            connection = connect(self._settings, self._host)
        except BaseException as error:  # raised by result()
            with suppress(InvalidStateError):
                self._made.set_exception(error)
            return
        try:
            self._made.set_result(connection)
        except InvalidStateError:
            connection.close()  # no caller is waiting

    def abort_from_outside(self) -> None:
        """Stop waiting for it."""
        with suppress(InvalidStateError):
            self._made.set_exception(MasterReplaced(self._host))


class Locator(Routes):
    """Finds the server that serves a key, and opens connections to it."""

    def locate(self, key: str) -> Host:
        """Return host and port of the server for the key."""
        if self._watch is None:
            return self._place
        return self._owner(self._fresh(self._watch) or self._ask(self._watch), key)

    def masters(self) -> list[Host]:
        """Return every server that serves keys: one, or all masters of a cluster."""
        if self._watch is None:
            return [self._place]
        return sorted((self._fresh(self._watch) or self._ask(self._watch)).hosts)

    def _ask(self, watch: MasterWatch) -> Masters:
        refreshed, lookup = self._refreshed, watch.ask()
        try:
            masters = lookup.result(self._settings.connect_timeout_s)
        except TimeoutError as error:
            raise watch.directory.not_found([]) from error
        finally:
            lookup.cancel()
        self._answered = refreshed
        return masters

    def connect(self, host: Host) -> Connection:
        """Open a connection to the server; it is aborted when another server replaces that master."""
        try:
            if self._watch is None:
                return connect(self._settings, host)
            return self._connect_to_master(host, self._watch)
        except ConnectionFailed:
            self.refresh()  # another server may have the key by now
            raise

    def _connect_to_master(self, host: Host, watch: MasterWatch) -> Connection:
        attempt = _Attempt(self._settings, host)
        watch.abort_when_replaced(host, attempt)
        connection = attempt.result()
        try:
            watch.abort_when_replaced(host, connection)
        except ConnectionFailed:
            connection.abort()
            raise
        return connection
