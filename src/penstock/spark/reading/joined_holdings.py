"""What an archive and Redis hold together: the option `archive`."""

from __future__ import annotations

import fnmatch
import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock import ids
from penstock.errors import DataLost
from penstock.spark.archive.cold_log import ColdLog
from penstock.spark.archive.coverage import Coverage
from penstock.spark.reading.catalogue import Selection, StreamState
from penstock.spark.reading.holdings import Holdings, Reading
from penstock.spark.reading.joined_scan import JoinedScanner
from penstock.spark.reading.joined_state import JoinedState, joined
from penstock.spark.reading.loss import Gap
from penstock.spark.reading.offsets import IdRange, Position, between
from penstock.spark.reading.options import Bound

logger = logging.getLogger("penstock.spark")


@dataclass(frozen=True)
class JoinedHoldings(Holdings):
    """Both as one stream, told apart by ids alone."""

    @property
    def cold(self) -> ColdLog:
        """The archive as it is now."""
        assert self.options.archive is not None
        return ColdLog.of(self.options.archive)

    def names(self) -> list[str]:
        """Return the names of the streams to read, those among them that a pattern finds in the archive alone."""
        found = super().names()
        if not self.options.selection.is_pattern:
            return found
        archived = [name for name in self.cold.streams if _matches(self.options.selection, name)]
        return list(dict.fromkeys([*found, *archived]))

    def look(self, names: Sequence[str]) -> Mapping[str, StreamState | None]:
        """Return the state of each stream in both; Redis first, so that what is gone there is archived by then."""
        hot = super().look(names)
        cold = self.cold
        return {name: joined(state, cold.coverage(name)) for name, state in hot.items()}

    def scanner(self) -> Reading:
        """Return what reads from both."""
        return JoinedScanner(self.hot_scanner(), self.cold)

    def start(self, stream: str, bound: Bound, state: StreamState | None) -> Position:
        """Return the position behind which reading begins; the archive can tell the rank of an archived one."""
        found = super().start(stream, bound, state)
        if found.rank is not None or not isinstance(state, JoinedState):
            return found
        return Position(found.id, self.cold.rank(stream, found.id))

    def gap(self, stream: str, at: Position, state: StreamState | None) -> Gap | None:
        """Return what is in neither of them behind a position."""
        return state.gap(stream, at) if isinstance(state, JoinedState) else super().gap(stream, at, state)

    def reach(self, stream: str, start: Position, end: Position, state: StreamState) -> Position:
        """Return how far a batch can go: a gap begins the next one, where it is counted."""
        return state.reach(stream, start, end) if isinstance(state, JoinedState) else end

    def check_end(self, stream: str, end: Position, state: StreamState) -> None:
        """Raise DataLost if the two do not meet, and the query reads beyond the archive."""
        archived = state.coverage.end if isinstance(state, JoinedState) else None
        if archived is None or ids.parse(end.id) < ids.parse(archived.id):
            return
        gap = self.gap(stream, archived, state)
        if gap is None or gap.count == 0:
            return
        if self.options.fail_on_data_loss:
            raise DataLost(f"{gap}, and they are not in the archive. Set option failOnDataLoss=false to read the rest")
        logger.warning("%s, and they are not in the archive; going on without them (failOnDataLoss=false)", gap)

    def cuts(self, whole: IdRange, pieces: int) -> tuple[str, ...]:
        """Return where to cut a range: between files of the archive, or between their row groups, and then by time."""
        if pieces < 2:  # it is one
            return ()
        coverage, most_rows = self.cold.coverage(whole.stream), whole.rows / pieces
        end = coverage.end
        if end is None or ids.parse(end.id) <= ids.parse(whole.after):
            return super().cuts(whole, pieces)
        found, rows = self._cold_cuts(coverage, whole, most_rows)
        if ids.parse(end.id) < ids.parse(whole.upto):
            rest = IdRange(whole.stream, end.id, whole.upto, max(0, whole.rows - rows))
            found += [end.id, *super().cuts(rest, math.ceil(rest.rows / most_rows))]
        return between(found, whole.after, whole.upto)

    def _cold_cuts(self, coverage: Coverage, whole: IdRange, most_rows: float) -> tuple[list[str], int]:
        cold, found = self.cold, list[str]()
        total, waiting, before = 0, 0, whole.after
        for entry in coverage.files_between(whole.after, whole.upto):
            for entry_id, rows in cold.ends(entry, most_rows):
                if waiting and waiting + rows > most_rows * 1.25:
                    found.append(before)
                    waiting = 0
                waiting, total, before = waiting + rows, total + rows, entry_id
        return found, total


def _matches(selection: Selection, name: str) -> bool:
    if selection.regex is not None:
        return re.fullmatch(selection.regex, name) is not None
    return fnmatch.fnmatchcase(name, (selection.glob or "*").replace("[^", "[!"))
