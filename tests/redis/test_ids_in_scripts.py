"""Scripts compare and count ids as the server does, over the whole range of two unsigned 64-bit numbers."""

from __future__ import annotations

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import ids
from penstock.redis.scripts import part

MOST = 2**64 - 1
EDGES = [0, 1, 9, 10, 99, 10**15 - 1, 10**15, 2**53 - 1, 2**53, 2**53 + 1, 2**63, MOST - 1, MOST]
numbers = st.one_of(st.integers(0, MOST), st.sampled_from(EDGES), st.integers(2**53 - 3, 2**53 + 3))
entry_ids = st.builds(lambda ms, seq: f"{ms}-{seq}", numbers, numbers)

SOURCE = f"""
{part("shared/ids")}
local out = {{}}
for i = 1, #ARGV, 2 do
  out[#out + 1] = {{is_smaller(ARGV[i], ARGV[i + 1]) and 1 or 0, next_id(ARGV[i]), previous_id(ARGV[i])}}
end
return out
"""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(pairs=st.lists(st.tuples(entry_ids, entry_ids), min_size=1, max_size=200))
@pytest.mark.usefixtures("default_server")
def test_scripts_agree_with_the_integers_of_python(raw: redis.Redis, pairs: list[tuple[str, str]]) -> None:
    last = f"{MOST}-{MOST}"
    wanted = [
        [
            int(ids.parse(a) < ids.parse(b)),
            (a if a == last else ids.after(a)).encode(),
            ids.before(a).encode(),
        ]
        for a, b in pairs
    ]
    assert raw.eval(SOURCE, 0, *(text for pair in pairs for text in pair)) == wanted
