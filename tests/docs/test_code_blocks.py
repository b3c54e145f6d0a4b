"""Every Python block of the documentation runs.

* The blocks of one page share one namespace and run in their order. Those with a bare `await` share one event loop.
* `redis://localhost:6379` and `port=6379` are replaced by the address of the server under test.
* A consumer whose `run()` is called in a block is stopped as soon as its group has nothing left to do.
* Blocks can be pasted into a Python shell (`python -m asyncio`).
* A block marked `output` is what the Python block before it prints.
"""

from __future__ import annotations

import ast
import asyncio
import codeop
import contextlib
import inspect
import io
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
import redis

import penstock
import penstock.sync
from penstock.redis.embedded import EmbeddedServer
from tests.docs.pages import PAGES, Block, blocks, name

LANGUAGES = {"python", "output", "bash", "text", "mermaid", "toml"}
_LIMIT_S = 60.0


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_says_what_it_is(page: Path) -> None:
    assert {block.language for block in blocks(page)} <= LANGUAGES


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name != "decisions"], ids=name)
def test_the_code_can_be_pasted_into_a_shell(page: Path) -> None:
    for block in blocks(page):
        if block.language == "python" and "class " not in block.text:  # its methods are apart, so it goes into a file
            paste(block, page)


def paste(block: Block, page: Path) -> None:
    """Types a block into a Python shell: a blank line ends a compound statement, and nothing else may follow it."""
    shell = codeop.CommandCompiler()
    shell.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    typed: list[str] = []
    for number, line in enumerate([*block.text.splitlines(), ""]):
        typed.append(line)
        place = "\n" * (block.line + number - len(typed))  # so that an error names the line of the page
        if shell(place + "\n".join(typed), str(page), "single") is not None:
            typed.clear()
    assert not typed


def needs_spark(page: Path) -> bool:
    """Tells whether code of the page needs a session, which the tests of Spark have."""
    return any("penstock.spark" in block.text for block in blocks(page) if block.language == "python")


def is_of_files(page: Path) -> bool:
    """Tells whether the code of the page is files, which are run in processes of their own."""
    return all(block.file for block in blocks(page) if block.language == "python")


_WITH_CODE = [
    page for page in PAGES if "python" in {block.language for block in blocks(page)} and not is_of_files(page)
]


@pytest.mark.parametrize("page", [page for page in _WITH_CODE if not needs_spark(page)], ids=name)
def test_the_code_of_the_page_runs(
    page: Path, default_server: EmbeddedServer, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for consumer in (penstock.StreamConsumer, penstock.sync.StreamConsumer):
        monkeypatch.setattr(consumer, "run", _until_idle(consumer.run, raw))
    check_page(page, default_server)


def check_page(page: Path, server: EmbeddedServer) -> None:
    """Runs the Python blocks of a page and compares what they print."""
    with Reader(page, server) as reader:
        for block, following in itertools.pairwise([*blocks(page), Block("", "", 0)]):
            if block.language == "python":
                printed = reader.execute(block)
                if following.language == "output":
                    assert printed == following.text


class Reader:
    """Somebody who types the blocks of a page into one Python shell, one after the other."""

    def __init__(self, page: Path, server: EmbeddedServer) -> None:
        self._page, self._server = page, server
        self._namespace: dict[str, Any] = {"__name__": "__main__"}

    def __enter__(self) -> Self:
        self._runner = asyncio.Runner()
        return self

    def __exit__(self, *_: object) -> None:
        for value in self._namespace.values():
            if isinstance(value, penstock.StreamClient):
                self._runner.run(value.close())
            elif isinstance(value, penstock.sync.StreamClient):
                value.close()
        self._runner.close()

    def execute(self, block: Block) -> str:
        """Runs a block and returns what it prints."""
        source = block.text.replace("redis://localhost:6379", f"redis://127.0.0.1:{self._server.port}")
        source = source.replace("port=6379", f"port={self._server.port}")
        # Blank lines in front, so that a traceback names the line of the page.
        code = compile(
            "\n" * (block.line - 1) + source, self._page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
        )
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            if code.co_flags & inspect.CO_COROUTINE:
                self._runner.run(eval(code, self._namespace))
            else:
                exec(code, self._namespace)
        return printed.getvalue()


def _until_idle(run: Callable[[Any], Any], raw: redis.Redis) -> Callable[[Any], Any]:
    def run_until_idle(consumer: Any) -> Any:
        watching = _stopping_when_idle(consumer, raw)
        if not inspect.iscoroutinefunction(run):
            with watching:
                return run(consumer)

        async def run_async() -> None:
            with watching:
                await run(consumer)

        return run_async()

    return run_until_idle


@contextlib.contextmanager
def _stopping_when_idle(consumer: Any, raw: redis.Redis) -> Iterator[None]:
    is_over, is_late = threading.Event(), threading.Event()
    key, group = consumer.client.keys(consumer.stream).stream, consumer.config.group

    def watch() -> None:
        deadline = time.monotonic() + _LIMIT_S
        while not is_over.wait(0.05) and not _is_idle(raw, key, group):
            if time.monotonic() > deadline:
                is_late.set()
                break
        consumer.stop()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join(_LIMIT_S)
    assert not is_late.is_set(), f"group {group} of stream {key} still had work after {_LIMIT_S} s"


def _is_idle(raw: redis.Redis, key: str, group: str) -> bool:
    newest = raw.xrevrange(key, count=1)
    info = next((info for info in raw.xinfo_groups(key) if info["name"].decode() == group), None) if newest else None
    return info is not None and info["pending"] == 0 and info["last-delivered-id"] == newest[0][0]
