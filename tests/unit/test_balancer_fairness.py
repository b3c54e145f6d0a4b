"""Who should own how much: shares that add up, and moves that come to rest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.balancer.holdings import Peer, fair_share, is_ahead, surplus

PEERS = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=1), st.builds(Peer, st.integers(0, 30), st.integers(0, 10)), min_size=1
)


@pytest.mark.parametrize(
    ("owned", "expected"),
    [([8, 0], [4, 0]), ([4, 4, 0], [1, 1, 0]), ([2, 1], [0, 0]), ([3, 3, 2], [0, 0, 0]), ([9], [0]), ([2, 0], [1, 0])],
)
def test_what_is_to_move(owned: list[int], expected: list[int]) -> None:
    peers = {str(number): Peer(count) for number, count in enumerate(owned)}
    assert [surplus(peers, name) for name in peers] == expected


def test_small_consumers_take_what_they_can() -> None:
    peers = {"small": Peer(1, capacity=1), "a": Peer(9), "b": Peer(0)}
    assert [fair_share(peers, name) for name in peers] == [1, 5, 5]
    assert surplus(peers, "a") == 4


@given(PEERS)
def test_moving_comes_to_rest_with_everything_in_its_place(peers: dict[str, Peer]) -> None:
    peers = {name: Peer(min(peer.owned, peer.capacity or peer.owned), peer.capacity) for name, peer in peers.items()}
    total = sum(peer.owned for peer in peers.values())
    for _ in range(200):
        moves = {name: surplus(peers, name) for name in peers}
        mover = max(moves, key=lambda name: moves[name])
        if not moves[mover]:
            break
        to = min((name for name in peers if name != mover and peers[name].has_room), key=lambda name: peers[name].owned)
        peers[mover] = Peer(peers[mover].owned - 1, peers[mover].capacity)
        peers[to] = Peer(peers[to].owned + 1, peers[to].capacity)
    else:
        pytest.fail(f"it goes on for ever: {peers}")
    assert sum(peer.owned for peer in peers.values()) == total
    open_ones = [peer.owned for peer in peers.values() if peer.has_room]
    if open_ones:
        assert max(peer.owned for peer in peers.values()) - min(open_ones) <= 1


def test_who_has_more_is_ahead_unless_the_others_are_full() -> None:
    assert is_ahead({"a": Peer(2), "b": Peer(1)}, "a", 2)
    assert not is_ahead({"a": Peer(2), "b": Peer(1, capacity=1)}, "a", 2)
    assert not is_ahead({"a": Peer(2)}, "a", 2)
