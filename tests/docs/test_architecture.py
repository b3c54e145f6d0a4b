"""The map of the code names files that exist, every folder, and the functions that a message passes."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import grimp
import pytest

from penstock import ConsumerConfig, StreamClient, StreamConsumer, StreamMessage, StreamProducer
from tests.helpers.aio import eventually
from tests.streams.stage import running

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "penstock"
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text()


def test_the_map_names_what_exists() -> None:
    named = re.findall(r"`([\w/]+(?:\.py|\.lua|/))`", PAGE)
    assert len(named) > 30
    assert [name for name in named if not (PACKAGE / name).exists()] == []


def test_the_map_has_every_folder() -> None:
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert {name for name in folders if f"`{name}/`" not in PAGE} == set()


def test_the_diagram_draws_the_imports_that_there_are() -> None:
    arrows = set(re.findall(r"^    (\w+) --> (\w+)", PAGE.partition("```mermaid")[2].partition("```")[0], re.MULTILINE))
    drawn = {name for arrow in arrows for name in arrow}
    code, imports = grimp.build_graph("penstock", exclude_type_checking_imports=True, cache_dir=None), set()
    for module in code.modules - {"penstock.__main__"}:
        for imported in code.find_modules_directly_imported_by(module):
            ends = [name.split(".")[1] for name in (module, imported) if "." in name]
            imports.add(tuple(name if name in drawn else "pure" for name in ends))
    imports = {arrow for arrow in imports if len(arrow) == 2 and len(set(arrow)) == 2}
    ways = {name: _reached(name, arrows) for name in drawn}
    assert {(one, other) for one, other in imports if other not in ways[one]} == set(), "not drawn"
    assert arrows - imports == set(), "drawn, and not in the code"


def _reached(name: str, arrows: set[tuple[str, str]]) -> set[str]:
    steps = {other for one, other in arrows if one == name}
    return steps.union(*(_reached(step, arrows) for step in steps))


# --- the hops of one message --------------------------------------------------------------------------


def _hops(way: str) -> list[tuple[str, str]]:
    _, _, table = PAGE.partition(f"| {way} | file | function |")
    return re.findall(r"\| \d+ \| `([\w/.]+)` \| `([\w.]+)` \|", table.partition("\n\n")[0])


def _functions(node: ast.AST, prefix: str = "") -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name
            yield from _functions(child, f"{prefix}{child.name}.")


@contextmanager
def _followed() -> Iterator[set[tuple[str, str]]]:
    """Collects file and name of every function of the package that is called meanwhile."""
    called: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            called.add((path.relative_to(PACKAGE).as_posix(), frame.f_code.co_qualname.replace(".<locals>", "")))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield called
    finally:
        sys.setprofile(before)


@pytest.mark.parametrize(("way", "most"), [("publish", 8), ("consume", 18)])
def test_the_hops_are_functions_that_exist_and_they_are_few(way: str, most: int) -> None:
    hops = _hops(way)
    assert 0 < len(hops) <= most
    assert [
        f"{file}: {name}" for file, name in hops if name not in set(_functions(ast.parse((PACKAGE / file).read_text())))
    ] == []


@pytest.mark.usefixtures("default_server")
async def test_a_message_passes_the_hops(redis_url: str) -> None:
    async def handler(_: StreamMessage) -> None:
        pass

    async with StreamClient.from_url(redis_url) as client:
        producer = StreamProducer(client, "orders")
        await producer.push(1)
        with _followed() as called:
            await producer.push(2)
        assert [hop for hop in _hops("publish") if hop not in called] == []

        config = ConsumerConfig(group="workers", handle_signals=False)
        consumer = StreamConsumer(client, "orders", config, message_handler=handler)
        with _followed() as called:
            async with running(consumer):
                await eventually(lambda: consumer.metrics().total_acked == 2)
        assert [hop for hop in _hops("consume") if hop not in called] == []
