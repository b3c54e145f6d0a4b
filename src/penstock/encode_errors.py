"""Finds the value in a payload that cannot be encoded, for an error that names its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from penstock.errors import cut, text_of

_MAX_NODES_SEARCHED = 1_000_000
_MAX_PATH = 1_000


def find_unencodable(
    data: object, attempt: Callable[[Any], object], refusals: tuple[type[Exception], ...]
) -> str | None:
    """Describe the first value that the attempt refuses: where it is, its type, why; gives up on absurd sizes."""
    waiting: list[tuple[str, Any]] = [("", data)]
    for _ in range(_MAX_NODES_SEARCHED):
        if not waiting:
            break
        path, node = waiting.pop()
        children = list(_children(path, node))
        place, suspects = path or "the payload itself", [] if children else [(node, node)]
        if isinstance(node, dict):
            place, suspects = f"a key of {path or 'the payload'}", [(key, {key: None}) for key in node]
        for suspect, probe in suspects:
            try:
                attempt(probe)
            except refusals as refusal:
                return f"{place} is of type {type_name(suspect)}: {text_of(refusal)}"
        waiting.extend(reversed(children))
    return None


def _children(path: str, node: object) -> Iterator[tuple[str, object]]:
    if len(path) > _MAX_PATH:  # the payload contains itself
        return
    if isinstance(node, dict):
        for key, value in node.items():
            yield _step(path, key), value
    elif isinstance(node, list | tuple | set | frozenset):
        for index, value in enumerate(node):
            yield f"{path}[{index}]", value
    else:
        kind = type(node)
        names = getattr(kind, "__struct_fields__", ()) or getattr(kind, "__dataclass_fields__", ())
        for name in names or [attribute.name for attribute in getattr(kind, "__attrs_attrs__", ())]:
            yield _step(path, name), getattr(node, name, None)


def _step(path: str, key: object) -> str:
    if isinstance(key, str) and key.isidentifier() and len(key) <= 40:
        return f"{path}.{key}" if path else key
    return f"{path}[{cut(repr(key), 40)}]"


def type_name(value: object) -> str:
    """Return the name of the value's type as a user would write it."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
