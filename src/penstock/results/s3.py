"""S3Backend: results as objects in S3, or in any store that obstore knows."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from penstock.errors import BackendRefused, BackendUnavailable, ConfigurationError, cut
from penstock.lazy_imports import require
from penstock.number_checks import check_number
from penstock.results.backend import Backend, Chunk
from penstock.results.entry import StoredResult, day_of, kind_name, log, read_entry
from penstock.runtime.aio import side_by_side
from penstock.settings.masking import masked_text
from penstock.task import Result, check_id

_AT_ONCE = 32
_CHUNK = 500
_TRIES = 10
_PROBE = "penstock-create-only"


class S3Backend(Backend):
    """Stores each result in an object that is created and never overwritten.

    `url` is `s3://bucket/prefix` (or what else obstore takes); `store_options` go to obstore: `endpoint`, `region`,
    `access_key_id`, `secret_access_key`, `client_options`, `retry_config` and others. A request that takes longer than
    `timeout_s` is given up. Needs the extra `s3`.

        <prefix>/ids/<id>.msgpack              the result: get() is one request
        <prefix>/kinds/<kind>/<day>/<id>       empty, put before the result: iter(kind) is a listing of these

    iter() yields in the order of the ids, those of one kind the oldest day first. The store must know create-only puts
    (`If-None-Match: *`), as S3 itself does; one that ignores them is refused.
    """

    _needs = ("s3", "url")

    def __init__(self, url: str, *, timeout_s: float = 30.0, **store_options: Any) -> None:
        if "://" not in str(url):
            raise ConfigurationError("url must be a string such as s3://bucket/prefix")
        check_number("timeout_s", timeout_s, is_whole=False)
        self._obstore = require("obstore", "s3", "S3Backend")
        known = self._obstore.exceptions
        self._errors = (known.BaseError, OSError)
        self._permanent = (
            known.PermissionDeniedError,
            known.UnauthenticatedError,
            known.InvalidPathError,
            known.NotSupportedError,
            known.UnknownConfigurationKeyError,
            FileNotFoundError,
        )
        self.where = masked_text(url)
        self._store = _open(url, self.where, timeout_s, store_options)
        self._is_checked = False

    # --- saving -----------------------------------------------------------------------------------

    async def _save(self, entries: Sequence[StoredResult]) -> Mapping[str, bytes]:
        if entries and not self._is_checked:
            await self._check()
            self._is_checked = True
        return dict(await side_by_side(_AT_ONCE, self._save_one, entries))

    async def _check(self) -> None:
        """Refuse a store that writes over what it was asked to create only."""
        for _ in range(2):
            try:
                await self._obstore.put_async(self._store, _PROBE, b"", mode="create")
            except self._obstore.exceptions.AlreadyExistsError:
                return
        raise BackendRefused(
            f"{self.where} ignores create-only puts (If-None-Match: *), so a late result could overwrite the "
            "first one: use a store that supports them, such as Amazon S3"
        )

    async def _save_one(self, entry: StoredResult) -> tuple[str, bytes]:
        result = entry.result
        mark = f"kinds/{kind_name(result.kind)}/{day_of(result)}/{result.task_id}"
        # The mark first: one without a result means nothing, a result without one would be missing in iter(kind).
        await self._obstore.put_async(self._store, mark, b"")
        return result.task_id, await self._create(result.task_id, entry.raw)

    async def _create(self, task_id: str, raw: bytes) -> bytes:
        """Put the object if there is none, or one that holds no result; return what it holds in the end."""
        mode: Any = "create"
        for _ in range(_TRIES):
            try:
                await self._obstore.put_async(self._store, _path(task_id), raw, mode=mode)
                return raw
            except (self._obstore.exceptions.AlreadyExistsError, self._obstore.exceptions.PreconditionError):
                found, version = await self._read(task_id)
            if found is not None:
                return found.raw
            mode = "create" if version is None else {"e_tag": version}
        raise BackendUnavailable(f"{_path(task_id)} in {self.where} keeps changing while it is written")

    # --- reading ----------------------------------------------------------------------------------

    async def _find(self, task_id: str) -> StoredResult | None:
        return (await self._read(task_id))[0]

    async def _read(self, task_id: str) -> tuple[StoredResult | None, str | None]:
        """Return the valid result of the id, if any, and the version of the object, if any."""
        try:
            answer = await self._obstore.get_async(self._store, _path(task_id))
            raw = bytes(await answer.bytes_async())
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise
            return None, None
        found = read_entry(raw, f"{_path(task_id)} in {self.where}", task_id)
        return found, answer.meta["e_tag"]

    def _chunks(self, kind: str | None) -> AsyncGenerator[Chunk, None]:
        return self.chunks("ids" if kind is None else f"kinds/{kind_name(kind)}")

    async def folders(self) -> list[str]:
        """Return the folders `kinds/<kind>/<day>`: each result belongs to one of them."""
        found: list[str] = []
        kinds = await self._obstore.list_with_delimiter_async(self._store, "kinds")
        for kind in kinds["common_prefixes"]:
            days = await self._obstore.list_with_delimiter_async(self._store, kind)
            found += days["common_prefixes"]
        return found

    async def chunks(self, folder: str, accepts: Callable[[str], bool] = lambda _: True) -> AsyncGenerator[Chunk, None]:
        """Yield the results of a folder in chunks, for objects whose paths `accepts` accepts."""
        listing = self._obstore.list(self._store, folder, chunk_size=_CHUNK)
        while (listed := await anext(listing, None)) is not None:
            paths = [item["path"] for item in listed if accepts(item["path"])]
            found = await side_by_side(_AT_ONCE, self._follow, paths)
            yield [result for result in found if result is not None]

    async def _follow(self, path: str) -> Result | None:
        """Return the result that a listed object is or stands for."""
        *folders, name = path.split("/")
        task_id = name.removesuffix(".msgpack") if folders == ["ids"] else name
        try:
            check_id("task_id", task_id)
        except ConfigurationError:
            log.warning("skipped %s in %s, which is not a result", path, self.where)
            return None
        found, _version = await self._read(task_id)
        if found is None:
            return None  # a mark whose result was never written
        # The mark of a result that came too late may stand on another day, or at another kind.
        is_its_own = folders in (["ids"], ["kinds", kind_name(found.result.kind), day_of(found.result)])
        return found.result if is_its_own else None

    async def close(self) -> None:
        """Do nothing: obstore closes its connections by itself."""

    def _classified(self, error: Exception) -> tuple[bool, str]:
        text = cut(" ".join(str(error).partition("Debug source")[0].split()), 400)
        # A missing bucket has an error class of its own only where an object is meant.
        return not isinstance(error, self._permanent) and "NoSuchBucket" not in text, text


def _path(task_id: str) -> str:
    return f"ids/{task_id}.msgpack"


def _open(url: str, where: str, timeout_s: float, options: Mapping[str, Any]) -> Any:
    # Not typed: which options there are depends on the URL.
    from_url = require("obstore.store", "s3", "S3Backend").from_url
    limit = timedelta(seconds=timeout_s)
    given = dict(options)
    client: dict[str, Any] = {"timeout": limit, "connect_timeout": min(limit, timedelta(seconds=5))}
    if str(given.get("endpoint", "")).startswith("http://"):
        client["allow_http"] = True
    client |= given.pop("client_options", {})
    retry = {"max_retries": 3, "retry_timeout": limit, **given.pop("retry_config", {})}
    is_remote = not url.startswith(("memory:", "file:"))
    try:
        return from_url(url, **({"client_options": client, "retry_config": retry} if is_remote else {}), **given)
    except Exception as error:
        reason = str(error).partition("Debug source")[0].strip()
        raise ConfigurationError(
            f"{where} cannot be used with the options {sorted(options)}: {masked_text(reason)}"
        ) from None
