"""The site of the checks: a fresh prefix, clients for it in this and another process, and its removal."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from dolmen.base.runtime import Runtime
from dolmen.errors import AccessDeniedError, Error, ObjectNotFoundError
from dolmen.service.check_store.contract import Load, Need, Sandbox, keys, put
from dolmen.service.check_store.large_objects import PART_BYTES, THRESHOLD_BYTES
from dolmen.store import LocalStore, ObjectStore, open_store
from dolmen.store.base import MultipartStore, scheme_of

_BATCH = 1_000


class Site:
    """A fresh prefix below a URL.

    Args:
        url: the URL of the store.
        runtime: names the prefix, and serves the clients.
    """

    def __init__(self, url: str, runtime: Runtime) -> None:
        self.runtime = runtime
        self._made = _absent_folders(open_store(url, runtime))
        name = f"check-store-{runtime.attempt()}"
        self.url = f"{url.rstrip('/')}/{name}" if url.rstrip("/") else f"/{name}"
        self._others = Others()

    def open(self, name: str = "", runtime: Runtime | None = None) -> ObjectStore:
        """A client of the sandbox of this name, or of the whole site."""
        return open_client(f"{self.url}/{name}" if name else self.url, runtime or self.runtime)

    def sandbox(self, name: str, load: Load) -> Sandbox:
        """The sandbox for the check of this name."""
        folder = name.replace(" ", "-")
        return Sandbox(
            self.open(folder),
            lambda runtime: self.open(folder, runtime),
            lambda function, *arguments: self._others.call(self.open(folder).url, function, *arguments),
            load,
        )

    def verbs(self) -> Iterator[tuple[Need, str, Callable[[], object]]]:
        """Each action that may be forbidden: the permission, its promise, and how to try it."""
        store = self.open("permissions")
        yield Need.PUT, "Objects may be created (s3:PutObject).", lambda: put(store, "key")
        yield Need.GET, "Objects may be read (s3:GetObject).", lambda: _read(store)
        yield Need.LIST, "Objects may be listed (s3:ListBucket).", lambda: keys(store)
        yield Need.DELETE, "Objects may be deleted (s3:DeleteObject).", lambda: _delete(store)
        if isinstance(store, MultipartStore):
            begin = store.begin_and_abort
            yield Need.ABORT, "Uploads may be given up (s3:AbortMultipartUpload).", lambda: begin("upload")

    @contextmanager
    def clearing(self) -> Iterator[list[str]]:
        """Removes everything at the end, however that comes. Objects that could not be removed are added to the
        list."""
        left: list[str] = []
        try:
            yield left
        finally:
            left += self._clear()

    def close(self) -> None:
        """Ends the other process."""
        self._others.close()

    def _clear(self) -> list[str]:
        store = self.open()
        if isinstance(store, LocalStore):
            shutil.rmtree(store.root, ignore_errors=True)
            for folder in self._made:
                with suppress(OSError):  # others have put something there
                    os.rmdir(folder)
            return []
        if isinstance(store, MultipartStore):
            with suppress(Error):  # unfinished uploads cost money, but hinder nothing
                store.abort_uploads()
        try:
            found = keys(store)
        except AccessDeniedError:
            return [store.url]
        left = [
            key for start in range(0, len(found), _BATCH) for key in _remaining(store, found[start : start + _BATCH])
        ]
        return [f"{store.url}/{key}" for key in left]


class Others:
    """Another process with its own clients. A memory store exists only in this process, so it is called here."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def call(self, url: str, function: Callable[..., Any], *arguments: object) -> Any:
        """Calls a function of a module, over there, with a client for ``url``."""
        scheme = scheme_of(url)
        if scheme is not None and not scheme.is_shared:
            return function(open_client(url, Runtime()), *arguments)
        if self._pool is None:
            spawn = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(1, mp_context=spawn, initializer=_ignore_interrupts)
        return self._pool.submit(_call_with_client, url, function, arguments).result()

    def close(self) -> None:
        """Ends the process."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def open_client(url: str, runtime: Runtime) -> ObjectStore:
    """A client whose parts of uploads are small enough for checks."""
    store = open_store(url, runtime)
    return store.with_parts(THRESHOLD_BYTES, PART_BYTES) if isinstance(store, MultipartStore) else store


@cache
def _open_here(url: str) -> ObjectStore:
    return open_client(url, Runtime())


def _call_with_client(url: str, function: Callable[..., Any], arguments: tuple[object, ...]) -> Any:
    return function(_open_here(url), *arguments)


def _ignore_interrupts() -> None:
    """Ignores Ctrl-C, which reaches all processes of a terminal: the first one ends this one after its clean-up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _read(store: ObjectStore) -> None:
    with suppress(ObjectNotFoundError):  # a caller who may not write has no object to read
        store.get("key")


def _delete(store: ObjectStore) -> None:
    for outcome in store.delete(["key"]):
        if outcome.error is not None:
            raise AccessDeniedError(f"{store.url}: {outcome.error}")


def _remaining(store: ObjectStore, names: list[str]) -> list[str]:
    """Deletes objects. Returns those that could not be deleted."""
    try:
        return [each.key for each in store.delete(names) if each.error is not None]
    except AccessDeniedError:
        return names


def _absent_folders(store: ObjectStore) -> list[str]:
    """The folders of a directory that is not there yet, the innermost first."""
    folders: list[str] = []
    folder = store.root if isinstance(store, LocalStore) else ""
    while folder and not os.path.exists(folder):
        folders.append(folder)
        folder = os.path.dirname(folder)
    return folders
