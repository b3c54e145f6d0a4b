"""The tutorial and the how-to guides about Spark run as printed, in a terminal, by a user without the rights of root.

* Each page begins in an empty folder. What a reader of the page has already is made first: `_SHOPS` says what.
* A block whose first line is a comment with the name of a file is that file. Blocks `bash` are typed into a shell, and
  blocks `python` into the Python that `python` starts, in the order of the page and one line after the other.
* Of a command, the exit code is 0. One that runs until it is stopped (`--continuous`) gets Ctrl-C after a batch.
* `redis://localhost:6379` becomes the address of the test server, and `/mnt`, `/data` and `/srv` folders of the test.
* Parts of pipeline files (blocks `text` of `pipelines.md`) are made whole, and run by the page's Python in the end.
* `<!-- not run: why -->` before a block leaves it out.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest
import redis

from penstock.redis.embedded import EmbeddedServer
from tests.docs.pages import PAGES, ROOT, Block, blocks, name
from tests.spark.archive.streams import Stream, archive, opened
from tests.spark.archive.test_old_format import commit, old_file, old_range
from tests.spark.readers import Reader, reader
from tests.spark.terminal import PythonShell, Shell

_TIMEOUT_S = 1_800  # a dozen starts of Spark on a page
_BATCH = r"^(\w+: )?batch \d+: "
_HEREDOC = re.compile(r"<<'?(?P<end>\w+)'?\n")
_HANDLER = """
def handle(messages):
    return {message.id: {"score": 1.0} for message in messages}


def price(messages):
    return {message.id: {"price": 2.0 * message.data["total"]} for message in messages}
"""
_RETURNS = """
name = "returns"
checkpoint = "{place}/data/checkpoints/returns"
source = {{ url = "redis://127.0.0.1:{port}", streams = "returns", schema = "order_id bigint" }}
[[sink]]
kind = "parquet"
path = "{place}/data/returns"
"""
_AROUND = {
    "name": 'name = "{name}"\n',
    "checkpoint": 'checkpoint = "{place}/checkpoint"\n',
    "part": "{part}\n",
    "source": """
[source]
url = "redis://127.0.0.1:{port}"
streams = "orders"
schema = "order_id bigint NOT NULL, kind string, total double, customer_id bigint, op string"
""",
    "sink": '[[sink]]\nkind = "parquet"\npath = "{place}/table"\n',
}
_TUTORIAL = "docs/tutorial/from-queue-to-lakehouse.md"


@dataclass(frozen=True)
class Shop:
    """What the reader of a page has: streams with messages, folders and files."""

    redis: redis.Redis
    port: int | None
    folder: Path
    mounted: Path

    def order(self, stream: str = "orders", count: int = 3) -> None:
        for n in range(count):
            row = {
                "order_id": n + 1,
                "n": n,
                "kind": "new",
                "total": 10.0 * n,
                "customer_id": n,
                "op": "d" if n else "u",
            }
            self.redis.xadd(stream, {"data": json.dumps(row), "message_id": f"{stream}-{n}"})

    def dead_letters(self, **fields: str) -> None:
        for n in range(3):
            letter = {"data": json.dumps({"n": n}), "message_id": f"m{n}", "dlq_id": f"{n + 1}-0", **fields}
            self.redis.xadd("orders_dlq", letter)  # type: ignore[arg-type]

    def handler(self, file: str) -> None:
        (self.folder / file).parent.mkdir(exist_ok=True)
        (self.folder / file).write_text(_HANDLER)

    def archived(self, day: str) -> None:
        """Make an archive with messages of that day, one a second from 8 o'clock on."""
        stream = Stream()
        first = _ms(f"{day}T08:00:00+00:00")
        stream.entries += [(f"{first + 1_000 * n}-0", {"data": json.dumps({"n": n}).encode()}) for n in range(20)]
        archive(opened(self.mounted / "mnt" / "archive"), stream, 0, 20)


def _ms(text: str) -> int:
    from datetime import datetime

    return int(datetime.fromisoformat(text).timestamp() * 1000)


def _of_archive(shop: Shop) -> None:
    shop.order("orders:eu")
    shop.order("payments")
    stream, root = Stream("or/ders"), shop.mounted / "mnt" / "old-archive"
    stream.add(10)
    commit(root, 1, [old_range(stream, 0, 10)], [old_file(root, stream, 0, 10)])


def _of_pipelines(shop: Shop) -> None:
    shop.order()
    shop.handler("shop/work.py")
    (shop.folder / "returns.toml").write_text(_RETURNS.format(place=shop.mounted, port=shop.port))


def _of_replay(shop: Shop) -> None:
    shop.archived("2026-11-15")
    shop.dead_letters(dlq_reason="max_deliveries", dlq_error="TimeoutError")


def _of_report(shop: Shop) -> None:
    shop.order()
    shop.order("penstock.tasks")
    shop.archived("2026-11-14")


def _of_reprocess(shop: Shop) -> None:
    shop.archived("2026-11-14")
    shop.dead_letters(dlq_reason="fatal")
    shop.handler("shop/work.py")


def _of_declarative(shop: Shop) -> None:
    shop.order()
    shop.handler("shop.py")


_SHOPS: dict[str, Callable[[Shop], None]] = {
    "archive.md": _of_archive,
    "pipelines.md": _of_pipelines,
    "replay.md": _of_replay,
    "report.md": _of_report,
    "reprocess.md": _of_reprocess,
    "spark-declarative.md": _of_declarative,
}
_OTHERS = {"results.md", "spark-cluster.md", "spark-read.md", "spark-write.md"}
_FED = {"archive.md": ("orders", "payments"), "pipelines.md": ("orders", "returns"), Path(_TUTORIAL).name: ("orders",)}
_CHOSEN = [page for page in PAGES if page.name in {*_SHOPS, *_OTHERS} and page.parent.name == "how-to"]
_CHOSEN.append(ROOT / _TUTORIAL)


