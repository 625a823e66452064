"""Calls that run in threads, so that they do not block an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from functools import wraps
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from dolmen.api.cursor import ChangeCursor
from dolmen.api.database import Database
from dolmen.api.database import open as open_database
from dolmen.api.table import Table
from dolmen.api.writer import Acknowledgement, BufferedWriter
from dolmen.rows.scan.engines.sql import SqlResult
from dolmen.rows.scan.scan import Scan
from dolmen.transactions.snapshot import PinnedTable, Snapshot
from dolmen.transactions.transaction import Transaction
from dolmen.transactions.transaction_table import TransactionTable

_WRAPPED = (
    Acknowledgement, BufferedWriter, ChangeCursor, Database, Iterator, PinnedTable, Scan, Snapshot, SqlResult, Table,
    Transaction, TransactionTable, pa.RecordBatchReader,
)  # fmt: skip
"""Results of these types are wrapped, because their methods wait for the store too."""

_HANDLES: dict[tuple[type, str], type] = {
    (Database, "table"): Table, (Database, "transaction"): Transaction, (Snapshot, "table"): PinnedTable,
    (Table, "writer"): BufferedWriter, (Transaction, "table"): TransactionTable,
}  # fmt: skip
"""Methods that are not awaited, with the type of their result. A call makes it in a thread, when it is first needed."""


def open(url: str, **options: Any) -> AsyncObject:
    """Opens a database whose methods are awaited. Sends no request. Arguments are those of ``dolmen.open``.

    Examples:
        >>> async def count() -> int:
        ...     return await dolmen.aio.open(db.url).table("people").count()
        >>> asyncio.run(count())
        3
    """
    return AsyncObject(open_database(url, **options))


class AsyncObject:
    """A ``Database``, ``Table`` or other object of dolmen whose methods are awaited. Each call runs in a thread.

    ``open``, ``table``, ``transaction`` and ``writer`` need no ``await``: without one, their errors come from the first
    call that is awaited. Properties are read without ``await``; ``async with`` and ``async for`` replace ``with`` and
    ``for``. A cancelled call continues in its thread: to repeat it safely, give it a request id.
    """

    def __init__(self, wrapped: Any = None, kind: type | None = None, make: Callable[[], Any] | None = None) -> None:
        self._made, self._make, self._lock = wrapped, make, threading.Lock()
        self._kind = kind or type(wrapped)

    def _wrapped(self) -> Any:
        """The object, made now if it was not yet. Call this only in a thread, because it may send a request."""
        with self._lock:
            if self._make is not None:
                self._made = self._make()
                self._make = None
        return self._made

    def __repr__(self) -> str:
        return f"<dolmen.aio {self._kind.__name__}>"

    def __dir__(self) -> list[str]:
        return dir(self._kind if self._make else self._made)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{self._kind.__name__} has no public attribute {name!r}")
        if (kind := _HANDLES.get((self._kind, name))) is not None:
            return lambda *arguments, **options: AsyncObject(
                kind=kind, make=lambda: getattr(self._wrapped(), name)(*arguments, **options)
            )
        found = getattr(self._kind, name, None) if self._make else getattr(self._made, name)
        if not callable(found):
            return _wrap(getattr(self._wrapped(), name))

        @wraps(found)
        async def run(*arguments: Any, **options: Any) -> Any:
            return _wrap(await asyncio.to_thread(self._call, name, arguments, options))

        return run

    def _call(self, name: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Makes a call. Wrapped arguments, such as a scan to append, are unwrapped first."""
        given = {key: _unwrap(value) for key, value in options.items()}
        return getattr(self._wrapped(), name)(*map(_unwrap, arguments), **given)

    def __getitem__(self, name: str) -> Any:
        """Short for ``table(name)``."""
        return self.table(name)

    def __await__(self) -> Generator[Any, Any, Self]:
        """The object itself: ``await db.table("t")`` raises now what the first call would raise."""
        yield from asyncio.to_thread(self._wrapped).__await__()
        return self

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(lambda: self._wrapped().__enter__())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await asyncio.to_thread(lambda: self._wrapped().__exit__(kind, error, at))

    async def __aiter__(self) -> AsyncIterator[Any]:
        iterator, end = await asyncio.to_thread(lambda: iter(self._wrapped())), object()
        while (item := await asyncio.to_thread(next, iterator, end)) is not end:
            yield item


def _wrap(value: Any) -> Any:
    return AsyncObject(value) if isinstance(value, _WRAPPED) else value


def _unwrap(value: Any) -> Any:
    return value._wrapped() if isinstance(value, AsyncObject) else value
