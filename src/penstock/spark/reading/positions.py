"""Turns what a user says about beginning and end into positions of streams."""

from __future__ import annotations

from penstock import ids
from penstock.errors import ConfigurationError
from penstock.spark.reading.catalogue import StreamState, look_at_group
from penstock.spark.reading.loss import beginning
from penstock.spark.reading.offsets import Position
from penstock.spark.reading.options import EARLIEST, GROUP, LATEST, Bound
from penstock.sync.redis.client import StreamClient

_NOWHERE = Position(ids.ZERO, 0)


def start_of(client: StreamClient, stream: str, bound: Bound, state: StreamState | None, group: str | None) -> Position:
    """Return the position behind which reading begins."""
    if state is None:
        return _NOWHERE
    if bound.ms is not None:
        return placed(ids.before(f"{bound.ms}-0"), state)
    place = bound.of(stream)
    if place == EARLIEST:
        return beginning(state)
    if place == LATEST:
        return Position(state.last_id, state.added)
    if place == GROUP:
        assert group is not None
        return placed(group_position(client, stream, group), state)
    after = place[1:] if place.startswith("(") else ids.before(place)
    rank = (bound.ranks or {}).get(stream)
    # Whoever knows the rank has been there: what is gone since is a loss, and not merely past.
    return placed(after, state) if rank is None else Position(after, rank)


def end_of(stream: str, bound: Bound | None, state: StreamState) -> Position:
    """Return the position up to which a batch query reads; the entry at a given id is read, one at a given time not."""
    last = Position(state.last_id, state.added)
    if bound is None or (bound.ms is None and bound.of(stream) == LATEST):
        return last
    if bound.by_stream is not None and stream not in bound.by_stream:
        return last
    wanted = ids.before(f"{bound.ms}-0") if bound.ms is not None else _upto(bound.of(stream))
    return last if ids.parse(wanted) >= ids.parse(state.last_id) else Position(wanted)


def _upto(place: str) -> str:
    return ids.before(place[1:]) if place.startswith("(") else place


def placed(after: str, state: StreamState) -> Position:
    """Return a position by id, with its rank where the server's counters tell it."""
    if ids.parse(after) >= ids.parse(state.last_id):
        # Without counters a position ahead of the stream could not be told from one in a stream that was deleted.
        return Position(after if state.added is not None else state.last_id, state.added)
    first = beginning(state)
    if ids.parse(after) <= ids.parse(first.id):
        return first  # nothing is left before the first entry, and nobody asked for more than what is there
    return Position(after)


def group_position(client: StreamClient, stream: str, group: str) -> str:
    """Return the last id that a consumer group was handed."""
    found = look_at_group(client, stream, group)
    if found is None:
        raise ConfigurationError(f"stream {stream!r} has no consumer group {group!r} to begin at")
    return str(found[b"last-delivered-id"].decode())
