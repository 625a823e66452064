"""A scan, which ``table.scan(...)`` returns. It can explain itself, stream, count, or become a data frame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from dolmen.base.late_imports import optional
from dolmen.base.records import replace
from dolmen.errors import InputError
from dolmen.format.del_object import vector_of_mask
from dolmen.format.entries import DataFile, KeysTombstone, WhereTombstone
from dolmen.format.schema import COMMIT_TS
from dolmen.predicate.ast import Predicate
from dolmen.predicate.parse import Parameters, Where, with_parameters
from dolmen.rows.scan import plan as planning
from dolmen.rows.scan.conditions import Condition, join_conditions, read_condition
from dolmen.rows.scan.data_objects import first_request, footer_key
from dolmen.rows.scan.engines.dataframes import lazy_frame, to_pandas, to_polars
from dolmen.rows.scan.explanation import Explanation, Fetch
from dolmen.rows.scan.load_deletes import blob_requests, cache_key, tombstones_to_fetch
from dolmen.rows.scan.plan import ScanPlan, View, plan
from dolmen.rows.scan.plan_reader import PlanReader, RowGroupColumns, batches
from dolmen.rows.scan.row_groups import RowGroup, column_of, kept_rows, row_mask

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl


def count_rows(reader: PlanReader) -> int:
    """Counts the rows of a plan's files, without its limit."""
    plan = reader.plan
    counted = plan.counted_rows + sum(file.exact_rows or 0 for file in plan.files)
    uncounted = tuple(file for file in plan.files if file.exact_rows is None)
    if not uncounted or (plan.limit is not None and counted >= plan.limit):
        return counted
    uncounted_reader = replace(reader, plan=replace(plan, files=uncounted), is_cautious=False, tests_only=True)
    return counted + sum(uncounted_reader.read(_count, uncounted_reader.groups(), frozenset()))


def _count(group: RowGroup, columns: RowGroupColumns) -> int:
    if group.exact_rows is not None:
        return group.exact_rows
    keep = row_mask(group, columns.read(group.tested_ids))
    return group.rows if keep is None else int(np.count_nonzero(keep))


