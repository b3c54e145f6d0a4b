"""Reading a page as a browser's parser does, and complaining about what a browser would forgive."""

from __future__ import annotations

from html.parser import HTMLParser

_VOID = {"meta", "br"}
_IN_SVG = {"line", "polyline", "circle"}  # closed where they are opened
_LOADING = {"src", "srcset", "action", "formaction", "data", "poster", "background", "xlink:href"}
_ACTIVE = {"script", "link", "img", "iframe", "object", "embed", "form", "b", "base"}


class Page(HTMLParser):
    """Collects elements and text; raises AssertionError for what is not well-formed or would fetch or run anything."""

    def __init__(self, text: str, dashboard: str = "") -> None:
        super().__init__()
        self._dashboard = dashboard
        self.open: list[str] = []
        self.ids: list[str] = []
        self.cells: list[list[str]] = []
        self.tiles: dict[str, str] = {}
        self.links: list[str] = []
        self.bars: list[float] = []
        self.plots = 0
        self.text = ""
        self._term = ""
        self.feed(text)
        self.close()
        assert self.open == []
        assert len(self.ids) == len(set(self.ids))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in _ACTIVE
        given = {name: value or "" for name, value in attrs}
        for name, value in given.items():
            assert name not in _LOADING
            assert not name.startswith("on")
            assert "url(" not in value
        if tag == "a":
            assert self._dashboard
            assert given["href"].startswith(f"{self._dashboard}/")
            self.links.append(given["href"])
        if "id" in given:
            self.ids.append(given["id"])
        if tag == "svg":
            self.plots += 1
            assert given["role"] == "img"
            self._named = given["aria-labelledby"].split(" ")
        if tag == "rect":
            self.bars.append(float(given["width"]))
        if tag == "tr":
            self.cells.append([])
        if tag in {"td", "th"}:
            self.cells[-1].append("")
        if tag == "dt":
            self._term = ""
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in _IN_SVG
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag == "svg":
            assert set(self._named) <= set(self.ids)  # its title and its description are there

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            assert "url(" not in data
            assert "@import" not in data
            return
        self.text += data
        if {"td", "th"} & set(self.open):
            self.cells[-1][-1] += data
        if "dt" in self.open:
            self._term += data
        if "dd" in self.open:
            self.tiles[self._term] = " ".join(f"{self.tiles.get(self._term, '')} {data}".split())

    def row(self, name: str) -> list[str]:
        """Returns the first row of this name."""
        return next(row for row in self.cells if row[0] == name)
