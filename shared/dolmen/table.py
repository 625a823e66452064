"""A table, as users know it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, get_args

from dolmen import arguments
from dolmen.errors import ConflictError, InputError
from dolmen.format.manifest import Manifest
from dolmen.format.properties import TABLE_PROPERTIES, shown
from dolmen.mutation import Mode
from dolmen.predicate import Parameters, Where
from dolmen.reading import ReadableTable
from dolmen.replay import replay
from dolmen.results import Commit
from dolmen.snapshot import PinnedTable, pin
from dolmen.transaction import Transaction
from dolmen.transaction_table import TransactionTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Table(ReadableTable):
    """A table of a database. Every read follows the newest version; every write is one commit."""

    def _snapshot(self) -> Manifest:
        return self._context.head.refresh().manifest

    def _cached_snapshot(self) -> Manifest:
        cached = self._context.head.cached
        return cached.manifest if cached else self._snapshot()

    def at(
        self, version: int | None = None, *, timestamp: datetime | int | str | None = None, settled: bool = False
    ) -> PinnedTable:
        """This table in an older version. See ``Database.at``."""
        return pin(self._context, version, timestamp, settled=settled).table(self.name)

    def to_spark(
        self,
        columns: Sequence[str] | None = None,
        where: Where = None,
        version: int | None = None,
        *,
        with_commit_ts: bool = False,
        spark: SparkSession | None = None,
    ) -> DataFrame:
        """The rows of the newest version, or of an older one, as a Spark DataFrame. See ``dolmen.spark.to_spark``."""
        if version is not None:
            return self.at(version).to_spark(columns, where, with_commit_ts=with_commit_ts, spark=spark)
        return super().to_spark(columns, where, with_commit_ts=with_commit_ts, spark=spark)

    def append(
        self, data: Any, *, cast: bool = False, request: str | None = None, message: str | None = None
    ) -> Commit:
        """Adds rows. Keys are not checked: appending a key twice gives two rows (see ``upsert``).

        Args:
            data: an Arrow table, batch or reader, a pandas or Polars frame, a list of dicts, anything that gives an
                Arrow stream; columns by name, in any order. Streamed in bounded memory.
            cast: values that do not fit are rounded, parsed or cut, as ``dolmen.write.lossy`` says, instead of refused.
                What loses nothing is cast in any case: of a pandas frame also floats that are all integers or NaN, and
                midnights to dates (``dolmen.write.frames``; NaN of pandas is NULL).
            request: an id under which this is applied once, however often it is tried: text of 1 to 4,096 bytes.
            message: what to say of it in ``history``: see ``Database.transaction``.

        Raises:
            SchemaError, RowError: the data does not fit the table; nothing was added.
            AppliedIdError: other rows were added under this id, or something else was done.
        """
        return self._commit("append", lambda table: table.append(data, cast=cast, request=request), message)

    def upsert(
        self,
        data: Any,
        on: str | Sequence[str] | None = None,
        *,
        cast: bool = False,
        request: str | None = None,
        message: str | None = None,
    ) -> Commit:
        """Adds rows in place of all older rows with their keys, without reading any. Of equal keys the last wins.

        Args:
            on: the key's columns; the primary key by default.
            cast, request, message: as for ``append``.

        Raises:
            RowError: a NULL key, or rows that do not fit.
            LimitError: more than 1,000,000 keys.
        """
        return self._commit("upsert", lambda table: table.upsert(data, on, cast=cast, request=request), message)

    def delete(
        self,
        where: Where = None,
        *,
        parameters: Parameters | None = None,
        keys: Any = None,
        on: Sequence[str] | None = None,
        mode: Mode = "tombstone",
        request: str | None = None,
        message: str | None = None,
    ) -> Commit:
        """Deletes rows: all there are now for which the predicate is TRUE, or that have one of the keys.

        A tombstone costs three small PUTs and reads nothing, whatever the table's size. ``mode="positions"`` looks
        the rows up now and stores their positions: later scans are faster, and ``Commit.rows`` is exact.

        Args:
            where: SQL text or a mapping; ``"TRUE"`` deletes all rows.
            parameters: values of ``?`` in the text of ``where``, or by name of ``:name``.
            keys: values (tuples for several columns) of the primary key or of the columns ``on``.
            request, message: as for ``append``; neither the order of keys nor ``mode`` makes it another delete.
        """

        def statement(table: TransactionTable) -> None:
            table.delete(where, parameters=parameters, keys=keys, on=on, mode=mode, request=request)

        arguments.one_of("mode", mode, get_args(Mode))
        if mode == "positions":  # a file may be replaced between the look-up and the commit: look again
            return replay(self._context, lambda tx: statement(tx.table(self.name)), "delete", message=message).commit
        return self._commit("delete", statement, message)

    def overwrite(
        self,
        data: Any,
        *,
        force: bool = False,
        cast: bool = False,
        request: str | None = None,
        message: str | None = None,
    ) -> Commit:
        """Replaces all rows by others, in one commit. Older versions still show the old ones until they expire.

        Args:
            data: see ``append``; nothing empties the table.
            force: replace also what others have added or deleted since this began.
            cast, request, message: as for ``append``; ``force`` does not make it another request.

        Raises:
            ConflictError: somebody added or deleted rows meanwhile (unless forced), or overwrote the table too.
            SchemaError, RowError: the data does not fit the table; nothing was changed.
        """
        return self._commit(
            "overwrite", lambda table: table.overwrite(data, force=force, cast=cast, request=request), message
        )

    def set(self, *, request: str | None = None, message: str | None = None, **changes: Any) -> Commit:
        """Changes settings of this table, in one commit: ``set(ttl="event_time 90d", target_file_bytes="256MB")``.

        Args:
            changes: values by name (``settings`` shows them all); None unsets one, so that its default holds.
            request, message: as for ``append``; what was set under this id may have been changed since, and stays so.

        Raises:
            InputError, SchemaError: an unknown setting, or a value that is not allowed.
            AppliedIdError: other settings were changed under this id, or something else was done.
        """
        return self._commit("set", lambda table: table.set(request=request, **changes), message)

    def settings(self) -> dict[str, Any]:
        """Every setting of this table with the value that holds, as it was given; the default where none was."""
        entry = self._context.segments.whole(self._snapshot().table(self.name))
        return shown(entry.properties, TABLE_PROPERTIES)

    def _commit(
        self, operation: str, statement: Callable[[TransactionTable], None], message: str | None = None
    ) -> Commit:
        with Transaction(self._context, operation, message=message) as transaction:
            try:
                statement(transaction.table(self.name))
            except InputError as error:
                self._check_same(transaction.base, error)
                raise
            return transaction.commit()

    def _check_same(self, base: Manifest, error: InputError) -> None:
        """The input does not fit the table, as this handle knows it. Whether that is the table that there is now.

        Raises:
            ConflictError, TableNotFoundError: it is not.
        """
        known = base.tables.get(self.name)
        now = self._context.head.refresh().manifest.table(self.name)
        if known is not None and known.uuid != now.uuid:
            raise ConflictError(
                f"table {self.name!r} was dropped and created again since version {base.version}, which this handle "
                "knows and the input does not fit: open it anew and repeat"
            ) from error
