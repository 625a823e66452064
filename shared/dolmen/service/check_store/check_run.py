"""Checks whether a store is fit for dolmen: runs the checks below a fresh prefix, and leaves nothing there."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum
from functools import cache
from typing import Any

from msgspec import Struct

from dolmen.base.runtime import Runtime, shared_runtime
from dolmen.errors import AccessDeniedError, Error, ObjectNotFoundError
from dolmen.service.check_store import concurrent_clients, large_objects, small_objects
from dolmen.service.check_store.contract import (
    PART_BYTES,
    THRESHOLD_BYTES,
    BrokenError,
    Check,
    Grant,
    Load,
    Sandbox,
    keys,
    put,
)
from dolmen.store import LocalStore, ObjectStore, open_store
from dolmen.store.base import MultipartStore, scheme_of

CHECKS: tuple[Check, ...] = tuple(
    each
    for module in (small_objects, large_objects, concurrent_clients)
    for each in vars(module).values()
    if isinstance(each, Check)
)
"""All checks, in the order of their definition."""

_BATCH = 1_000


class CheckOutcome(Enum):
    """The outcome of a check."""

    OK = "ok"
    FAILED = "FAILED"
    DIFFERS = "differs"  # dolmen can still be used
    DENIED = "DENIED"
    LACKS = "lacks"  # an optional permission
    LEFT_OUT = "left out"


class CheckResult(Struct, frozen=True):
    """The result of a check, or of a permission: the problem and its consequence are "" if the promise holds."""

    name: str
    promise: str
    outcome: CheckOutcome
    seconds: float
    problem: str = ""
    means: str = ""

    @property
    def is_good(self) -> bool:
        """Whether dolmen can be used in spite of this result."""
        return self.outcome not in (CheckOutcome.FAILED, CheckOutcome.DENIED)


class StoreReport(Struct, frozen=True):
    """The results of the checks below a URL, in their order, and the URLs of objects that could not be removed."""

    url: str
    results: tuple[CheckResult, ...]
    remaining: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether dolmen can be used with this store."""
        return all(result.is_good for result in self.results)


Progress = Callable[[str, int, int], None]
"""Called with the name of the check that begins, its number, and the number of checks."""


class Site:
    """A fresh prefix below a URL, with clients for it in this and another process."""

    def __init__(self, url: str, runtime: Runtime) -> None:
        self.runtime = runtime
        self._new_folders = _absent_folders(open_store(url, runtime))
        self.url = f"{url.rstrip('/')}/check-store-{runtime.attempt_id()}"
        self._other_process = OtherProcess()

    def open(self, name: str = "", runtime: Runtime | None = None) -> ObjectStore:
        """A client of the sandbox of this name, or of the whole site."""
        return open_client(f"{self.url}/{name}" if name else self.url, runtime or self.runtime)

    def sandbox(self, name: str, load: Load) -> Sandbox:
        """The sandbox for the check of this name."""
        folder = name.replace(" ", "-")
        return Sandbox(
            self.open(folder),
            lambda runtime: self.open(folder, runtime),
            lambda function, *arguments: self._other_process.call(self.open(folder).url, function, *arguments),
            load,
        )

    def verbs(self) -> Iterator[tuple[Grant, str, Callable[[], object]]]:
        """Each action that may be forbidden: the permission, its promise, and how to try it."""
        store = self.open("permissions")
        yield Grant.PUT, "Objects may be created (s3:PutObject).", lambda: put(store, "key")
        yield Grant.GET, "Objects may be read (s3:GetObject).", lambda: _read(store)
        yield Grant.LIST, "Objects may be listed (s3:ListBucket).", lambda: keys(store)
        yield Grant.DELETE, "Objects may be deleted (s3:DeleteObject).", lambda: _delete(store)
        if isinstance(store, MultipartStore):
            begin = store.begin_and_abort
            yield Grant.ABORT, "Uploads may be aborted (s3:AbortMultipartUpload).", lambda: begin("upload")

    @contextmanager
    def clearing(self) -> Iterator[list[str]]:
        """Removes everything at the end, also after an error. Adds what could not be removed to the list."""
        remaining: list[str] = []
        try:
            yield remaining
        finally:
            remaining += self._clear()

    def close(self) -> None:
        self._other_process.close()

    def _clear(self) -> list[str]:
        store = self.open()
        if isinstance(store, LocalStore):
            shutil.rmtree(store.root, ignore_errors=True)
            for folder in self._new_folders:
                with suppress(OSError):  # others have put something there
                    os.rmdir(folder)
            return []
        if isinstance(store, MultipartStore):
            with suppress(Error):  # unfinished uploads cost money, but do no harm
                store.abort_uploads()
        try:
            found = keys(store)
        except AccessDeniedError:
            return [store.url]
        batches = (found[start : start + _BATCH] for start in range(0, len(found), _BATCH))
        return [f"{store.url}/{key}" for batch in batches for key in _delete_all(store, batch)]


