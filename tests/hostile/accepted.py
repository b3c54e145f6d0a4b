"""What readers do not hold against, known and accepted."""

from __future__ import annotations

RED: dict[str, dict[str, str]] = {}
"""What a reader does not hold against, by kind, with the reason: taken out of its run."""
