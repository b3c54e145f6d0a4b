"""The pages of the documentation, and the code blocks and links in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])

_NOT_RUN = re.compile(r"<!-- not run: (?P<why>[^>]+) -->\s*\Z")
_FILE = re.compile(r"# (?P<name>[\w./-]+\.(?:toml|py|yml))\n")
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\S*)\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
_LINK_OR_CODE = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>[^)\s]+)\)|`[^`\n]*`")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block, and the line of the page on which its first line stands.

    `not_run` is the reason in a comment just before it, `<!-- not run: needs a cluster -->`, which readers do not see.
    """

    language: str
    text: str
    line: int
    not_run: str | None = None

    @property
    def file(self) -> str | None:
        """The file that the block shows: the first line names it in a comment."""
        found = _FILE.match(self.text)
        return found and found["name"]


@dataclass(frozen=True)
class Link:
    """A link: what the reader sees, and where it leads."""

    text: str
    target: str


def name(page: Path) -> str:
    """Returns the page's path inside the repository."""
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """Returns the text of a page without its fenced blocks."""
    return _FENCE.sub("", page.read_text())


def blocks(page: Path) -> list[Block]:
    """Returns the fenced blocks of a page in their order."""
    text = page.read_text()
    return [
        Block(
            found["language"], found["body"], text.count("\n", 0, found.start("body")) + 1, _why(text[: found.start()])
        )
        for found in _FENCE.finditer(text)
    ]


def _why(before: str) -> str | None:
    found = _NOT_RUN.search(before[-300:])
    return found and found["why"]


def links(page: Path) -> Iterator[Link]:
    """Yields the links of a page; what stands in code is none."""
    for found in _LINK_OR_CODE.finditer(prose(page)):
        if found["target"] is not None:
            yield Link(found["text"], found["target"])


def anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub makes them."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(prose(page))}


def table_column(page: Path, heading: str, column: int = 0) -> list[str]:
    """Returns the cells of a column, without backticks, of the tables under a heading."""
    section = re.split(r"^#+ ", page.read_text().split(f"{heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    return [re.split(r"(?<!\\)\|", row)[column + 1].strip().strip("`") for row in rows]
