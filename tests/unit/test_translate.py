"""Error replies as servers of all versions word them. The real servers are asked in tests/redis."""

from __future__ import annotations

import pytest
import redis.exceptions as driver
from hypothesis import given
from hypothesis import strategies as st

from penstock import errors
from penstock.redis.translate import Redirected, ScriptMissing, connect_error, error_reply


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("WRONGTYPE Operation against a key holding the wrong kind of value", errors.WrongType),
        ("ERR Error running script (call to f_1): @user_script:1: WRONGTYPE Operation against a key", errors.WrongType),
        ("WRONGTYPE Operation against a key script: f1, on @user_script:1.", errors.WrongType),
        ("NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option", errors.GroupLost),
        ("-NOGROUP the consumer group this client was blocked on no longer exists", errors.GroupLost),
        ("UNBLOCKED the stream key no longer exists", errors.GroupLost),
        ("ERR no such key", errors.GroupLost),
        (
            "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
            errors.ReadOnlyServer,
        ),
        ("READONLY You can't write against a read only replica.", errors.ReadOnlyServer),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", errors.ReadOnlyServer),
        ("OOM command not allowed when used memory > 'maxmemory'.", errors.OutOfMemory),
        ("ERR Error running script: @user_script: 1: -OOM command not allowed", errors.OutOfMemory),
        ("NOPERM this user has no permissions to run the 'set' command", errors.PermissionDenied),
        ("ERR The user executing the script can't run this command or subcommand", errors.PermissionDenied),
        ("ERR ACL failure in script: User ann has no permissions to run the 'set' command", errors.PermissionDenied),
        ("NOAUTH Authentication required.", errors.AuthenticationFailed),
        ("WRONGPASS invalid username-password pair or user is disabled.", errors.AuthenticationFailed),
        ("ERR invalid password", errors.AuthenticationFailed),
        ("ERR Protocol error: unauthenticated multibulk length", errors.AuthenticationFailed),
        ("LOADING Redis is loading the dataset in memory", errors.ServerBusy),
        ("BUSY Redis is busy running a script.", errors.ServerBusy),
        ("TRYAGAIN Multiple keys request during rehashing of slot", errors.ServerBusy),
        ("CLUSTERDOWN The cluster is down", errors.ServerBusy),
        ("CROSSSLOT Keys in request don't hash to the same slot", errors.ClusterSlotError),
        ("NOREPLICAS Not enough good replicas to write.", errors.NotReplicating),
        ("MISCONF Redis is configured to save RDB snapshots", errors.TransientError),
        ("NOSCRIPT No matching script. Please use EVAL.", ScriptMissing),
        ("FENCED a newer process runs as w1", errors.ConsumerNameTaken),
        ("ERR unknown command 'XNACK', with args beginning with:", errors.UnsupportedServer),
        ("ERR Unknown subcommand or wrong number of arguments for 'X'.", errors.UnsupportedServer),
        ("ERR value is not an integer or out of range", errors.ServerError),
        ("BUSYGROUP Consumer Group name already exists", errors.ServerError),
        ("EXECABORT Transaction discarded", errors.ServerError),
        ("", errors.ServerError),
    ],
)
def test_a_reply_becomes_its_error(text: str, error: type[Exception]) -> None:
    found = error_reply(text)
    assert type(found) is error
    assert text in str(found)


@given(st.text())
def test_no_reply_whatever_is_left_untranslated(text: str) -> None:
    assert isinstance(error_reply(f"ERR {text}"), errors.PenstockError)


@pytest.mark.parametrize(
    ("text", "ask_host"),
    [
        ("MOVED 3999 127.0.0.1:6381", None),
        ("ASK 3999 127.0.0.1:6381", ("127.0.0.1", 6381)),
        ("ASK 3999 ::1:6381", ("::1", 6381)),
        ("ASK 3999 node.example:6381", ("node.example", 6381)),
    ],
)
def test_a_redirection_says_whom_to_ask(text: str, ask_host: tuple[str, int] | None) -> None:
    found = error_reply(text)
    assert isinstance(found, Redirected)
    assert found.ask_host == ask_host


@pytest.mark.parametrize(
    ("raised", "error", "says"),
    [
        (
            driver.AuthenticationError("invalid username-password pair"),
            errors.AuthenticationFailed,
            "rejected the cred",
        ),
        (driver.NoPermissionError("no"), errors.PermissionDenied, "refused the connection"),
        (driver.BusyLoadingError("Redis is loading"), errors.ServerBusy, "loading"),
        (driver.ResponseError("BUSY Redis is busy"), errors.ServerBusy, "BUSY"),
        (driver.TimeoutError("Timeout connecting"), errors.ConnectionFailed, "within the connect timeout"),
        (TimeoutError(), errors.ConnectionFailed, "within the connect timeout"),
        (driver.ConnectionError("Error 111 connecting."), errors.ConnectionFailed, "check that the server is running"),
        (OSError("no route"), errors.ConnectionFailed, "no route"),
        (driver.RedisClusterException("cannot be connected"), errors.ConnectionFailed, "cannot be connected"),
    ],
)
def test_a_failed_login_names_the_server(raised: Exception, error: type[Exception], says: str) -> None:
    found = connect_error(raised, "host:1")
    assert type(found) is error
    assert says in str(found)


def test_the_last_word_of_a_cluster_node_counts() -> None:
    wrapped = driver.RedisClusterException("cannot be connected")
    wrapped.__cause__ = driver.AuthenticationError("invalid")
    assert isinstance(connect_error(wrapped, "host:1"), errors.AuthenticationFailed)
