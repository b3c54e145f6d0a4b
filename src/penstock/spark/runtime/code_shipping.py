"""Code on its way to executors that do not have it: Penstock's own, and the modules of the user's functions.

PySpark can pickle classes and functions by value, but not the decoders, caches and locks of their modules.
So Penstock travels whole, as an archive inside everything of ours that Spark pickles: what arrives first unpacks it.

The user's functions are in modules on the driver's machine, and Spark itself sends those. Installed packages are not
sent: the cluster has them, or the environment that the job ships.
"""

from __future__ import annotations

import atexit
import hashlib
import io
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigurationError, summary_of
from penstock.spark.runtime.master import is_connect, is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

_PACKAGE = "penstock"
_LEFT_BEHIND = {"cli", "testing", "__pycache__"}
_CONTENT = (".py", ".lua", ".typed")
_BEGINNING = (1980, 1, 1, 0, 0, 0)  # the same files make the same archive
_is_packing: ContextVar[bool] = ContextVar("penstock_is_packing", default=False)
_going: list[bytes] = []  # the archive, while it goes with what is pickled in this process
_INSTALLED = {"site-packages", "dist-packages"}
_sent: set[tuple[str, Path]] = set()


@cache
def packed() -> bytes:
    """Returns the archive of this package."""
    return _zipped({name: file.read_bytes() for name, file in _walk(files(_PACKAGE), _PACKAGE)})


def shipped(source: type[DataSource]) -> type[DataSource]:
    """Returns a data source that unpacks Penstock wherever Spark makes an instance of it, and becomes the given one."""
    from pyspark.sql.datasource import DataSource

    carry(packed())
    unpack, content, digest, name = _unpacker(), packed(), _digest(packed()), source.name()
    cloudpickle: Any = import_module("pyspark.cloudpickle")
    reference = cloudpickle.dumps(source)

    # Local, like the function in it, and therefore pickled by value.
    class ShippedSource(DataSource):
        def __new__(cls, options: Any) -> Any:
            return unpack(digest, content, reference)(options)

        @classmethod
        def name(cls) -> str:
            return name

    return ShippedSource


def carry(content: bytes) -> None:
    """Puts the archive into everything of ours that is pickled in this process from now on."""
    _going[:] = [content]


class Shipped:
    """What Spark pickles by itself: data sources, their readers and writers, and functions over rows.

    It brings Penstock's code along while that goes with the jobs of this process; by reference otherwise. Partitions
    and messages follow them, and need nothing.
    """

    def __reduce_ex__(self, protocol: Any) -> str | tuple[Any, ...]:
        """Say how this is pickled."""
        if _is_packing.get() or not _going:
            return super().__reduce_ex__(protocol)
        content = _going[0]
        cloudpickle: Any = import_module("pyspark.cloudpickle")
        token = _is_packing.set(True)
        try:
            return _unpacker(), (_digest(content), content, cloudpickle.dumps(self))
        finally:
            _is_packing.reset(token)


def leave() -> None:
    """Lets everything be pickled by reference again."""
    _going.clear()


def is_carried() -> bool:
    """Tells whether the archive goes with what is pickled in this process."""
    return bool(_going)


