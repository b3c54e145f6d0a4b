"""A terminal with a shell or a Python in it, in which a test types as a person would."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.spark.readers import Reader

_ROWS, _COLUMNS = 50, 200
_TAIL = 4_000
_PATIENCE_S = 600.0  # a command may start several Javas, on cores that are busy with other tests
_QUESTION = re.compile(r"\[y/N\]:? *\Z")
_CTRL_C, _CTRL_D = "\x03", "\x04"


class Terminal:
    """A program with a pseudo-terminal of its own; `wait()` looks at what came since the last line was typed."""

    def __init__(self, command: Sequence[str], place: Path, env: Mapping[str, str], reader: Reader) -> None:
        self._text = ""
        self._from = 0
        self._is_over = False
        self._changed = threading.Condition()
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
        terminal = os.ttyname(slave)
        reader.own(Path(terminal))
        # The first terminal that the leader of a session opens is the one whose Ctrl-C becomes a signal for it.
        self._process = subprocess.Popen(
            ["sh", "-c", 'exec "$@" <>"$0" >&0 2>&0', terminal, *command],
            stdin=subprocess.DEVNULL,
            cwd=place,
            env=dict(env),
            start_new_session=True,
            **reader.identity,
        )
        self._slave: int | None = slave  # until the program has opened it, which it has when it speaks
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Press Ctrl-D and wait for the end; what does not end is killed, and what it has left behind as well."""
        with suppress(OSError):  # it has ended
            self._send(_CTRL_D)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(30.0)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30.0)
        self._thread.join(10.0)
        os.close(self._master)

    def type(self, line: str) -> None:
        """Type a line, and Enter."""
        with self._changed:
            self._from = len(self._text)
        self._send(line + "\n")

    def ctrl_c(self) -> None:
        """Press Ctrl-C."""
        self._send(_CTRL_C)

    def wait(self, pattern: str, timeout_s: float = _PATIENCE_S) -> re.Match[str]:
        """Wait until the pattern matches; a question on the way is answered with yes."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                if found := re.search(pattern, self.said(), re.MULTILINE):
                    return found
                if _QUESTION.search(self.said()):
                    self._text += "y\n"  # the echo comes after it, and asks nothing
                    self._send("y\n")
                if self._is_over:
                    raise AssertionError(f"it ended before {pattern!r}:\n{self.said()[-_TAIL:]}")
                if time.monotonic() >= deadline:
                    raise AssertionError(f"no {pattern!r} in {timeout_s} s:\n{self.said()[-_TAIL:]}")
                self._changed.wait(max(0.0, deadline - time.monotonic()))

    def said(self) -> str:
        """Return what came since the last line was typed, as it looks: a bar that was painted over is gone."""
        with self._changed:
            came = self._text[self._from :].replace("\r\n", "\n")
        return "\n".join(line.rpartition("\r")[2] for line in came.split("\n"))

    def _send(self, text: str) -> None:
        os.write(self._master, text.encode())

    def _read(self) -> None:
        while True:
            try:
                some = os.read(self._master, 65_536)
            except OSError:  # the last program with this terminal has ended
                some = b""
            if self._slave is not None:
                os.close(self._slave)
                self._slave = None
            with self._changed:
                self._text += some.decode(errors="replace")
                self._is_over = not some
                self._changed.notify_all()
            if not some:
                return


class Shell(Terminal):
    """A bash; its prompt shows the code that the last command ended with."""

    def __init__(self, place: Path, env: Mapping[str, str], reader: Reader) -> None:
        prompt = {"PS1": "[code $?]> ", "PS2": "", "HISTFILE": "/dev/null", "TERM": "dumb"}
        super().__init__(["bash", "--norc", "--noprofile", "--noediting", "-i"], place, {**env, **prompt}, reader)
        self.wait(_PROMPT)

    def run(self, command: str, until: str | None = None) -> str:
        """Run a command and return what it prints; with `until`, press Ctrl-C when a line matches.

        Raises:
            AssertionError: its exit code is not 0.

        """
        self.type(command)
        if until is not None:
            self.wait(f"(?:{until})|{_PROMPT}")
            assert not re.search(_PROMPT, self.said()), f"it ended by itself:\n{self.said()[-_TAIL:]}"
            self.ctrl_c()
        code = self.wait(_PROMPT)["code"]
        assert code == "0", f"exit code {code}:\n{self.said()[-_TAIL:]}"
        return self.said()


class PythonShell(Terminal):
    """The Python that `python` starts."""

    def __init__(self, place: Path, env: Mapping[str, str], reader: Reader, *, is_async: bool = False) -> None:
        command = ["python", "-m", "asyncio"] if is_async else ["python"]
        plain = {"TERM": "dumb", "PYTHON_BASIC_REPL": "1"}
        super().__init__(["bash", "-c", f"exec {' '.join(command)}"], place, {**env, **plain}, reader)
        self.wait(r">>> \Z")
        self.type(_PROMPTS)
        self.wait(_READY)

    def run(self, block: str) -> str:
        """Type a block, line by line, with Enter at its end, and return what it prints.

        Raises:
            AssertionError: it raises.

        """
        printed = ""
        for line in [*block.splitlines(), ""]:
            self.type(line)
            self.wait(_READY)
            printed += re.sub(_READY, "", self.said())
            assert not re.search(r"^  File \"<", self.said(), re.MULTILINE), self.said()[-_TAIL:]
        return printed


_PROMPT = r"\[code (?P<code>\d+)\]> "  # behind it may come what programs in the background say
_PROMPTS = "import sys; sys.ps1, sys.ps2 = '[' + 'ready]> ', '[' + 'more]> '"
_READY = r"\[(ready|more)\]> "
