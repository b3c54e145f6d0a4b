"""The rules of this suite: what is missing skips, turns are complete, the order does not depend on luck."""

from __future__ import annotations

import ast
import re
import signal
import subprocess
import sys
from contextlib import suppress
from functools import cache

import pytest

from penstock.errors import PermissionDenied
from penstock.sync import StreamClient
from penstock.testing import ServerMissing
from tests.conftest import QUARANTINE, quarantined
from tests.helpers import missing
from tests.helpers.missing import skip_where_missing
from tests.helpers.processes import running
from tests.helpers.users import SharedServer, User

# Tests on several servers, slow ones, and some that are neither.
_FILES = ("tests/balancer/test_defects.py", "tests/testing/test_embedded_server.py")


@cache
def collected(*options: str) -> list[str]:
    """Returns the names of the tests that a run would begin with these options, in their order."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *_FILES, *options]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout
    return [line for line in printed.splitlines() if "::" in line]


def test_what_is_missing_skips_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missing, "IS_CI", False)
    with pytest.raises(pytest.skip.Exception, match="brew it"), skip_where_missing():
        raise ServerMissing("redis-9.9 is missing: brew it")


def test_in_continuous_integration_what_is_missing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missing, "IS_CI", True)
    with pytest.raises(pytest.fail.Exception, match="brew it"), skip_where_missing():
        raise ServerMissing("redis-9.9 is missing: brew it")


@pytest.mark.slow
@pytest.mark.timeout(600)  # eight times pytest
def test_six_rotations_in_a_row_run_everything_and_slow_tests_once() -> None:
    turns = [collected("--rotation", str(number)) for number in range(7, 13)]
    slow = {name.partition("[")[0] for name in collected("-m", "slow")}
    run = [name for turn in turns for name in turn]
    assert set(run) >= {name for name in collected("--matrix", "all") if name.partition("[")[0] not in slow}
    assert [name.partition("[")[0] for name in run if name.partition("[")[0] in slow] == sorted(slow)


def test_a_slow_test_runs_when_it_is_asked_for() -> None:
    slow = set(collected("-m", "slow"))
    assert slow
    assert not slow & set(collected())


def test_with_users_only_tests_of_a_role_run() -> None:
    names = collected("--acl")
    assert names
    assert all(name.startswith("tests/balancer/") for name in names)
    assert {*names} < {*collected()}


def test_a_refusal_that_nobody_noticed_fails_the_test(default_server: SharedServer) -> None:
    default_server.log_in(User("readonly", stream=("orders",)))
    with StreamClient.from_url(default_server.unix_url) as client:
        client.call("orders", "XLEN", "orders")
        assert default_server.refused == []
        with suppress(PermissionDenied):
            client.call("orders", "XADD", "orders", "*", "data", "1")
    assert default_server.refused == ["xadd"]
    default_server.log_out()


def test_a_seed_is_an_order_that_can_be_repeated() -> None:
    shuffled = collected("--order-seed", "1")
    assert shuffled == collected.__wrapped__("--order-seed", "1")
    assert shuffled != collected()
    assert sorted(shuffled) == sorted(collected())


def test_whatever_is_in_quarantine_is_a_test_and_has_a_reason() -> None:
    for name, reason in quarantined().items():
        path, _, function = name.partition("::")
        assert f"def {function.rpartition('::')[2]}(" in (QUARANTINE.parent.parent / path).read_text(), name
        assert reason.strip(), name


def test_the_files_that_stand_in_for_others_exist() -> None:
    tests = QUARANTINE.parent
    named = re.findall(r"`([a-z0-9_/]+\.py)`", (tests / "README.md").read_text())
    assert named
    assert [name for name in named if not ((tests.parent / name).exists() or any(tests.rglob(name)))] == []


def test_a_process_does_not_outlive_a_test_that_fails() -> None:
    with pytest.raises(ZeroDivisionError), running(["sh", "-c", "sleep 1000 | cat"], stdout=subprocess.PIPE) as process:
        raise ZeroDivisionError
    assert process.returncode == -signal.SIGKILL


def test_no_test_leaves_it_to_popen_to_wait_for_a_process() -> None:
    tests = QUARANTINE.parent
    files = [path for path in tests.rglob("*.py") if re.search(r"with (subprocess\.)?Popen\(", path.read_text())]
    assert [path.relative_to(tests).as_posix() for path in files] == ["helpers/processes.py"], "use running() of it"


def test_no_thread_of_a_test_keeps_its_process_from_ending() -> None:
    tests = QUARANTINE.parent
    found = [
        f"{path.relative_to(tests)}:{call.lineno}"
        for path in tests.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("Thread")
        if any(word.arg == "target" for word in call.keywords)
        and not any(word.arg == "daemon" for word in call.keywords)
    ]
    assert found == [], "a thread that hangs ends with its process only where it is daemon=True"
