"""What the documentation says about settings is what the code understands."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.settings import Settings
from penstock.settings.masking import READABLE_FROM_FILE
from penstock.settings.settings import TABLES, keys_of
from tests.docs.pages import PAGES, ROOT, Block, blocks, name, prose, table_column

REFERENCE = ROOT / "docs" / "reference" / "configuration.md"
_BLOCKS = [(page, block) for page in PAGES for block in blocks(page) if block.language == "toml"]


@pytest.mark.parametrize(("page", "block"), _BLOCKS, ids=[f"{name(page)}:{block.line}" for page, block in _BLOCKS])
def test_every_toml_block_can_be_loaded(page: Path, block: Block, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("value")
    file = tmp_path / "penstock.toml"
    file.write_text(
        block.text.replace("/run/secrets/redis_url", f"{tmp_path}/secret").replace(
            "/run/secrets/postgres_dsn", f"{tmp_path}/secret"
        )
    )
    assert any(setting.origin.source == "file" for setting in Settings.load(file, environment={}).all)


@pytest.mark.parametrize("table", TABLES)
def test_the_reference_lists_every_key_with_its_default(table: str) -> None:
    keys = table_column(REFERENCE, f"## {table}")
    defaults = table_column(REFERENCE, f"## {table}", column=1)
    expected = {
        key: str(default).lower() if isinstance(default, bool) else str(default)
        for key, default in keys_of(table).items()
    }
    assert dict(zip(keys, defaults, strict=True)) == expected


def test_every_key_that_may_lie_in_a_file_is_named() -> None:
    assert {key for key in READABLE_FROM_FILE if f"`{key}`" not in prose(REFERENCE)} == set()
