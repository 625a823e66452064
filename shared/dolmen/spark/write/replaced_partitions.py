"""The rows that an overwrite by partition replaces: those of the partitions of the files that its tasks wrote."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from dolmen.commit.statements.row_changes import DeletePositions
from dolmen.entries.partitions import Partition, PartitionSpec
from dolmen.errors import InputError
from dolmen.format.entries import DataFile
from dolmen.format.manifest import TableEntry
from dolmen.format.types import to_array
from dolmen.predicate.ast import Predicate
from dolmen.rows.scan.plan import View
from dolmen.rows.scan.scan import Scan, plan_of, rows_with_positions, scan_files
from dolmen.transactions.unit_of_work import UnitOfWork


def partitions_to_replace(name: str, entry: TableEntry) -> PartitionSpec:
    """The table's partitions. Raises InputError: it has none."""
    spec = PartitionSpec.of(entry)
    if spec is None:
        raise InputError(
            f"table {name!r} has no partitions to replace: set its partition_by, or name the rows that are replaced "
            "(where=, replaceWhere)"
        )
    return spec


def partitions_of_files(spec: PartitionSpec, files: Iterable[DataFile]) -> list[Partition]:
    """The partitions of files that a task has divided."""
    partitions = {spec.of_file(file): None for file in files}
    return [each for each in partitions if each is not None]


def predicate_of_files(spec: PartitionSpec, files: Iterable[DataFile]) -> Predicate:
    """TRUE for the rows of the partitions of files that a task has divided. Raises InputError."""
    return spec.predicate(partitions_of_files(spec, files))


def has_buckets(spec: PartitionSpec) -> bool:
    """Whether no predicate names the rows of a partition."""
    return any(term.transform.name == "bucket" for term, _ in spec.terms)


def delete_partitions(
    unit: UnitOfWork,
    name: str,
    entry: TableEntry,
    spec: PartitionSpec,
    partitions: Sequence[Partition],
    request: str | None,
    force: bool,
) -> DeletePositions | None:
    """Finds the rows of partitions, to hide them by position; None if there are none.

    Reads the columns of the terms, of the files that may have such rows. Unless ``force``, the commit is refused if
    others change rows that may be of the partitions.
    """
    named = [index for index, (term, _) in enumerate(spec.terms) if term.transform.name != "bucket"]
    where = None
    if named:
        parts = dict.fromkeys(tuple(each[index] for index in named) for each in partitions)
        where = PartitionSpec([spec.terms[index] for index in named]).predicate(list(parts))
    if not force:
        unit.depend_on_rows(name, where)
    scan = Scan(
        View(unit.context, unit.manifest, name, unit.uploads.read),
        columns=list(dict.fromkeys(field.name for _, field in spec.terms)),
        where=where,
    )
    wanted = {*partitions, None}
    paths = [file.file.path for file in plan_of(scan).files if spec.of_file(file.file) in wanted]
    hidden: dict[str, BitMap] = {}
    for batch, path, positions in rows_with_positions(scan_files(scan, paths)):
        found = positions[_are_in(spec, partitions, pa.Table.from_batches([batch]))]
        if len(found):
            hidden.setdefault(path, BitMap()).update(BitMap(found.astype(np.uint32)))
    ids = tuple(sorted({field.id for _, field in spec.terms}))
    epoch = next((each.epoch for each in unit.base.tables.values() if each.uuid == entry.uuid), 0)
    return DeletePositions(name, entry.uuid, hidden, request, ids, epoch) if hidden else None


def _are_in(spec: PartitionSpec, partitions: Sequence[Partition], rows: pa.Table) -> npt.NDArray[np.bool_]:
    """Whether each row is of one of the partitions."""
    codes = np.zeros(rows.num_rows + len(partitions), np.int64)  # of the rows, then of the partitions
    for index, values in enumerate(spec.values(rows)):
        known = list(dict.fromkeys(each[index] for each in partitions))
        places = {value: place for place, value in enumerate(known)}
        found = pc.index_in(values, value_set=to_array(known, values.type)).fill_null(len(known))
        wanted = [places[each[index]] for each in partitions]
        codes = codes * (len(known) + 1) + np.append(found.to_numpy(zero_copy_only=False), wanted)
        codes = np.unique(codes, return_inverse=True)[1]  # they stay small
    return np.isin(codes[: rows.num_rows], codes[rows.num_rows :])
