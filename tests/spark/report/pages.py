"""Reading a page as a browser's parser does, and complaining about what a browser would forgive."""

from __future__ import annotations

from html.parser import HTMLParser

_VOID = {"meta", "line", "rect", "polyline", "circle"}
_LOADING = {"src", "href", "srcset", "action", "formaction", "data", "poster", "background", "xlink:href"}


class Page(HTMLParser):
    """Collects elements and text; raises AssertionError for what is not well-formed or would fetch or run anything."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.cells: list[list[str]] = []
        self.plots = 0
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []
        assert len(self.ids) == len(set(self.ids))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in {"script", "link", "img", "iframe", "object", "embed", "a", "form", "b", "base"}
        for name, value in attrs:
            assert name not in _LOADING
            assert not name.startswith("on")
            assert "url(" not in (value or "")
            if name == "id":
                self.ids.append(value or "")
        if tag == "svg":
            self.plots += 1
            given = dict(attrs)
            assert given["role"] == "img"
            self._named = (given["aria-labelledby"] or "").split(" ")
        if tag == "tr":
            self.cells.append([])
        if tag in {"td", "th"}:
            self.cells[-1].append("")
        if tag not in _VOID or tag == "rect":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if self.open and self.open[-1] == tag:
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
        if self.open and self.open[-1] in {"td", "th"}:
            self.cells[-1][-1] += data

    def row(self, name: str) -> list[str]:
        """Returns the first row of this name."""
        return next(row for row in self.cells if row[0] == name)