class OtherProcess:
    """Another process with its own clients. A memory store exists only in this process, so it is called here."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def call(self, url: str, function: Callable[..., Any], *arguments: object) -> Any:
        """Calls a module's function in the other process, with a client for ``url``."""
        scheme = scheme_of(url)
        if scheme is not None and not scheme.is_shared:
            return function(open_client(url, Runtime()), *arguments)
        if self._pool is None:
            spawn = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(1, mp_context=spawn, initializer=_ignore_interrupts)
        return self._pool.submit(_call_with_client, url, function, arguments).result()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def open_client(url: str, runtime: Runtime) -> ObjectStore:
    """A client whose parts of uploads are small enough for checks."""
    store = open_store(url, runtime)
    return store.with_parts(THRESHOLD_BYTES, PART_BYTES) if isinstance(store, MultipartStore) else store


@cache
def _cached_client(url: str) -> ObjectStore:
    return open_client(url, Runtime())


def _call_with_client(url: str, function: Callable[..., Any], arguments: tuple[object, ...]) -> Any:
    return function(_cached_client(url), *arguments)


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


def _delete_all(store: ObjectStore, names: list[str]) -> list[str]:
    """Deletes objects. Returns those that could not be deleted."""
    try:
        return [each.key for each in store.delete(names) if each.error is not None]
    except AccessDeniedError:
        return names


def _absent_folders(store: ObjectStore) -> list[str]:
    """The missing folders of a directory's path, the innermost first."""
    folders: list[str] = []
    folder = store.root if isinstance(store, LocalStore) else ""
    while folder and not os.path.exists(folder):
        folders.append(folder)
        folder = os.path.dirname(folder)
    return folders


def check_store(
    url: str,
    *,
    load: Load | None = None,
    checks: Sequence[Check] = CHECKS,
    site: Callable[[str, Runtime], Site] = Site,
    progress: Progress = lambda name, number, total: None,
) -> StoreReport:
    """Runs all checks below ``url``, and removes all objects they made, also when interrupted.

    Raises:
        Error: the store cannot be reached, or there is no such bucket.
    """
    runtime = shared_runtime()
    with ExitStack() as stack:
        test_site = site(url, runtime)
        remaining = stack.enter_context(test_site.clearing())
        stack.callback(test_site.close)  # before it is cleared: the other process may be writing
        results = list(_permissions(test_site, runtime))
        missing = {each for each in Grant if any(r.name == _name(each) and r.problem for r in results)}
        for number, check in enumerate(checks, 1):
            progress(check.name, number, len(checks))
            results.append(_result(check, test_site, runtime, load or Load(), missing, results))
    return StoreReport(test_site.url, tuple(results), tuple(remaining))


def _result(
    check: Check, test_site: Site, runtime: Runtime, load: Load, missing: set[Grant], before: Sequence[CheckResult]
) -> CheckResult:
    reason = ""
    if lacking := missing & (check.needs | {Grant.PUT, Grant.GET}):
        reason = f"needs {', '.join(sorted(grant.action for grant in lacking))}"
    elif check is concurrent_clients.a_database_keeps_what_many_writers_commit and not all(r.is_good for r in before):
        reason = "the store does not do what a database needs"
    if reason:
        return CheckResult(check.name, check.promise, CheckOutcome.LEFT_OUT, 0.0, reason)
    began = runtime.monotonic()
    problem, outcome = "", CheckOutcome.OK
    try:
        check.run(test_site.sandbox(check.name, load))
    except AccessDeniedError as error:
        problem, outcome = str(error), CheckOutcome.DENIED
    except (BrokenError, Error) as error:
        problem = str(error) if isinstance(error, BrokenError) else f"{type(error).__name__}: {error}"
        outcome = CheckOutcome.DIFFERS if check.is_harmless else CheckOutcome.FAILED
    seconds = runtime.monotonic() - began
    return CheckResult(check.name, check.promise, outcome, seconds, problem, check.means if problem else "")


def _permissions(test_site: Site, runtime: Runtime) -> Iterator[CheckResult]:
    """Tries each verb once. Errors other than denials are raised, because no check could say more."""
    for grant, promise, call in test_site.verbs():
        began = runtime.monotonic()
        problem = ""
        try:
            call()
        except AccessDeniedError as error:
            problem = str(error)
        outcome = CheckOutcome.OK if not problem else CheckOutcome.LACKS if grant.is_harmless else CheckOutcome.DENIED
        means = f"without {grant.action} {grant.without}" if problem else ""
        yield CheckResult(_name(grant), promise, outcome, runtime.monotonic() - began, problem, means)


def _name(grant: Grant) -> str:
    return f"may {grant.name.lower()}"
