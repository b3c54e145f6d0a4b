"""Worker names are unique, readable and short."""

from __future__ import annotations

import os
import re
import socket

from hypothesis import given
from hypothesis import strategies as st

from penstock.config import MAX_WORKER_NAME, unique_worker_name

UNIQUE = re.compile(r"_([0-9a-f]{8,})\Z")


def test_a_name_tells_group_host_and_a_unique_part() -> None:
    name = unique_worker_name("order_workers", hostname="pod-a", pid=0x2A)
    assert re.fullmatch(r"order_workers_pod-a_2a[0-9a-f]{8}", name)


def test_host_and_process_default_to_the_own() -> None:
    name = unique_worker_name("g")
    assert name.startswith(f"g_{socket.gethostname()[-40:]}_{os.getpid():x}")


def test_two_names_of_one_process_differ() -> None:
    assert len({unique_worker_name("g", "host", 1) for _ in range(1_000)}) == 1_000


def test_a_long_group_is_cut_and_the_host_is_kept() -> None:
    name = unique_worker_name("g" * 100, hostname="pod-7d9c5b7f9-x2x4z", pid=1)
    assert len(name) == MAX_WORKER_NAME
    assert re.search(r"g_pod-7d9c5b7f9-x2x4z_1[0-9a-f]{8}\Z", name)


def test_a_long_host_is_cut_next_and_keeps_its_tail() -> None:
    name = unique_worker_name("group", hostname="very-long-deployment-name" * 5 + "-7d9c5b7f9-x2x4z", pid=1)
    assert len(name) == MAX_WORKER_NAME
    assert re.match(r"g_[^_]+-7d9c5b7f9-x2x4z_1[0-9a-f]{8}\Z", name)


@given(
    group=st.text(min_size=1, max_size=200),
    host=st.text(min_size=1, max_size=255),
    pid=st.integers(min_value=0, max_value=2**32 - 1),
)
def test_no_name_is_too_long_and_the_unique_part_is_never_cut(group: str, host: str, pid: int) -> None:
    name = unique_worker_name(group, host, pid)
    assert len(name) <= MAX_WORKER_NAME
    assert name[0] == group[0]
    match = UNIQUE.search(name)
    assert match is not None
    assert match[1][:-8] == f"{pid:x}"


@given(group=st.text(min_size=1, max_size=20), host=st.text(min_size=1, max_size=20))
def test_what_fits_is_not_cut(group: str, host: str) -> None:
    assert unique_worker_name(group, host, 1).startswith(f"{group}_{host}_1")
