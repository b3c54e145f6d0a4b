"""What tests of plain code share."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Lets threads take turns as often as they can, so that they meet where they must not."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval_s)
