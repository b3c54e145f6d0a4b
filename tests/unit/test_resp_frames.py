from __future__ import annotations

from itertools import pairwise

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.testing.resp_frames import NotResp, RespFrames, words_of

REPLIES = [
    b"+OK\r\n",
    b"-ERR no\r\n",
    b":42\r\n",
    b"$-1\r\n",
    b"$0\r\n\r\n",
    b"$7\r\na\r\n*3\r\n\r\n",
    b"*-1\r\n",
    b"*0\r\n",
    b"*2\r\n$1\r\na\r\n*2\r\n:1\r\n*0\r\n",
    b"%1\r\n+k\r\n*1\r\n_\r\n",
    b"|1\r\n+ttl\r\n:3\r\n$2\r\nhi\r\n",
    b">3\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n#t\r\n",
    b"=5\r\ntxt:a\r\n",
    b",1.5\r\n",
    b"(123\r\n",
    b"~1\r\n+x\r\n",
]


@given(st.lists(st.sampled_from(REPLIES)), st.lists(st.integers(0, 200)))
def test_replies_are_cut_the_same_however_the_bytes_arrive(replies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(replies)
    frames = RespFrames()
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    found = [frame for start, end in pairwise(edges) for frame in frames.feed(stream[start:end])]
    assert found == replies
    assert frames.rest() == b""


@given(st.lists(st.binary(), min_size=1))
def test_a_request_is_read_back_word_for_word(words: list[bytes]) -> None:
    (request,) = RespFrames().feed(hiredis.pack_command(tuple(words)))
    assert words_of(request) == words


def test_what_comes_before_strange_bytes_is_still_handed_out() -> None:
    frames = RespFrames()
    found = frames.feed(b"+OK\r\n\x16\x03\x01")
    assert next(found) == b"+OK\r\n"
    with pytest.raises(NotResp):
        next(found)
    assert frames.rest() == b"\x16\x03\x01"


def test_a_frame_that_is_no_request_has_no_words() -> None:
    assert words_of(b"+OK\r\n") == []
    assert words_of(b"*1\r\n:1\r\n") == []
