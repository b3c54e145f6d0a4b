"""Penstock's own code on its way to executors that do not have it.

PySpark can pickle classes and functions by value, but not the decoders, caches and locks that modules hold beside them.
So the package travels whole, as an archive inside everything of ours that Spark pickles: what arrives first unpacks it.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource

_PACKAGE = "penstock"
_LEFT_BEHIND = {"cli", "testing", "__pycache__"}
_CONTENT = (".py", ".lua", ".typed")
_BEGINNING = (1980, 1, 1, 0, 0, 0)  # the same files make the same archive
_is_packing: ContextVar[bool] = ContextVar("penstock_is_packing", default=False)
_going: list[bytes] = []  # the archive, while it goes with what is pickled in this process


@cache
def packed() -> bytes:
    """Returns the archive of this package."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, file in sorted(_walk(files(_PACKAGE), _PACKAGE), key=lambda found: found[0]):
            archive.writestr(zipfile.ZipInfo(name, _BEGINNING), file.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


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


def _walk(place: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    for entry in place.iterdir():
        if entry.is_dir() and entry.name not in _LEFT_BEHIND:
            yield from _walk(entry, f"{path}/{entry.name}")
        elif entry.name.endswith(_CONTENT):
            yield f"{path}/{entry.name}", entry


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

        home = Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}-{digest}"
        loaded = sys.modules.get("penstock")
        if loaded is None or not str(loaded.__file__).startswith(str(home)):
            home.mkdir(mode=0o700, exist_ok=True)
            if home.lstat().st_uid != os.getuid():
                raise PermissionError(f"{home} belongs to somebody else, and holds code that would be run")
            archive = zipfile.ZipFile(io.BytesIO(content))
            # File by file: other workers do the same at this moment, and a cleaner of old files may have taken some.
            for name in archive.namelist():
                file = home / name
                if not file.is_file():
                    file.parent.mkdir(parents=True, exist_ok=True)
                    draft = file.with_name(f"{file.name}.{os.getpid()}")
                    draft.write_bytes(archive.read(name))
                    draft.replace(file)
            # An older Penstock of this machine may be loaded already; what was pickled belongs to this one.
            forget()
            sys.path.insert(0, str(home))
            importlib.invalidate_caches()
            importlib.import_module("penstock.spark.runtime.code_shipping").carry(content)
        return pickle.loads(pickled)  # noqa: S301 - comes from our own driver, with the job

    return unpack


def _forgetter(package: str) -> Callable[[], None]:
    """Returns a function, local as well, that has Python import a package anew, and all modules that hold parts of it.

    Spark's workers serve one job after the other. A module that was imported with the Penstock before would go on
    with its classes: a handler would raise a FatalError that is none to the Penstock of this job.
    """

    def forget() -> None:
        import sys
        from types import FunctionType, ModuleType

        def inside(module: object) -> dict[str, Any]:
            # Asked for in the usual way, it would wake a module that loads itself when it is used.
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
