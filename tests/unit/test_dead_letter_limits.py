"""The limits of dead letters: what can be said, and what is refused."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from penstock import DeadLetterLimits, StreamClient
from penstock.errors import ConfigurationError
from penstock.settings import Settings
from penstock.sync.providers import make_task_queue
from penstock.sync.tasks import RedisTaskQueue


def test_dead_letters_are_limited_unless_somebody_says_otherwise() -> None:
    client = StreamClient()
    assert client.dead_letter_retention.limits == DeadLetterLimits(100_000, 30 * 86_400, 1 << 30, ignore_groups=False)
    assert not DeadLetterLimits().is_none
    assert StreamClient(dead_letter_limits=DeadLetterLimits.none()).dead_letter_retention.limits.is_none


def test_every_way_to_a_client_takes_limits() -> None:
    few = DeadLetterLimits(max_count=7)
    made = [
        StreamClient(dead_letter_limits=few),
        StreamClient.from_url("redis://localhost", dead_letter_limits=few),
        StreamClient.from_cluster([{"host": "localhost", "port": 7000}], dead_letter_limits=few),
        StreamClient.from_sentinel([("localhost", 26379)], "main", dead_letter_limits=few),
        StreamClient(dead_letter_limits={"max_count": 7}),
    ]
    assert [client.dead_letter_retention.limits for client in made] == [few] * 5


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, DeadLetterLimits()),
        ("none", DeadLetterLimits.none()),
        ({}, DeadLetterLimits()),
        ({"max_age_s": 60}, DeadLetterLimits(max_age_s=60)),
        ({"max_count": "none", "max_bytes": "none"}, DeadLetterLimits(max_count=None, max_bytes=None)),
        ({"ignore_groups": True}, DeadLetterLimits(ignore_groups=True)),
    ],
)
def test_limits_are_read_as_a_file_gives_them(given: object, expected: DeadLetterLimits) -> None:
    assert DeadLetterLimits.of(given) == expected


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"max_count": 0}, "max_count=0 must be positive"),
        ({"max_count": 1.5}, "max_count=1.5 must be a whole number"),
        ({"max_count": True}, "max_count=True must be a whole number"),
        ({"max_age_s": -1}, "max_age_s=-1 must be positive"),
        ({"max_age_s": math.inf}, "max_age_s=inf must be finite"),
        ({"max_age_s": "30d"}, "max_age_s='30d' must be a number"),
        ({"max_bytes": math.nan}, "max_bytes=nan must be a whole number"),
        ({"ignore_groups": "yes"}, "ignore_groups='yes' must be True or False"),
        (
            {"max_age": 5},
            "DeadLetterLimits has no field 'max_age'; its fields are max_count, max_age_s, max_bytes, ignore_groups",
        ),
        ("unlimited", "must be DeadLetterLimits, a table or 'none', not str"),
        (100, "must be DeadLetterLimits, a table or 'none', not int"),
    ],
)
def test_what_cannot_be_a_limit_is_refused(given: object, told: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(told)):
        DeadLetterLimits.of(given)


def test_a_queue_that_is_given_a_client_takes_the_limits_of_the_client() -> None:
    client = RedisTaskQueue("redis://localhost", dead_letter_limits={"max_count": 5}).client
    assert client.dead_letter_retention.limits.max_count == 5
    with pytest.raises(ConfigurationError, match="to the client"):
        RedisTaskQueue(client, dead_letter_limits={"max_count": 6})


def test_settings_limit_the_dead_letters_of_tasks(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('[task_queue.redis]\ndead_letter_limits = { max_count = 10, max_bytes = "none" }\n')
    made = make_task_queue(Settings.load(file, environment={}))
    assert made.client.dead_letter_retention.limits == DeadLetterLimits(max_count=10, max_bytes=None)
    name = "PENSTOCK__TASK_QUEUE__REDIS__DEAD_LETTER_LIMITS"
    for text, expected in (("{ max_count = 7 }", DeadLetterLimits(max_count=7)), ("none", DeadLetterLimits.none())):
        made = make_task_queue(Settings.load(file, environment={name: text}))
        assert made.client.dead_letter_retention.limits == expected


def test_a_mistake_in_the_settings_is_named(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text("[task_queue.redis]\ndead_letter_limits = { max_cont = 10 }\n")
    with pytest.raises(ConfigurationError, match="DeadLetterLimits has no field 'max_cont'"):
        make_task_queue(Settings.load(file, environment={}))


def test_the_limits_are_applied_after_a_hundredth_of_what_is_kept() -> None:
    assert DeadLetterLimits(max_count=50).apply_every == 1
    assert DeadLetterLimits(max_count=2_000).apply_every == 20
    assert DeadLetterLimits(max_bytes=1_000).apply_every == 1
    assert DeadLetterLimits(max_bytes=None).apply_every == DeadLetterLimits.none().apply_every == 100


def test_the_text_names_the_limits_that_there_are() -> None:
    assert str(DeadLetterLimits(10, None, None)) == "max_count=10"
    assert str(DeadLetterLimits.none()) == "none"
