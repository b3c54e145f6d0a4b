"""Schedule: a task that is to be done again and again, at the times of a cron rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from penstock import envelope
from penstock.errors import ConfigurationError
from penstock.task import Priority, PriorityName, Task, check_id

_NAMED = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}  # fmt: skip
_MONTHS = dict(zip("jan feb mar apr may jun jul aug sep oct nov dec".split(), range(1, 13), strict=True))  # noqa: SIM905
_DAYS = dict(zip("sun mon tue wed thu fri sat".split(), range(7), strict=True))  # noqa: SIM905
_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7))
_HORIZON = timedelta(days=366 * 8)  # the 29th of February comes within so long


@dataclass(frozen=True, slots=True)
class CronRule:
    """A recurring time in cron notation, in the local time of a time zone.

    Five fields (minute, hour, day of the month, month, day of the week), or a name such as @daily.
    """

    text: str
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # 0 = Sunday
    is_any_day: bool
    is_any_weekday: bool
    zone: tzinfo = UTC

    @classmethod
    def parse(cls, text: str, zone: str | tzinfo = UTC) -> CronRule:
        """Parse a rule; raise ConfigurationError that names the invalid field."""
        words = _NAMED.get(text.strip().lower(), text).split()
        if len(words) != 5:
            raise ConfigurationError(
                f"cron rule {text!r} must have five fields (minute, hour, day, month, weekday) or be one of "
                f"{', '.join(_NAMED)}"
            )
        found = [_values(text, word, *field) for word, field in zip(words, _FIELDS, strict=True)]
        minutes, hours, days, months, weekdays = found
        rule = cls(
            text, minutes, hours, days, months, frozenset(day % 7 for day in weekdays),
            is_any_day=words[2].startswith("*"), is_any_weekday=words[4].startswith("*"), zone=_zone(zone),
        )  # fmt: skip
        rule.after(datetime(2024, 1, 1, tzinfo=UTC))  # the 30th of February never comes: say so now
        return rule

    def _is_day(self, moment: datetime) -> bool:
        by_day, by_weekday = moment.day in self.days, moment.isoweekday() % 7 in self.weekdays
        # As every cron has it: when both are restricted, one of them is enough.
        if self.is_any_day or self.is_any_weekday:
            return by_day and by_weekday
        return by_day or by_weekday

    def after(self, moment: datetime) -> datetime:
        """Return the first time after a moment, in UTC.

        An hour that the clocks skip is passed over; in an hour that they repeat, the first pass counts.
        """
        if moment.tzinfo is None:
            raise ConfigurationError(f"{moment.isoformat()} has no time zone")
        local = moment.astimezone(self.zone).replace(second=0, microsecond=0, tzinfo=None) + timedelta(minutes=1)
        limit = local + _HORIZON
        while local < limit:
            if local.month not in self.months or not self._is_day(local):
                local = local.replace(hour=0, minute=0) + timedelta(days=1)
            elif local.hour not in self.hours:
                local = local.replace(minute=0) + timedelta(hours=1)
            elif local.minute not in self.minutes:
                local += timedelta(minutes=1)
            else:
                found = local.replace(tzinfo=self.zone, fold=0).astimezone(UTC)
                is_real = found.astimezone(self.zone).replace(tzinfo=None) == local
                if is_real and found > moment:
                    return found
                local += timedelta(minutes=1)
        raise ConfigurationError(f"cron rule {self.text!r} never matches a date")


@dataclass(frozen=True, slots=True)
class Schedule:
    """A rule and the task for each of its times.

    The id of a task contains the schedule and the time, so that any number of workers may add it: it is there once.
    """

    name: str
    rule: CronRule
    kind: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    requires: frozenset[str] = frozenset()
    priority: Priority | PriorityName = Priority.NORMAL

    def __post_init__(self) -> None:
        """Raise ConfigurationError for a name that cannot be part of an id, and for what no task can be made of."""
        check_id("name", f"cron.{self.name}.20300131T120000Z")
        self.task_at(datetime(2030, 1, 31, 12, tzinfo=UTC))

    def task_at(self, moment: datetime) -> Task:
        """Return the task for one of the times."""
        return Task(
            kind=self.kind,
            id=f"cron.{self.name}.{moment:%Y%m%dT%H%M%SZ}",
            payload=self.payload,
            requires=self.requires,
            priority=self.priority,
            unique=f"cron.{self.name}.{moment:%Y%m%dT%H%M%SZ}",
        )


def _zone(zone: str | tzinfo) -> tzinfo:
    if not isinstance(zone, str):
        return zone
    try:
        return ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise ConfigurationError(f"unknown time zone {zone!r}: use a name such as Europe/Vienna") from error


def _values(text: str, word: str, name: str, least: int, most: int) -> frozenset[int]:
    found: set[int] = set()
    for part in word.lower().split(","):
        span, slash, step_text = part.partition("/")
        step = envelope.number(step_text) or 0
        if slash and step < 1:
            raise ConfigurationError(
                f"cron rule {text!r}: the {name} {part!r} has an invalid step; write a step as in */5"
            )
        if span == "*":
            first, last = least, most
        else:
            begin, dash, end = span.partition("-")
            first = _number(text, begin, name)
            last = _number(text, end, name) if dash else (most if slash else first)
        if not least <= first <= last <= most:
            raise ConfigurationError(f"cron rule {text!r}: the {name} {part!r} must be from {least} to {most}")
        found.update(range(first, last + 1, step or 1))
    return frozenset(found)


def _number(text: str, word: str, name: str) -> int:
    names = _MONTHS if name == "month" else _DAYS if name == "weekday" else {}
    if word in names:
        return names[word]
    number = envelope.number(word)
    if number is not None:
        return number
    raise ConfigurationError(f"cron rule {text!r}: {word!r} is not a {name}")
