"""From a stream of record batches to data files: bounded memory, whatever the input's size."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import ExitStack, closing
from functools import partial

import pyarrow as pa

from dolmen.format.entries import DataFile
from dolmen.format.layout import data_key
from dolmen.format.manifest import TableEntry
from dolmen.runtime import Runtime
from dolmen.store.base import ObjectStore
from dolmen.write.options import DEFAULT, WriteOptions
from dolmen.write.parquet_object import ParquetObject, Plan
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
) -> list[DataFile]:
    """Writes rows into as many data files as they need; no rows, no file.

    The batches are taken, encoded and uploaded in the calling thread; sorting and statistics of the next run are
    worked out beside it. On any error the file under way is given up; finished ones are left as orphans.

    Args:
        table_name: stands in the objects' keys.
        batches: of exactly ``table.schema.arrow``.

    Returns:
        Their entries, in the order of the rows, not yet stamped.

    Raises:
        StoreUnavailableError, AccessDeniedError: from the upload; and whatever ``batches`` raises.
    """
    files: list[DataFile] = []
    plan: Plan | None = None
    current: ParquetObject | None = None
    with ExitStack() as opened, closing(_runs(table, batches, runtime, options)) as runs:
        for run in runs:
            plan = plan or Plan.of(run, options)
            if current and not current.accepts(run):
                files.append(current.commit())
                opened.close()
                current = None
                # Once is enough: if the next column with NaN began a file too, wide tables would fall to pieces.
                plan = plan.without_float_statistics(table)
            if not current:
                key = data_key(table_name, store.clock.now_us, runtime.uuid())
                current = opened.enter_context(ParquetObject(store.open_output(key), key, table, plan, run))
            current.write(run)
            del run  # before the next one is made
            if current.size >= options.target_file_bytes:
                files.append(current.commit())
                opened.close()
                current = None
        if current:
            files.append(current.commit())
    return files


def _runs(
    table: TableEntry, batches: Iterable[pa.RecordBatch], runtime: Runtime, options: WriteOptions
) -> Generator[Run, None, None]:
    pieces = cut(batches, table.schema.arrow, options.run_bytes, options.run_rows)
    yield from runtime.map(partial(prepare, entry=table), pieces, ahead=_RUNS_AHEAD)
