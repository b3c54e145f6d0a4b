"""Every link inside the documentation leads somewhere, and every page can be reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, anchors, links, name


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_inside_the_repository_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if link.target.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.target.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name(page)} links to {link.target}, which does not exist"
        assert target.is_relative_to(ROOT), f"{name(page)} links to {link.target}, outside of the repository"
        if anchor:
            assert anchor in anchors(target), f"{name(page)} links to {link.target}: there is no such heading"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_tests_that_are_named_in_a_link_exist(page: Path) -> None:
    for link in links(page):
        if link.text.startswith("`test_") and link.target.endswith(".py") and not link.text.endswith(".py`"):
            function = link.text.strip("`")
            source = (page.parent / link.target).read_text()
            assert f"def {function}(" in source, f"{name(page)} names {function}, which is not in {link.target}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        targets = (link.target.partition("#")[0] for link in links(page) if "://" not in link.target)
        waiting += [found for target in targets if (found := (page.parent / target).resolve()).suffix == ".md"]
    assert set(PAGES) <= reached, f"nobody links to {sorted(name(page) for page in set(PAGES) - reached)}"
