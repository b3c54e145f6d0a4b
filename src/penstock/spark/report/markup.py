"""Pieces of HTML. Every text goes through `safe`, whoever wrote it: kinds, keys and errors come with the messages."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Sequence
from typing import Any


def safe(value: object) -> str:
    """Return a text that is text wherever it is put; what cannot be seen is shown as a sign."""
    text = "".join(sign if sign == "\n" or not _is_hidden(sign) else "\N{REPLACEMENT CHARACTER}" for sign in str(value))
    return html.escape(text, quote=True)


def _is_hidden(sign: str) -> bool:
    # Control characters, lone surrogates, and marks that turn the direction of what follows.
    return unicodedata.category(sign) in ("Cc", "Cf", "Cs")


_CLASS = ' class="text"'


class Text(str):
    """A cell of words: it is aligned as such."""

    __slots__ = ()


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table whose first column names the row."""
    # A column of words has its heading where the words begin.
    words = {place for row in rows for place, cell in enumerate(row) if isinstance(cell, Text)}
    top = "".join(f'<th scope="col"{_CLASS * (place in words)}>{safe(name)}</th>' for place, name in enumerate(head))
    body = "".join(f"<tr>{_row(row)}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table><caption>{safe(caption)}</caption><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _row(row: Sequence[Any]) -> str:
    first, *rest = row
    cells = [f'<td class="text">{safe(c)}</td>' if isinstance(c, Text) else f"<td>{safe(c)}</td>" for c in rest]
    return f'<th scope="row">{safe(first)}</th>{"".join(cells)}'


def tiles(pairs: Sequence[tuple[str, str]]) -> str:
    """Return a few numbers that everybody looks for first, each with its name."""
    shown = "".join(f"<li><strong>{safe(value)}</strong> {safe(name)}</li>" for name, value in pairs)
    return f'<ul class="tiles">{shown}</ul>'


def folded(summary: str, content: str) -> str:
    """Return something that is shown when asked for."""
    return f"<details><summary>{safe(summary)}</summary>{content}</details>"


def note(text: str, *, is_warning: bool = False) -> str:
    """Return a sentence in small print, or a warning."""
    return f'<p class="{"warn" if is_warning else "note"}">{safe(text)}</p>'


def section(title: str, *parts: str) -> str:
    """Return a part of the page with a heading."""
    return f"<section><h2>{safe(title)}</h2>{''.join(parts)}</section>"
