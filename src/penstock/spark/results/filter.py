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
class ResultFilter:
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

    def narrowed(self, filters: Sequence[Filter]) -> ResultFilter:
        """Return what is left when all filters hold; Spark applies each once more, so a part of them will do."""
        made = self
        for given in filters:
            made = _with_times(_with_names(made, given), given)
        return made


def _with_names(known: ResultFilter, given: Filter) -> ResultFilter:
    if not isinstance(given, EqualTo | In):
        return known
    names = frozenset(given.value if isinstance(given, In) else [given.value])
    if given.attribute == ("kind",):
        return replace(known, kinds=_both(known.kinds, names))
    if given.attribute == ("status",):
        return replace(known, statuses=_both(known.statuses, names))
    return known


def _both(before: _Names, names: frozenset[str]) -> frozenset[str]:
    return names if before is None else before & names


def _with_times(known: ResultFilter, given: Filter) -> ResultFilter:
    if not isinstance(given, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return known
    if given.attribute != ("finished_at",) or not isinstance(given.value, datetime) or given.value.tzinfo is None:
        return known
    moment = given.value
    if isinstance(given, EqualTo | GreaterThan | GreaterThanOrEqual):
        known = replace(known, since=moment if known.since is None else max(moment, known.since))
    if isinstance(given, EqualTo | LessThan | LessThanOrEqual):
        known = replace(known, until=moment if known.until is None else min(moment, known.until))
    return known
