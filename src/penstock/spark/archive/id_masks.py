"""Compares columns of ids with one id, all rows at once."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from penstock import ids

Mask: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"
Numbers: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


def is_behind(ms: Numbers, seq: Numbers, entry_id: str) -> Mask:
    """Tell for each row whether its id is greater; `seq` is unsigned."""
    at_ms, at_seq = ids.parse(entry_id)
    found: Mask = (ms > at_ms) | ((ms == at_ms) & (seq > np.uint64(at_seq)))
    return found
