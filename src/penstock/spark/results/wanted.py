"""Which results a query looks at, as far as its options and filters tell: by kind, status and time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from penstock.results.entry import in_utc
from penstock.task import Result

_Names = frozenset[str] | None


@dataclass(frozen=True)
class Wanted:
    """Kinds, statuses and the times of their end, both inclusive; None = all."""

    kinds: _Names = None
    statuses: _Names = None
    since: datetime | None = None
    until: datetime | None = None

    def takes(self, result: Result) -> bool:
        """Tell whether a result is looked at."""
        if self.kinds is not None and result.kind not in self.kinds:
            return False
        if self.statuses is not None and result.status.value not in self.statuses:
            return False
        if self.since is None and self.until is None:
            return True
        finished = in_utc(result.finished_at)
        return (self.since is None or finished >= self.since) and (self.until is None or finished <= self.until)

    @property
    def only_kind(self) -> str | None:
        """The kind, if it is a single one."""
        return next(iter(self.kinds)) if self.kinds is not None and len(self.kinds) == 1 else None

    def narrowed(self, filters: Sequence[Filter]) -> Wanted:
        """Return what is left when all filters hold; Spark applies each once more, so a part of them will do."""
        wanted = self
        for given in filters:
            wanted = _with_names(wanted, given)
            wanted = _with_times(wanted, given)
        return wanted


def _with_names(wanted: Wanted, given: Filter) -> Wanted:
    if not isinstance(given, EqualTo | In):
        return wanted
    names = frozenset(given.value if isinstance(given, In) else [given.value])
    if given.attribute == ("kind",):
        return replace(wanted, kinds=_both(wanted.kinds, names))
    if given.attribute == ("status",):
        return replace(wanted, statuses=_both(wanted.statuses, names))
    return wanted


def _both(known: _Names, names: frozenset[str]) -> frozenset[str]:
    return names if known is None else known & names


def _with_times(wanted: Wanted, given: Filter) -> Wanted:
    if not isinstance(given, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return wanted
    if given.attribute != ("finished_at",) or not isinstance(given.value, datetime) or given.value.tzinfo is None:
        return wanted
    moment = given.value
    if isinstance(given, EqualTo | GreaterThan | GreaterThanOrEqual):
        wanted = replace(wanted, since=moment if wanted.since is None else max(moment, wanted.since))
    if isinstance(given, EqualTo | LessThan | LessThanOrEqual):
        wanted = replace(wanted, until=moment if wanted.until is None else min(moment, wanted.until))
    return wanted
