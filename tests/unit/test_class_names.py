"""One meaning a name: whoever reads it in a log, a traceback or a search knows which class or type is meant."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import penstock

PACKAGE = Path(penstock.__file__).parent
TWINS = {
    # What differs between asyncio and threads is written twice, name by name, so that generated code finds its twin.
    **dict.fromkeys(("Activity", "Combiner", "Flag", "TaskGroup", "WaitQueue"), ("runtime/aio", "runtime/threads")),
    "Threads": ("runtime/threads", "runtime/user_functions"),  # runtime/aio exports it
    "Connection": ("redis/aio", "redis/blocking"),
    **dict.fromkeys(("Locator", "_Attempt"), ("redis/aio_locator", "redis/blocking_locator")),
}
TWIN_TYPES = {
    **dict.fromkeys(("Promise", "SendAtOnce"), ("runtime/aio", "runtime/threads")),
    **dict.fromkeys(("Reply", "OnReply"), ("redis/aio", "redis/blocking")),
}


def named(*, with_types: bool) -> dict[str, list[str]]:
    """Returns the modules that define each class, and each type if wanted."""
    places = defaultdict[str, list[str]](list)
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).with_suffix("")
        if module.parts[0] != "sync":  # generated: the same classes once more
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(module.as_posix())
                elif with_types and (name := type_name(node)):
                    places[name].append(module.as_posix())
    return places


def type_name(node: ast.AST) -> str:
    """Returns the name of a type: `Row: TypeAlias = ...`, or `Row = tuple[...]`."""
    match node:
        case ast.AnnAssign(target=ast.Name(name), annotation=ast.Name("TypeAlias")):
            return name
        case ast.Assign(targets=[ast.Name(name)], value=ast.Subscript() | ast.BinOp()):
            return name if name[0].isupper() and not name.isupper() else ""
    return ""


def test_no_two_classes_of_the_package_have_one_name() -> None:
    places = named(with_types=False)
    assert {name: tuple(modules) for name, modules in places.items() if len(modules) > 1} == TWINS


def test_no_two_types_of_a_folder_have_one_name() -> None:
    by_folder = defaultdict[tuple[str, str], list[str]](list)
    for name, modules in named(with_types=True).items():
        for module in modules:
            by_folder[module.rpartition("/")[0], name].append(module)
    found = {name: tuple(modules) for (_, name), modules in by_folder.items() if len(modules) > 1}
    assert found == TWINS | TWIN_TYPES
