"""Which modules of the user's go to executors, and what of them; without Spark."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from penstock.spark.runtime.code_shipping import packed_module, place_of


def test_a_module_that_lies_beside_the_definition_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "shop_of_mine.py").write_text("def score(): return 1\n")
    (tmp_path / "trade" / "inner").mkdir(parents=True)
    (tmp_path / "trade" / "__init__.py").write_text("")
    (tmp_path / "trade" / "inner" / "prices.py").write_text("def price(): return 2\n")
    (tmp_path / "trade" / "big.csv").write_text("no code")
    expected = {
        "shop_of_mine": ["shop_of_mine.py"],
        "trade": ["trade/", "trade/__init__.py", "trade/inner/", "trade/inner/prices.py"],
    }
    for name, files in expected.items():
        place = place_of(name)
        assert place is not None
        archive = packed_module(name, place)
        assert zipfile.ZipFile(archive).namelist() == files
        assert packed_module(name, place) == archive
    script = "from shop_of_mine import score; from trade.inner.prices import price; print(score(), price())"
    path = ":".join(str(packed_module(name, place_of(name) or Path())) for name in ("shop_of_mine", "trade"))
    done = subprocess.run([sys.executable, "-c", script], env={"PYTHONPATH": path}, capture_output=True, check=True)
    assert done.stdout == b"1 2\n"


def test_an_edited_module_goes_under_another_name(tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    file.write_text("one = 1\n")
    first = packed_module("shop", file)
    file.write_text("two = 2\n")
    assert packed_module("shop", file) != first


@pytest.mark.parametrize("name", ["json", "redis", "pyarrow", "penstock", "no_such_module", "__main__"])
def test_what_is_installed_or_does_not_exist_is_not_sent(name: str) -> None:
    assert place_of(name) is None
