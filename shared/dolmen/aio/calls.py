"""Calls that run in threads, so that an event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
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
from dolmen.transactions.transaction import Transaction, unit_of
from dolmen.transactions.transaction_table import TransactionTable

_WRAPPED = (
    Acknowledgement, BufferedWriter, ChangeCursor, Database, Iterator, PinnedTable, Scan, Snapshot, SqlResult, Table,
    Transaction, TransactionTable, pa.RecordBatchReader,
)  # fmt: skip
"""Results of these types are wrapped, because their methods wait for the store too."""

_HANDLES = frozenset({"table", "transaction", "writer"})
"""Methods that only make an object. They are not awaited. Only for a name that is not in the version which this process
knows does ``table`` ask the store, and the event loop waits."""


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
    """A ``Database``, ``Table`` or another object of dolmen with methods to be awaited. Each runs in a thread.

    ``table``, ``transaction``, ``writer`` and properties are as they are; ``async with`` and ``async for`` stand where
    ``with`` and ``for`` do. A call that is cancelled goes on in its thread: give a request id, and repeat it.
    """

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped

    def __repr__(self) -> str:
        return f"<dolmen.aio {type(self._wrapped).__name__}>"

    def __dir__(self) -> list[str]:
        return dir(self._wrapped)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self._wrapped).__name__} has no public attribute {name!r}")
        found = getattr(self._wrapped, name)
        if not callable(found):
            return _wrap(found)
        if name in _HANDLES:
            return lambda *arguments, **options: _wrap(found(*arguments, **options))
        return _awaitable(found)

    def __getitem__(self, name: str) -> AsyncObject:
        """Short for ``table(name)``."""
        return AsyncObject(self._wrapped[name])

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._wrapped.__enter__)
        if isinstance(self._wrapped, Transaction):  # it knows its version before ``table`` asks for it
            await asyncio.to_thread(lambda: unit_of(self._wrapped).base)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._wrapped.__exit__, kind, error, at)

    async def __aiter__(self) -> AsyncIterator[Any]:
        iterator, end = await asyncio.to_thread(iter, self._wrapped), object()
        while (item := await asyncio.to_thread(next, iterator, end)) is not end:
            yield item


def _wrap(value: Any) -> Any:
    return AsyncObject(value) if isinstance(value, _WRAPPED) else value


def _awaitable(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call in a thread. Arguments that are wrapped, such as a scan to be appended, are given as they are."""

    @wraps(call)
    async def run(*arguments: Any, **options: Any) -> Any:
        given = [each._wrapped if isinstance(each, AsyncObject) else each for each in arguments]
        return _wrap(await asyncio.to_thread(call, *given, **options))

    return run