class Scan:
    """Rows of one table in one version. Nothing is read before rows are requested; each use reads again.

    Rows come in the order of the files, in any number of batches; ``limit`` returns the first rows that are read.

    Args:
        view: the table, and the version of it.
        columns: names of the result's columns, in order; all by default.
        where: only rows for which this is TRUE.
        limit: the most rows.
        order_by: columns to sort by, descending with a leading ``-``; NULLs and NaN come last. Sorts in memory.
        with_commit_ts: adds the column ``_commit_ts``: when each row was committed.
        offset: rows to leave out before the first.
        batch_size: the most rows in a batch.
        newer_than: leaves out files without rows after this commit timestamp.

    Raises:
        TableNotFoundError, SchemaError, InputError: the arguments don't fit the table.
    """

    def __init__(
        self,
        view: View,
        *,
        columns: Sequence[str] | None = None,
        where: Condition | None = None,
        limit: int | None = None,
        order_by: str | Sequence[str] | None = None,
        with_commit_ts: bool = False,
        offset: int = 0,
        batch_size: int | None = None,
        newer_than: int = -1,
    ) -> None:
        if columns is not None and not columns:
            raise InputError("columns=[]: name at least one, or use count()")
        self._view, self._columns, self._where = view, columns, where
        self._with_commit_ts, self._newer_than = with_commit_ts, newer_than
        entry = view.entry()
        self._order_by = order_by
        names = [order_by] if isinstance(order_by, str) else order_by or ()
        order = [entry.schema.field(name.removeprefix("-")) for name in names]
        ways = ["descending" if name.startswith("-") else "ascending" for name in names]
        self._order = [(field.name, way) for field, way in zip(order, ways, strict=True)]
        self._limit, self._offset, self._batch_size = limit, offset, batch_size
        self._unread_rows = 0
        """Rows of the offset that are in files which are not read."""
        planning.check_limit(limit)
        output = planning.output_fields(entry, columns, with_commit_ts)
        self.schema: pa.Schema = pa.schema([pa.field(field.name, field.arrow_type, field.nullable) for field in output])
        ids = {field.id for field in output}
        self._extra = tuple(field for field in order if field.id not in ids)
        self._stored_schema = entry.schema
        self._planned: ScanPlan | None = None
        self._paths: frozenset[str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """The state for another process, which opens the store by its URL and plans the scan itself."""
        return {**self.__dict__, "_planned": None}

    @property
    def _scan_plan(self) -> ScanPlan:
        """The plan, which the first access makes from the manifest and segments."""
        if self._planned is None:
            with self._view.reading():
                found = self._plan()
            if self._paths is not None:
                found = replace(found, files=tuple(file for file in found.files if file.file.path in self._paths))
            self._planned = replace(found, output=(*found.output, *self._extra)) if self._extra else found
            if self._offset and not self._order:
                self._planned = self._leave_out_files(self._planned)
        return self._planned

    def _leave_out_files(self, found: ScanPlan) -> ScanPlan:
        """The plan without the first files, if all their rows are before the offset."""
        number = self._unread_rows = 0
        for file in found.files:
            if file.exact_rows is None or self._unread_rows + file.exact_rows > self._offset:
                break
            number, self._unread_rows = number + 1, self._unread_rows + file.exact_rows
        limit = None if found.limit is None else found.limit - self._unread_rows
        return replace(found, files=found.files[number:], limit=limit)

    def _plan(self, *, counting: bool = False) -> ScanPlan:
        return planning.plan(
            self._view,
            columns=self._columns,
            where=self._where,
            limit=None if self._order or self._limit is None else self._offset + self._limit,
            with_commit_ts=self._with_commit_ts,
            counting=counting,
            newer_than=self._newer_than,
        )

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Streams the rows with bounded memory: only a few row groups are in memory at once.

        Examples:
            >>> sum(batch.num_rows for batch in people.scan().to_batches())
            3
        """
        batches = iter(self._sort().to_batches()) if self._order else self._batches()
        size = self._batch_size
        if size is None:
            return batches
        return (batch.slice(start, size) for batch in batches for start in range(0, batch.num_rows, size))

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """The batches of ``to_batches``."""
        return self.to_batches()

    def filter(self, where: Where, *, parameters: Parameters | None = None) -> Scan:
        """The same scan with one more condition. See ``Table.scan``.

        Raises:
            InputError: the scan has a limit or an offset: the condition would choose among its rows.
            PredicateError: ``where`` cannot be parsed.

        Examples:
            >>> people.scan(["name"]).filter("age > 30").filter("id = 1").to_arrow()["name"].to_pylist()
            ['Ada']
        """
        if self._is_limited:
            raise InputError("a scan with limit or offset takes no further condition: give it to scan(where=...)")
        now_us = self._view.context.store.clock.current_us
        condition = read_condition(with_parameters(where, parameters), self._stored_schema, now_us=now_us)
        conditions = [condition] if self._where is None else [self._where, condition]
        part = self._like(where=join_conditions(conditions))
        part._paths = self._paths
        return part

    def to_reader(self) -> pa.RecordBatchReader:
        """The same stream as a ``pyarrow.RecordBatchReader``.

        Examples:
            >>> people.scan(["name"]).to_reader().schema.names
            ['name']
        """
        return pa.RecordBatchReader.from_batches(self.schema, self.to_batches())

    def to_arrow(self) -> pa.Table:
        """All rows in memory.

        Examples:
            >>> people.scan(where="age > 40").to_arrow().num_rows
            1
        """
        return self._sort() if self._order else pa.Table.from_batches(self._batches(), self.schema)

    def to_pandas(self, **options: Any) -> pd.DataFrame:
        """All rows as a pandas frame; ``options`` go to ``pyarrow.Table.to_pandas``.

        Examples:
            >>> people.scan(["id"]).to_pandas().columns.tolist()
            ['id']
        """
        return to_pandas(self.to_arrow(), **options)

    def to_polars(self) -> pl.DataFrame:
        """All rows as a Polars frame.

        Examples:
            >>> people.scan(["id"]).to_polars().shape
            (3, 1)
        """
        return to_polars(self.to_arrow())

    def to_duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """A DuckDB relation that streams the scan whenever it is executed.

        A query over it reads only the columns that it needs, and only files and row groups that its conditions do not
        exclude, unless the scan has a limit: its rows must not depend on the query.

        Args:
            connection: where the relation lives; DuckDB's default connection otherwise.

        Examples:
            >>> people.scan(where="age > 30").to_duckdb().count("*").fetchall()
            [(2,)]
        """
        from dolmen.rows.scan.engines.dataset import ScanDataset, needs_boxes  # imports pyarrow.dataset

        duckdb = optional("duckdb", "dolmen[sql]")
        connection = connection or duckdb.default_connection()
        if self._is_limited and not needs_boxes():
            return connection.from_arrow(self)
        schema, filters = self._stored_schema, not self._is_limited
        return ScanDataset(self._view.table, self.schema, schema, self._only, filters=filters).relation(connection)

    def to_polars_lazy(self) -> pl.LazyFrame:
        """A lazy frame of Polars that scans when it is collected.

        It reads only the columns that the query needs, and only files and row groups that its conditions do not
        exclude; conditions that dolmen does not understand are left to Polars.

        Examples:
            >>> people.scan().to_polars_lazy().select("age").max().collect().item()
            45
        """

        return lazy_frame(self.schema, self._stored_schema, self._only, filters=not self._is_limited)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The stream by the Arrow PyCapsule interface, for anything that reads it."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def count(self) -> int:
        """Counts the rows that ``to_arrow`` would give, from metadata alone where that is exact.

        Examples:
            >>> people.scan(where="age > 30").count()
            2
        """
        with self._view.reading():
            rows = count_rows(self._reader(self._scan_plan if self._paths is not None else self._plan(counting=True)))
        rows = max(0, rows - self._offset)
        return rows if self._limit is None else min(rows, self._limit)

    def explain(self) -> Explanation:
        """Explains what the scan reads and what it skips, to the byte. Fetches footers and tombstones for that.

        Examples:
            >>> people.scan(where="age > 99").explain().plan.files
            ()
        """
        with self._view.reading():
            return explain(self._reader(self._scan_plan))

    @property
    def _is_limited(self) -> bool:
        """True if it has a limit or offset: its rows are not known in advance, so no condition may be added to it."""
        return self._limit is not None or self._offset > 0

    def _only(self, columns: Sequence[str], where: Predicate | None, limit: int | None = None) -> Scan:
        """The same scan of some of its columns, and of rows that fulfil another condition, up to another limit.

        ``_commit_ts`` comes last among the columns, and never alone. A limited scan takes no condition.
        """
        assert where is None or not self._is_limited
        limits = [most for most in (self._limit, limit) if most is not None]
        conditions = [condition for condition in (self._where, where) if condition is not None]
        part = self._like(
            columns=[name for name in columns if name != COMMIT_TS] or self.schema.names[:1],
            with_commit_ts=COMMIT_TS in columns,
            where=join_conditions(conditions) if conditions else None,
            limit=min(limits) if limits else None,
        )
        part._paths = self._paths
        return part

    def _like(self, **changes: Any) -> Scan:
        arguments = {
            "columns": self._columns,
            "where": self._where,
            "limit": self._limit,
            "order_by": self._order_by,
            "with_commit_ts": self._with_commit_ts,
            "offset": self._offset,
            "batch_size": self._batch_size,
            "newer_than": self._newer_than,
        }
        return Scan(self._view, **{**arguments, **changes})

    def _reader(self, plan: ScanPlan) -> PlanReader:
        is_limited = plan.limit is not None
        return PlanReader(
            self._view.context,
            plan,
            self._view.pending,
            is_cautious=is_limited,
            by_index=not is_limited,
            caches_bytes=True,
        )

    def _batches(self) -> Iterator[pa.RecordBatch]:
        with self._view.reading():
            batches = self._read(self._scan_plan)  # the plan says how many rows are in files that are not read
            leave_out = 0 if self._order else self._offset - self._unread_rows
            for batch in batches:
                if batch.num_rows > leave_out:
                    yield batch.slice(leave_out)
                leave_out -= min(leave_out, batch.num_rows)

    def _read(self, plan: ScanPlan) -> Iterator[pa.RecordBatch]:
        reader = self._reader(plan)
        if plan.limit is None:
            batches = reader.read(self._decode, reader.groups(), plan.output_ids, _join_batches)
            yield from (batch for batch in batches if batch is not None)
            return
        remaining, most_inexact, groups = plan.limit, 1, reader.groups()
        while remaining and (some := _next_groups(groups, remaining, most_inexact)):
            for batch in reader.read(self._decode, some, plan.output_ids):
                if batch is not None:
                    yield batch.slice(0, remaining)
                    remaining -= min(remaining, batch.num_rows)
                if not remaining:
                    break
            most_inexact *= 2

    def _decode(self, group: RowGroup, columns: RowGroupColumns) -> pa.RecordBatch | None:
        keep = row_mask(group, columns.read(group.tested_ids))
        if keep is not None and not keep.any():
            return None
        arrays = columns.read(self._scan_plan.output_ids)
        return kept_rows(
            [column_of(group, field, arrays) for field in self._scan_plan.output], keep, self._scan_plan.schema
        )

    def _sort(self) -> pa.Table:
        table = pa.Table.from_batches(self._batches(), self._scan_plan.schema).sort_by(self._order)
        return table.select(self.schema.names).slice(self._offset, self._limit)

    def __repr__(self) -> str:
        return f"<Scan of {self._scan_plan!r}>"

    def _repr_html_(self) -> str:
        return self._scan_plan._repr_html_()


def plan_of(scan: Scan) -> ScanPlan:
    return scan._scan_plan


def scan_files(scan: Scan, paths: Collection[str]) -> Scan:
    """The same scan over some of its files: the part that one of several tasks reads."""
    part = scan._like()
    part._paths = frozenset(paths)
    part._planned = replace(
        scan._scan_plan, files=tuple(f for f in scan._scan_plan.files if f.file.path in part._paths)
    )
    return part


def reader_of(scan: Scan) -> PlanReader:
    return scan._reader(scan._scan_plan)


def _join_batches(batches: list[pa.RecordBatch | None]) -> list[pa.RecordBatch | None]:
    """Few batches instead of many small ones: what is done with each of them takes longer than the copy."""
    found = [batch for batch in batches if batch is not None]
    return [*pa.Table.from_batches(found).combine_chunks().to_batches()] if len(found) > 1 else [*found]


def _next_groups(groups: Iterator[RowGroup], rows: int, most_inexact: int) -> list[RowGroup]:
    """The next row groups: enough for ``rows`` rows, but at most ``most_inexact`` with an unknown number of rows."""
    chosen: list[RowGroup] = []
    for group in groups:
        chosen.append(group)
        if group.exact_rows is None:
            most_inexact -= 1
        else:
            rows -= group.exact_rows
        if rows <= 0 or most_inexact <= 0:
            break
    return chosen


PositionedRows: TypeAlias = tuple[pa.RecordBatch, str, npt.NDArray[np.int64]]
"""Rows of one file, its path, and their positions in it: deleted rows count."""


def matching_positions(view: View, where: Condition) -> dict[str, BitMap]:
    """The positions, by path of the file, of the live rows for which a condition is TRUE. Reads only tested columns."""
    scan = plan(view, columns=(), where=where)
    reader = PlanReader(view.context, scan, view.pending, by_index=True, caches_bytes=True)
    found: dict[str, BitMap] = {}
    for path, positions in reader.read(_positions, reader.groups(), frozenset()):
        if positions:
            found.setdefault(path, BitMap()).update(positions)
    return found


def _positions(group: RowGroup, columns: RowGroupColumns) -> tuple[str, BitMap]:
    path = group.file.file.path
    if group.picked is not None:
        keep = row_mask(group, columns.read(group.tested_ids))
        return path, BitMap((group.positions if keep is None else group.positions[keep]).astype(np.uint32))
    everything = BitMap(range(group.first, group.first + group.rows))
    if group.tested_ids:
        keep = row_mask(group, columns.read(group.tested_ids))
        return path, everything if keep is None else vector_of_mask(keep, group.first)
    return path, everything - group.file.vector if group.file.vector else everything


def rows_with_positions(scan: Scan) -> Iterator[PositionedRows]:
    """Reads a scan without order and limit, in batches of one file each."""
    scan_plan, reader = plan_of(scan), reader_of(scan)

    def work(group: RowGroup, columns: RowGroupColumns) -> PositionedRows | None:
        keep = row_mask(group, columns.read(group.tested_ids))
        if keep is not None and not keep.any():
            return None
        arrays = columns.read(scan_plan.output_ids)
        rows = kept_rows([column_of(group, field, arrays) for field in scan_plan.output], keep, scan_plan.schema)
        return rows, group.file.file.path, group.positions if keep is None else group.positions[keep]

    with scan._view.reading():
        positioned = reader.read(work, reader.groups(), scan_plan.output_ids)
        yield from (rows for rows in positioned if rows is not None)


def sample(scan: Scan, rows: int, seed: int | None) -> pa.Table:
    """Draws rows of a scan without order and limit, each set of this many as likely as any other.

    Positions are drawn among all rows of the files; for those that are deleted, others are drawn.
    """
    random, files = Random(seed), [each.file for each in plan_of(scan).files]
    starts = np.cumsum([0, *(file.rows for file in files)])
    total, drawn = int(starts[-1]), set[int]()
    found, missing = scan.schema.empty_table(), rows
    while missing and total:
        if 2 * (len(drawn) + missing) > total:  # reading everything is not much more
            return _shuffle(scan.to_arrow(), random).slice(0, rows)
        new = set[int]()
        while len(new) < missing:
            new.add(random.randrange(total))
            new -= drawn
        drawn |= new
        found = pa.concat_tables([found, _rows_at(scan, files, starts, np.sort(list(new)))])
        missing = rows - found.num_rows
    return _shuffle(found, random)


def _shuffle(rows: pa.Table, random: Random) -> pa.Table:
    return rows.take(pa.array(random.sample(range(rows.num_rows), rows.num_rows), pa.int64()))


def _rows_at(
    scan: Scan, files: Sequence[DataFile], starts: npt.NDArray[np.int64], drawn: npt.NDArray[np.int64]
) -> pa.Table:
    """The live rows at some positions, counted over all files."""
    ends = np.searchsorted(drawn, starts)
    chosen = {
        file.path: drawn[first:last] - start
        for file, start, first, last in zip(files, starts, ends, ends[1:], strict=False)
        if first < last
    }
    batches = [
        rows.filter(pa.array(np.isin(positions, chosen[path])))
        for rows, path, positions in rows_with_positions(scan_files(scan, chosen))
    ]
    return pa.Table.from_batches(batches, scan.schema)


def explain(reader: PlanReader) -> Explanation:
    """Explains what this (fresh) reader would do."""
    plan, cache = reader.plan, reader.context.cache
    vectors = [file.file.vector for file in plan.files if file.file.vector]
    blobs = blob_requests(t.blob for t in tombstones_to_fetch(plan.tombstones, cache))
    bitmaps = blob_requests(v for v in vectors if cache_key(v) not in cache)
    unopened = {file.file.uuid: file.file for file in plan.files if footer_key(file.file) not in cache}
    groups = tested = 0
    data = Fetch()
    for batch in batches(reader.groups(), plan.output_ids, reader.cached_bytes):
        groups += len(batch.groups)
        tested += sum(bool(group.tested_ids) for group in batch.groups)
        data += Fetch(len(batch.requests), sum(request.length for request in batch.requests))
    filters = reader.filters
    indexed = reader.indexed
    covered = [file for file in plan.files if indexed and file.file.uuid in indexed.covered]
    absent = [file for file in covered if indexed and indexed.has_none_of(file)]
    for uuid in (*(file.file.uuid for file in absent), *reader.footers):
        unopened.pop(uuid, None)
    footers = [first_request(file) for file in unopened.values() if file.path not in filters.with_footer]
    kinds = Counter(type(tombstone) for tombstone in plan.tombstones)
    return Explanation(
        plan=plan,
        row_groups=reader.row_groups_seen,
        row_groups_read=groups,
        row_groups_tested=tested,
        vectors=len(vectors),
        vector_positions=sum(vector.cardinality for vector in vectors),
        where_tombstones=kinds[WhereTombstone],
        keys_tombstones=kinds[KeysTombstone],
        filtered_files=filters.files,
        excluded_files=filters.excluded,
        indexed_files=len(covered),
        absent_files=len(absent),
        index_fetch=Fetch(indexed.tally.requests, indexed.tally.bytes) if indexed else Fetch(),
        tombstone_fetch=Fetch(len(blobs), sum(request.range.length for request in blobs)),
        vector_fetch=Fetch(len(bitmaps), sum(request.range.length for request in bitmaps)),
        footer_fetch=Fetch(len(footers), sum(request.length - 1 for request in footers)),
        filter_fetch=Fetch(filters.requests, filters.bytes),
        data_fetch=data,
    )
