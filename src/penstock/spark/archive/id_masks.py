"""Compares columns of ids with one id, all rows at once."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from penstock import ids

Mask: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"
Numbers: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


def is_behind(ms: Numbers, seq: Numbers, entry_id: str) -> Mask:
    """Tell for each row whether its id is greater; both numbers are unsigned, as the server's are."""
    at_ms, at_seq = (np.uint64(number) for number in ids.parse(entry_id))
    found: Mask = (ms > at_ms) | ((ms == at_ms) & (seq > at_seq))
    return found


def unsigned(column: Any) -> Numbers:
    """Return a column of signed 64-bit numbers as those that it was made of: beyond the half they have wrapped."""
    found: Numbers = column.to_numpy().view(np.uint64)
    return found
