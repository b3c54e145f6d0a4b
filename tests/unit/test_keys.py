from __future__ import annotations

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from redis.crc import key_slot

from penstock.errors import ClusterSlotError, ConfigurationError
from penstock.keys import MAX_NAME, StreamKeys, check_name, check_same_slot, hash_tag, hashed_part

names = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=40).filter(str.strip)
keys_around = [
    lambda keys, name: keys.producer(name),
    lambda keys, name: keys.dedup(name),
    lambda keys, name: keys.attempts(name),
    lambda keys, name: keys.retries(name),
    lambda keys, name: keys.position(name),
    lambda keys, name: keys.worker(name, name),
    lambda keys, name: keys.chore(name, name),
]


@given(names, names, st.sampled_from(["", "shop", "{tag}", "a b"]))
def test_all_keys_of_a_stream_are_in_its_slot(stream: str, name: str, prefix: str) -> None:
    try:
        keys = StreamKeys.of(stream, prefix)
    except ConfigurationError:
        assume(False)
    for spell in keys_around:
        assert key_slot(spell(keys, name).encode()) == key_slot(keys.stream.encode())


@given(names, names)
def test_no_two_kinds_of_keys_are_the_same(stream: str, name: str) -> None:
    assume("{" not in stream + name and "}" not in stream + name)
    keys = StreamKeys.of(stream)
    spelled = [keys.stream, keys.default_dead_letters(), *(spell(keys, name) for spell in keys_around)]
    assert len(set(spelled)) == len(spelled)


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=30))
def test_the_hashed_part_is_what_the_cluster_hashes(key: str) -> None:
    assert key_slot(hashed_part(key).encode()) == key_slot(key.encode())


@pytest.mark.parametrize(
    ("key", "tag"),
    [
        ("plain", None),
        ("{orders}_main", "orders"),
        ("a{b}c{d}", "b"),
        ("{}x", None),
        ("{", None),
        ("a}b{c}", "c"),
        ("{{a}}", "{a"),
        ("a{b", None),
    ],
)
def test_the_hash_tag_is_the_first_pair_of_braces(key: str, tag: str | None) -> None:
    assert hash_tag(key) == tag


def test_keys_are_spelled_as_documented() -> None:
    keys = StreamKeys.of("orders")
    assert keys.stream == "orders"
    assert keys.producer("p1") == "{orders}:producer:p1"
    assert keys.dedup("k") == "{orders}:dedup:k"
    assert keys.attempts("g") == "{orders}:attempts:g"
    assert keys.retries("g") == "{orders}:retries:g"
    assert keys.position("g") == "{orders}:position:g"
    assert keys.worker("g", "w") == "{orders}:worker:g:w"
    assert keys.default_dead_letters() == "orders_dlq"
    assert StreamKeys.of("orders", "shop").stream == "shop_orders"
    assert StreamKeys.of("{orders}_main").attempts("g") == "{orders}_main:attempts:g"
    assert StreamKeys.of("{orders}_main").default_dead_letters() == "{orders}_main_dlq"


@given(names)
def test_a_good_name_is_returned_as_it_is(name: str) -> None:
    assume(len(name.encode()) <= MAX_NAME)
    assert check_name("stream", name) is name


def test_keys_that_change_together_must_share_a_slot() -> None:
    check_same_slot("{orders}_main", "{orders}_dlq", "dlq_stream")
    check_same_slot("orders", "orders", "dlq_stream")
    with pytest.raises(ClusterSlotError, match=r"dlq_stream 'orders_dlq' and stream 'orders' .* '\{orders\}_main'"):
        check_same_slot("orders", "orders_dlq", "dlq_stream")


@given(names, names, names, names)
@example("a:b", "c", "a", "b:c")
@example("1:a", "b", "1", "a:b")
@example("1:a:b", "c", "a", "b:c")
def test_two_pairs_of_names_have_two_keys(group: str, name: str, other_group: str, other_name: str) -> None:
    keys = StreamKeys.of("orders")
    is_same = (group, name) == (other_group, other_name)
    assert (keys.worker(group, name) == keys.worker(other_group, other_name)) is is_same
    assert (keys.chore(group, name) == keys.chore(other_group, other_name)) is is_same


def test_names_without_a_colon_are_written_as_they_are() -> None:
    keys = StreamKeys.of("orders")
    assert keys.worker("shipping", "worker-1") == "{orders}:worker:shipping:worker-1"
    assert keys.worker("a:b", "c") == "{orders}:worker:3:a:b:c"
