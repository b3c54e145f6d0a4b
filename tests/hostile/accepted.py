"""What readers do not hold against, known and accepted."""

from __future__ import annotations

RED: dict[str, dict[str, str]] = {
    "tasks": {
        "others.payload": "a copy that is read when its task has ended runs once more, and its result is refused"
    },
}
"""What a reader does not hold against, by kind, with the reason: taken out of its run."""
