"""Writes a stream of record batches as data files, in bounded memory whatever the input's size."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, closing
from functools import partial

import msgspec
import pyarrow as pa

from dolmen.format.entries import DataFile
from dolmen.format.layout import data_key
from dolmen.format.manifest import TableEntry
from dolmen.format.properties import has_index
from dolmen.format.schema import COMMIT_TS_FIELD
from dolmen.runtime import Runtime
from dolmen.store.base import ObjectStore, StreamedOutput
from dolmen.write.options import DEFAULT, WriteOptions
from dolmen.write.parquet_object import ParquetObject, WritePlan
from dolmen.write.runs import Run, cut, prepare

#: Runs that are prepared ahead in the background, the one being written included.
_RUNS_AHEAD = 2


def write_data_files(
    store: ObjectStore,
    table_name: str,
    table: TableEntry,
    batches: Iterable[pa.RecordBatch],
    runtime: Runtime,
    options: WriteOptions = DEFAULT,
    name: Callable[[], str] | None = None,
    beat: Callable[[], None] = lambda: None,
    open_output: Callable[[str], StreamedOutput] | None = None,
) -> list[DataFile]:
    """Writes rows into as many data files as they need; no rows, no file.

    The batches are taken, encoded and uploaded in the calling thread; sorting and statistics of the next run are
    worked out beside it. On any error the file under way is given up; finished ones are left as orphans.

    Args:
        table_name: stands in the objects' keys.
        table: its schema may end with the hidden column ``_commit_ts`` (``with_commit_ts``).
        batches: of exactly ``table.schema.arrow``.
        name: gives each object a name that is unique in the world; a fresh uuid by default.
        beat: called after each run, to show that the job is alive.
        open_output: opens the object of a key to write into; the store's by default.

    Returns:
        Their entries, in the order of the rows, not yet stamped. Those of files with ``_commit_ts`` have no
        ``row_ts``, but the bounds of that column.

    Raises:
        StoreUnavailableError, AccessDeniedError: from the upload; and whatever ``batches`` raises.
    """
    files: list[DataFile] = []
    open_ = open_output or store.open_output
    plan: WritePlan | None = None
    current: ParquetObject | None = None
    with ExitStack() as opened, closing(prepared_runs(table, batches, runtime, options)) as runs:
        for run in runs:
            plan = plan or WritePlan.of(run, options, looked_up=has_index(table))
            if current and not current.accepts(run):
                files.append(current.commit())
                opened.close()
                current = None
                # Once is enough: if the next column with NaN began a file too, wide tables would fall to pieces.
                plan = plan.without_float_statistics(table)
            if not current:
                key = data_key(table_name, store.clock.now_us, (name or runtime.uuid)())
                current = opened.enter_context(ParquetObject(open_(key), key, table, plan, run))
            current.write(run)
            del run  # before the next one is made
            beat()
            if current.size >= options.target_file_bytes:
                files.append(current.commit())
                opened.close()
                current = None
        if current:
            files.append(current.commit())
    return files


def with_commit_ts(table: TableEntry) -> TableEntry:
    """The table as its files are written whose rows have different commit timestamps: with the last, hidden column."""
    schema = msgspec.structs.replace(table.schema, fields=(*table.schema.fields, COMMIT_TS_FIELD))
    return msgspec.structs.replace(table, schema=schema)


def prepared_runs(
    table: TableEntry, batches: Iterable[pa.RecordBatch], runtime: Runtime, options: WriteOptions
) -> Generator[Run, None, None]:
    """The rows in pieces of bounded size, each sorted and measured; the next ones are prepared in the background."""
    pieces = cut(batches, table.schema.arrow, options.run_bytes, options.run_rows)
    yield from runtime.map(partial(prepare, entry=table), pieces, ahead=_RUNS_AHEAD)