@pytest.fixture(scope="module")
def tried_by(java: Path) -> Iterator[Reader]:
    with reader() as made:
        yield made


@pytest.mark.slow
@pytest.mark.needs_limits
@pytest.mark.timeout(_TIMEOUT_S)
@pytest.mark.parametrize("page", _CHOSEN, ids=name)
def test_the_page_runs_as_printed(
    page: Path, tried_by: Reader, stream_server: EmbeddedServer, stream_redis: redis.Redis
) -> None:
    folder = tried_by.folder(page.stem)
    shop = Shop(stream_redis, stream_server.port, folder, tried_by.folder(f"{page.stem}-mounted"))
    for mounted in ("mnt", "data", "srv"):
        (shop.mounted / mounted).mkdir()
    _SHOPS.get(page.name, lambda _: None)(shop)
    tried_by.own(shop.mounted)
    tried_by.own(folder)
    with Trial(page, tried_by, shop, stream_server) as trial:
        unmarked = [block for block in blocks(page) if block.not_run is None]
        ran = {block.line for block in unmarked if trial.runs(block)}
        if page.name == "pipelines.md":
            ran |= trial.run_parts([block for block in unmarked if block.line not in ran])
            assert ran == {block.line for block in unmarked}
    assert ran >= {block.line for block in unmarked if block.language in {"bash", "python"}}


class Trial:
    """Somebody who goes through a page, with one shell and one Python."""

    def __init__(self, page: Path, user: Reader, shop: Shop, server: EmbeddedServer) -> None:
        self._page, self._user, self._shop, self._server = page, user, shop, server
        self._stack = ExitStack()
        self._shell: Shell | None = None
        self._python: PythonShell | None = None
        self._printed = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def runs(self, block: Block) -> bool:
        """Do what the block says, if it says what to do."""
        text = self._here(block.text)
        if block.file is not None:
            self._write(block.file, text)
        elif block.language == "bash":
            for command in commands(text):
                self._run(block, command)
        elif block.language == "python":
            self._printed = self._python_shell().run(text)
        elif block.language == "output":
            lines = iter(self._printed.splitlines())
            assert all(line in lines for line in block.text.splitlines()), f"{self._at(block)}: {self._printed}"
        else:
            return False
        return True

    def run_parts(self, parts: Sequence[Block]) -> set[int]:
        """Run parts of pipeline files in the session of the page's Python; return their lines."""
        self._shop.redis.flushall()
        self._shop.order()
        for part in parts:
            place = self._shop.mounted / f"part_{part.line}"
            given = {
                "name": place.name, "place": place, "port": self._server.port,
                "part": re.sub(r"(?<=\")/data/", f"{place}/", part.text),
            }  # fmt: skip
            keys = tomllib.loads(part.text)
            self._write(
                f"{place.name}.toml", "".join(_AROUND[key].format(**given) for key in _AROUND if key not in keys)
            )
            said = self._python_shell().run(f'Pipeline.from_file("{place.name}.toml").run(spark)')
            assert "Report(" in said, f"{self._at(part)}:\n{said}"
        return {part.line for part in parts}

    def _write(self, file: str, text: str) -> None:
        path = self._shop.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        self._user.own(self._shop.folder)

    def _run(self, block: Block, command: str) -> None:
        if self._shell is None:
            self._shell = self._stack.enter_context(Shell(self._shop.folder, self._user.env, self._user))
        is_endless = "--continuous" in shlex.split(command, comments=True)
        if is_endless:
            for stream in _FED[self._page.name]:
                self._shop.order(stream)
        try:
            self._shell.run(command, until=_BATCH if is_endless else None)
        except AssertionError as error:
            pytest.fail(f"{self._at(block)}: {command}\n{error}")

    def _python_shell(self) -> PythonShell:
        if self._python is None:
            if name(self._page) != _TUTORIAL:
                self._shop.redis.flushall()  # what these blocks print does not depend on what the shell has done
            is_async = any("await " in block.text for block in blocks(self._page) if block.language == "python")
            opened = PythonShell(self._shop.folder, self._user.env, self._user, is_async=is_async)
            self._python = self._stack.enter_context(opened)
        return self._python

    def _here(self, text: str) -> str:
        text = text.replace("redis://localhost:6379", f"redis://127.0.0.1:{self._server.port}")
        return re.sub(r"(?<![\w.])/(?=(mnt|data|srv)/)", f"{self._shop.mounted}/", text)

    def _at(self, block: Block) -> str:
        return f"{name(self._page)}:{block.line}"


def commands(block: str) -> Iterator[str]:
    """Yield the commands of a block, with the lines that belong to them."""
    lines = iter(block.splitlines())
    for line in lines:
        command = line
        while command.endswith("\\"):
            command += "\n" + next(lines)
        if document := _HEREDOC.search(command + "\n"):
            for each in lines:
                command += "\n" + each
                if each == document["end"]:
                    break
        if command.strip() and not command.startswith("#"):
            yield command


def test_commands_are_taken_apart_as_a_shell_does() -> None:
    block = "export A=1\n# a comment\npenstock one \\\n  --two\ncat > file <<'END'\na\nb\nEND\n"
    assert list(commands(block)) == ["export A=1", "penstock one \\\n  --two", "cat > file <<'END'\na\nb\nEND"]