def _walk(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir() and entry.name not in _LEFT_BEHIND:
            yield from _walk(entry, f"{path}/{entry.name}")
        elif entry.name.endswith(_CONTENT):
            yield f"{path}/{entry.name}", entry


def _zipped(content: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(content):
            archive.writestr(zipfile.ZipInfo(name, _BEGINNING), content[name], zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _unpacker() -> Callable[[str, bytes, bytes], Any]:
    """Returns a function that needs nothing of this package: it is local, and therefore pickled by value."""
    forget = _forgetter(_PACKAGE)

    def unpack(digest: str, content: bytes, pickled: bytes) -> Any:
        import importlib
        import io
        import os
        import pickle
        import sys
        import tempfile
        import zipfile
        from pathlib import Path

        folder = Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}-{digest}"
        loaded = sys.modules.get("penstock")
        if loaded is None or not str(loaded.__file__).startswith(str(folder)):
            folder.mkdir(mode=0o700, exist_ok=True)
            if folder.lstat().st_uid != os.getuid():
                raise PermissionError(f"{folder} belongs to another user, and code in it would be executed")
            archive = zipfile.ZipFile(io.BytesIO(content))
            # File by file: other workers do the same at this moment, and a cleaner of old files may have taken some.
            for name in archive.namelist():
                file = folder / name
                if not file.is_file():
                    file.parent.mkdir(parents=True, exist_ok=True)
                    draft = file.with_name(f"{file.name}.{os.getpid()}")
                    draft.write_bytes(archive.read(name))
                    draft.replace(file)
            # An older Penstock of this machine may be loaded already; what was pickled belongs to this one.
            forget()
            sys.path.insert(0, str(folder))
            importlib.invalidate_caches()
            importlib.import_module("penstock.spark.runtime.code_shipping").carry(content)
        return pickle.loads(pickled)  # noqa: S301 - comes from our own driver, with the job

    return unpack


def _forgetter(package: str) -> Callable[[], None]:
    """Returns a function, local as well, that makes Python import a package again, and all modules that refer to it.

    Spark's workers serve one job after the other. A module that was imported with the Penstock before would go on
    with its classes: a handler would raise a FatalError that is none to the Penstock of this job.
    """

    def forget() -> None:
        import sys
        from types import FunctionType, ModuleType

        def inside(module: object) -> dict[str, Any]:
            # Asked for in the usual way, it would load a module that is loaded when it is first used.
            found: dict[str, Any] = object.__getattribute__(module, "__dict__")
            return found

        others = {*sys.stdlib_module_names, "__main__", "pyspark"}
        modules = [(name, module) for name, module in [*sys.modules.items()] if issubclass(type(module), ModuleType)]
        held = {name: inside(module) for name, module in modules if name.partition(".")[0] not in others}
        gone = {name for name in held if name.partition(".")[0] == package}

        def is_of_gone(holder: str, value: Any) -> bool:
            kind = type(value)  # isinstance() would ask a proxy what it stands for
            if issubclass(kind, ModuleType):
                name = str(inside(value).get("__name__"))
                return name in gone and not name.startswith(f"{holder}.")  # a package may stay without one of its own
            if issubclass(kind, FunctionType):
                return getattr(value, "__module__", None) in gone
            bases = (value if issubclass(kind, type) else kind).__mro__
            return any(getattr(base, "__module__", None) in gone for base in bases)

        def is_gone(name: str) -> bool:
            parents = (name[:end] for end, letter in enumerate(name) if letter == ".")
            return any(parent in gone for parent in parents) or any(
                is_of_gone(name, value) for value in list(held[name].values())
            )

        found = gone
        while found:  # who imported one of them may have its classes, too
            found = {name for name in held if name not in gone and is_gone(name)}
            gone |= found
        for name in gone:
            module, (parent, _, own) = sys.modules.pop(name), name.rpartition(".")
            if held.get(parent, {}).get(own) is module:
                del held[parent][own]  # `from package import module` would take it from there

    return forget


# --- the modules of the user's functions -------------------------------------------------------------


def imported(label: str, path: str) -> Any:
    """Return what a path such as `package.module:name` names; raise ConfigurationError, about `label`, if nothing."""
    module, _, name = path.partition(":")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:  # whatever the user's module raises while it is imported
        raise ConfigurationError(f"{label} cannot be imported here: {summary_of(error)}") from None
    return found


def send_modules(spark: SparkSession, functions: Iterable[str]) -> None:
    """Send the modules of functions, written as `package.module:function`, to the executors of a classic cluster.

    A package is sent whole, with its Python files. Other modules that it imports are not; name those in
    `spark.submit.pyFiles`.
    """
    if is_connect(spark) or is_local(spark.sparkContext.master):
        return
    for name in sorted({path.partition(":")[0].partition(".")[0] for path in functions}):
        path = place_of(name)
        if path is None:
            continue
        archive = packed_module(name, path)
        sent = (spark.sparkContext.applicationId, archive)
        if sent not in _sent:
            _sent.add(sent)
            spark.sparkContext.addPyFile(str(archive))


def place_of(name: str) -> Path | None:
    """Return the file or folder of a module that only this machine has; None for one that is installed, or is none."""
    if name in sys.stdlib_module_names or name == _PACKAGE:
        return None
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):  # validation reports it
        return None
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or ())
    path = Path(folders[0] if folders else spec.origin or "")
    if _INSTALLED & {*path.parts} or not (path.is_dir() or path.suffix == ".py"):
        return None
    return path


def packed_module(name: str, path: Path) -> Path:
    """Return a zip file of a module that is named after its content, so that a session may have an older one too."""
    content = _zipped(dict(_module_files(name, path)))
    archive = _modules_folder() / f"{name}-{_digest(content)}.zip"
    if not archive.exists():
        archive.write_bytes(content)
    return archive


def _module_files(name: str, path: Path) -> Iterator[tuple[str, bytes]]:
    if path.is_file():
        yield path.name, path.read_bytes()
        return
    for file in path.rglob("*.py"):
        inner = file.relative_to(path)
        for folder in inner.parents:  # Python imports a folder without __init__.py only if the archive names it
            yield f"{name}/{folder}/".replace("/./", "/"), b""
        yield f"{name}/{inner}", file.read_bytes()


@cache
def _modules_folder() -> Path:
    """Return a folder for them that exists as long as this process: executors that start later fetch them, too."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-modules-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
