"""The modules of the user's own functions, on their way to the executors of a cluster.

They lie beside the definition that names them, on the driver's machine. What is installed is left alone: it comes from
an index, and whoever runs a cluster has put it there, or into the environment that the job brings along.
"""

from __future__ import annotations

import atexit
import hashlib
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.spark.runtime.master import is_connect, is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_INSTALLED = {"site-packages", "dist-packages"}
_OURS = "penstock"  # comes another way (code_shipping.py)
_BEGINNING = (1980, 1, 1, 0, 0, 0)  # the same files make the same archive
_sent: set[tuple[str, Path]] = set()


def send_modules(spark: SparkSession, functions: Iterable[str]) -> None:
    """Send the modules of functions, written as `package.module:function`, to the executors of a classic cluster.

    A package goes whole, with its Python files. What it imports from beside it does not: that is named in
    `spark.submit.pyFiles`.
    """
    if is_connect(spark) or is_local(spark.sparkContext.master):
        return
    for name in sorted({path.partition(":")[0].partition(".")[0] for path in functions}):
        place = place_of(name)
        if place is None:
            continue
        archive = packed(name, place)
        sent = (spark.sparkContext.applicationId, archive)
        if sent not in _sent:
            _sent.add(sent)
            spark.sparkContext.addPyFile(str(archive))


def place_of(name: str) -> Path | None:
    """Return the file or folder of a module that only this machine has; None for one that is installed, or is none."""
    if name in sys.stdlib_module_names or name == _OURS:
        return None
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):  # validation tells it
        return None
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or ())
    place = Path(folders[0] if folders else spec.origin or "")
    if _INSTALLED & {*place.parts} or not (place.is_dir() or place.suffix == ".py"):
        return None
    return place


def packed(name: str, place: Path) -> Path:
    """Return a zip file of a module that is named after its content, so that a session may have an older one too."""
    found = dict(_files(name, place))
    digest = hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()[:16]
    archive = _folder() / f"{name}-{digest}.zip"
    if not archive.exists():
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as made:
            for path, content in sorted(found.items()):
                made.writestr(zipfile.ZipInfo(path, _BEGINNING), content, zipfile.ZIP_DEFLATED)
    return archive


def _files(name: str, place: Path) -> Iterator[tuple[str, bytes]]:
    if place.is_file():
        yield place.name, place.read_bytes()
        return
    for file in place.rglob("*.py"):
        inner = file.relative_to(place)
        for folder in inner.parents:  # Python imports a folder without __init__.py only if the archive names it
            yield f"{name}/{folder}/".replace("/./", "/"), b""
        yield f"{name}/{inner}", file.read_bytes()


@cache
def _folder() -> Path:
    """Return where they lie as long as this process lives: executors that start later ask for them, too."""
    place = Path(tempfile.mkdtemp(prefix="penstock-modules-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place
