"""DeadLetterLimits: how many dead letters are kept, for how long, and in how much memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from penstock.errors import ConfigurationError
from penstock.number_checks import check_number

_NONE = "none"  # how a file says that there is no limit: TOML has no null
_LARGE_RECORD = 16 << 20
_MAX_TOGETHER = 100


@dataclass(frozen=True)
class DeadLetterLimits:
    """Limits of each dead-letter stream, beyond which the oldest records are removed; None = no limit.

    What a consumer group of that stream has not acknowledged stays, unless `ignore_groups` is true. `max_bytes` is
    compared with the server's own estimate.
    """

    max_count: int | None = 100_000
    max_age_s: float | None = 30 * 86_400
    max_bytes: int | None = 1 << 30
    ignore_groups: bool = False

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        for name, value in self._numbers().items():
            if value is not None:
                check_number(name, value, is_whole=name != "max_age_s")
        if not isinstance(self.ignore_groups, bool):
            raise ConfigurationError(f"ignore_groups={self.ignore_groups!r} must be True or False")

    @classmethod
    def none(cls) -> Self:
        """Return limits that keep everything."""
        return cls(None, None, None)

    @classmethod
    def of(cls, given: object) -> DeadLetterLimits:
        """Return limits as users write them: None for the defaults, a table of a TOML file, or "none"."""
        if given is None:
            return DeadLetterLimits()
        if isinstance(given, DeadLetterLimits):
            return given
        if given == _NONE:
            return DeadLetterLimits.none()
        if not isinstance(given, Mapping):
            raise ConfigurationError(
                f"dead_letter_limits must be DeadLetterLimits, a table or {_NONE!r}, not {type(given).__name__}"
            )
        known = [field.name for field in fields(cls)]
        unknown = [str(name) for name in given if name not in known]
        if unknown:
            raise ConfigurationError(f"DeadLetterLimits has no field {unknown[0]!r}; its fields are {', '.join(known)}")
        values: dict[str, Any] = {name: None if value == _NONE else value for name, value in given.items()}
        return DeadLetterLimits(**values)

    def _numbers(self) -> dict[str, float | None]:
        return {"max_count": self.max_count, "max_age_s": self.max_age_s, "max_bytes": self.max_bytes}

    @property
    def is_none(self) -> bool:
        """Whether there are no limits."""
        return all(value is None for value in self._numbers().values())

    def are_exceeded(self, count: int, age_ms: float, size: int) -> bool:
        """Return whether the oldest of `count` records, with that age and total size, must be removed."""
        return (
            (self.max_count is not None and count > self.max_count)
            or (self.max_age_s is not None and age_ms > self.max_age_s * 1000)
            or (self.max_bytes is not None and size > self.max_bytes)
        )

    @property
    def apply_every(self) -> int:
        """How many records may be written before the limits are applied again: a hundredth of what is kept."""
        by_count = _MAX_TOGETHER if self.max_count is None else self.max_count // 100
        by_bytes = _MAX_TOGETHER if self.max_bytes is None else self.max_bytes // _LARGE_RECORD
        return max(1, min(_MAX_TOGETHER, by_count, by_bytes))

    @property
    def arguments(self) -> tuple[int, int, int, int]:
        """The limits as the script takes them."""
        age_ms = max(1, round(self.max_age_s * 1000)) if self.max_age_s is not None else 0
        return self.max_count or 0, age_ms, self.max_bytes or 0, int(self.ignore_groups)

    def __str__(self) -> str:
        """Show the limits that are set."""
        return ", ".join(f"{name}={value}" for name, value in self._numbers().items() if value is not None) or _NONE
