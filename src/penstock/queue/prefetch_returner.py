"""Puts back messages that were taken ahead and that nobody came for, from a thread.

Shared by the async and the sync half: it speaks to Redis over the blocking lane.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from penstock.errors import PenstockError
from penstock.keys import StreamKeys
from penstock.redis.script_runner import ScriptRunner
from penstock.redis.scripts import script
from penstock.redis.settings import ConnectionSettings

logger = logging.getLogger("penstock.queue")
PATIENCE_S = 0.05  # how long a message that was taken ahead waits for its caller
_LONGEST_S = 2.0  # for a command, however long others may take: the next caller waits for this one


class Holder(Protocol):
    """A consumer of the group with a message that nobody came for."""

    consumer: str

    @property
    def ahead_id(self) -> str:
        """The id of that message."""
        ...

    def is_sure(self) -> None:
        """Take note that nothing is pending here."""
        ...


H = TypeVar("H", bound=Holder)


class PrefetchReturner(Generic[H]):
    """A thread that lives as long as messages are taken ahead.

    Guarantees: what nobody comes for is put back with the counts of a message that was never handed out. The
    interpreter waits for it: a program that ends without a word leaves nothing behind that a lease must run out for.
    `abandoned` returns those that hold such a message, which are the thread's then, or None when it may end;
    `put_back` takes them again.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        keys: StreamKeys,
        group: str,
        abandoned: Callable[[], Sequence[H] | None],
        put_back: Callable[[H], None],
    ) -> None:
        self._settings = replace(
            settings,
            socket_timeout_s=min(settings.socket_timeout_s, _LONGEST_S),
            connect_timeout_s=min(settings.connect_timeout_s, _LONGEST_S),
        )
        self._keys, self._group = keys, group
        self._abandoned, self._put_back = abandoned, put_back
        self._script = script("queue/hand_back")

    def start(self) -> None:
        """Begin to look."""
        threading.Thread(target=self._run, name="penstock-returns", daemon=False).start()

    def _run(self) -> None:
        runner = ScriptRunner(self._settings, self._keys.stream)
        try:
            while (abandoned := self._abandoned()) is not None:
                for holder in abandoned:
                    self._return(runner, holder)
                if not abandoned:
                    time.sleep(PATIENCE_S / 2)
        finally:
            runner.close()

    def _return(self, runner: ScriptRunner, holder: H) -> None:
        keys, group = self._keys, self._group
        names = (keys.stream, keys.retries(group), keys.attempts(group))
        try:
            runner.run(self._script, (len(names), *names, group, holder.consumer, holder.ahead_id))
            holder.is_sure()
        except PenstockError as error:
            # It stays in doubt: the next call of the queue looks after it, or close(). From then on the command, if it
            # is still on its way, changes nothing.
            logger.warning("%s was taken ahead and not put back: %s", holder.ahead_id, error)
        except Exception:
            logger.exception("%s was taken ahead and not put back", holder.ahead_id)
        finally:
            self._put_back(holder)
