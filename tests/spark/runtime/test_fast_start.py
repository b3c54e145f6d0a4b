from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pyspark
import pytest

from penstock.spark.runtime import fast_start
from penstock.spark.runtime.fast_start import java_options, slim_spark_home
from penstock.spark.runtime.files import find_made, made_once

_PACKAGE = Path(pyspark.__file__).resolve().parent


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_HOME", raising=False)


@pytest.mark.slow
def test_the_class_archive_is_used_once_it_has_been_made(java: Path) -> None:
    assert "SharedArchiveFile" not in java_options()

    def make(place: Path) -> None:
        (place / "classes.jsa").touch()

    place = made_once("classes", fast_start._archive_key(), make)
    assert f"-XX:SharedArchiveFile={place}/classes.jsa" in java_options().split()


def test_the_slim_home_has_everything_but_the_python_of_spark() -> None:
    with slim_spark_home():
        home = Path(os.environ["SPARK_HOME"])
        assert {entry.name for entry in home.iterdir()} == {entry.name for entry in _PACKAGE.iterdir()}
        assert (home / "jars").resolve() == _PACKAGE / "jars"
        for archive in (_PACKAGE / "python" / "lib").glob("*.zip"):
            assert zipfile.ZipFile(home / "python" / "lib" / archive.name).namelist() == []
    assert "SPARK_HOME" not in os.environ


def test_a_spark_home_of_the_user_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    with slim_spark_home():
        assert os.environ["SPARK_HOME"] == "/opt/spark"
    assert os.environ["SPARK_HOME"] == "/opt/spark"


def test_a_directory_that_could_not_be_made_is_not_there_at_all() -> None:
    def fail(place: Path) -> None:
        (place / "half").touch()
        raise RuntimeError("no space")

    with pytest.raises(RuntimeError, match="no space"):
        made_once("kind", "key", fail)
    assert not find_made("kind", "key").exists()
    assert list(find_made("kind", "key").parent.iterdir()) == []


def test_of_two_that_make_the_same_directory_the_first_wins() -> None:
    def slow(place: Path) -> None:
        (place / "second").touch()
        made_once("kind", "key", lambda first: (first / "first").touch())

    assert [entry.name for entry in made_once("kind", "key", slow).iterdir()] == ["first"]
