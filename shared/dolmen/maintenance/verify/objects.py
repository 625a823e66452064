"""Checks that all objects exist, by one listing merged with the sorted references of all versions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, Literal, NamedTuple, TypeAlias

import pyarrow as pa

from dolmen.base import pc
from dolmen.base.runtime import Runtime
from dolmen.errors import CorruptionError, ObjectNotFoundError
from dolmen.format.layout import parse_manifest_key
from dolmen.format.manifest import Manifest
from dolmen.maintenance.gc.deletion import Amount
from dolmen.maintenance.verify.findings import FindingLog
from dolmen.rows.scan.data_objects import data_object
from dolmen.store.base import ObjectInfo, ObjectStore

PREFIXES = ("data/", "index/", "manifest/", "segment/", "tombstone/")
"""The prefixes of a database's objects, in the order of keys. No version references an intent."""

_CHUNK_ROWS = 1 << 16

Need: TypeAlias = Literal["optional", "released", "kept", "needed"]
"""optional: used until recently, or by another version, and may be gone; released: kept versions before the newest need
it, by the newest version's list; kept: a kept version that was read needs it; needed: the checked version needs it."""

_NEEDS: tuple[Need, ...] = ("optional", "released", "kept", "needed")

_NEEDED = len(_NEEDS) - 1

_MISSING = {
    "data/": "file-missing",
    "manifest/": "manifest-missing",
    "segment/": "segment-missing",
    "tombstone/": "delete-missing",
}

_SIZE = {"data/": "file-size", "segment/": "segment-size", "tombstone/": "delete-short"}

_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("need", pa.int8()),
        ("size", pa.int64()),
        ("end", pa.int64()),
        ("rows", pa.int64()),
        ("table", pa.int32()),
        ("oldest", pa.int64()),
        ("newest", pa.int64()),
    ]
)


class Reference(NamedTuple):
    """A reference to an object."""

    key: str
    need: int  # index in ``_NEEDS``: how important it is that the object exists
    size: int  # the object's size; -1 if it is not known
    end: int  # the least size that the object must have
    rows: int  # rows that would be lost with it
    table: int  # index of the table's name in ``References.tables``
    oldest: int
    newest: int


class References:
    """Collects the references of kept versions, in about 150 bytes each, and yields them in the order of keys."""

    def __init__(self) -> None:
        self.tables: list[str] = []
        self._table_indexes: dict[str, int] = {}
        self._rows: list[Reference] = []
        self._chunks: list[pa.Table] = []

    def add(
        self,
        key: str,
        versions: tuple[int, int],
        *,
        need: Need = "needed",
        table: str = "",
        size: int = -1,
        end: int = 0,
        rows: int = 0,
    ) -> None:
        index = self._table_indexes.get(table)
        if index is None:
            index = self._table_indexes[table] = len(self.tables)
            self.tables.append(table)
        self._rows.append(Reference(key, _NEEDS.index(need), size, end, rows, index, *versions))
        if len(self._rows) >= _CHUNK_ROWS:
            self._pack()

    def _pack(self) -> None:
        """Turns references into columns, and folds equal references of other versions into one."""
        if self._rows:
            columns = [
                pa.array(values, field.type)
                for values, field in zip(zip(*self._rows, strict=True), _SCHEMA, strict=True)
            ]
            self._rows = []
            chunk = pa.table(columns, schema=_SCHEMA)
            is_needed = pc.equal(chunk["need"], _NEEDED)
            others = chunk.filter(pc.invert(is_needed)).group_by(_SCHEMA.names[:-2], use_threads=False)
            folded = others.aggregate([("oldest", "min"), ("newest", "max")]).rename_columns(_SCHEMA.names)
            self._chunks += [chunk.filter(is_needed), folded]

    def _table(self) -> pa.Table:
        self._pack()
        return pa.concat_tables(self._chunks) if self._chunks else _SCHEMA.empty_table()

    def repeated_files(self) -> Iterator[Reference]:
        """Data files that a table of the checked version references again, under one key or in two directories."""
        table = self._table()
        is_needed = pc.and_(pc.equal(table["need"], _NEEDED), pc.starts_with(table["key"], "data/"))
        table = table.filter(is_needed)
        names = pc.replace_substring_regex(table["key"], "^.*/", "")
        names = pc.binary_join_element_wise(names, pc.cast(table["table"], pa.string()), "/")
        counts = pc.value_counts(names)
        repeated = counts.filter(pc.greater(counts.field("counts"), 1)).field("values")
        if len(repeated):
            rows = table.filter(pc.is_in(names, repeated)).to_pylist()
            rows.sort(key=_file_of_table)
            for _, group in groupby(rows, key=_file_of_table):
                yield from (Reference(**row) for row in list(group)[1:])

    def __iter__(self) -> Iterator[list[Reference]]:
        """All references to one object together, in the order of keys."""
        table = self._table()
        order = pc.sort_indices(table, sort_keys=[("key", "ascending")])
        rows = chain.from_iterable(
            map(Reference._make, zip(*table.take(part).to_pydict().values(), strict=True))
            for part in (order.slice(start, _CHUNK_ROWS) for start in range(0, len(order), _CHUNK_ROWS))
        )
        return (list(group) for _, group in groupby(rows, key=itemgetter(0)))


def _file_of_table(row: dict[str, Any]) -> tuple[int, str]:
    return row["table"], row["key"].rpartition("/")[2]


class MissingObject(NamedTuple):
    """A reference to an object that is not listed."""

    kind: str
    key: str
    table: str
    rows: int
    versions: tuple[int, int]


def check_objects(
    store: ObjectStore, runtime: Runtime, references: References, log: FindingLog, newest: Manifest
) -> tuple[list[MissingObject], dict[str, Amount]]:
    """Lists the database once, and compares the listing with the references.

    Returns missing objects, each confirmed by a request of its own, and the orphans by prefix.
    """
    missing: list[MissingObject] = []
    orphans: dict[str, Amount] = {}
    objects = _list_objects(store, log)
    listed = next(objects, None)

    def add_orphan(info: ObjectInfo) -> None:
        parsed = parse_manifest_key(info.key)
        if parsed and newest.freed <= parsed[0] < newest.horizon:
            return  # the manifest of an expired version, which is deleted after the released objects
        prefix = _prefix(info.key)
        orphans[prefix] = orphans.get(prefix, Amount()) + Amount(1, info.size)
        if info.last_modified_us < newest.swept:
            log.add("orphan-left", info.key, f"{info.size:,} bytes that nothing references")

    for group in references:
        key = group[0].key
        while listed is not None and listed.key < key:
            add_orphan(listed)
            listed = next(objects, None)
        if listed is not None and listed.key == key:
            _check_size(listed, group, references, log)
            listed = next(objects, None)
        else:
            need = max(group, key=lambda each: each.need)
            if need.need:
                missing.append(_missing_object(group, need, references))
    while listed is not None:
        add_orphan(listed)
        listed = next(objects, None)
    return list(_confirm_missing(store, runtime, missing)), orphans


def _list_objects(store: ObjectStore, log: FindingLog) -> Iterator[ObjectInfo]:
    for prefix in PREFIXES:
        for info in store.list(prefix):
            log.count("objects listed")
            yield info


def check_repeated_files(references: References, log: FindingLog) -> None:
    for file in references.repeated_files():
        table, versions = references.tables[file.table], (file.oldest, file.newest)
        log.add("file-twice", file.key, "it is referenced twice", table=table, rows=file.rows, versions=versions)


def _check_size(info: ObjectInfo, group: list[Reference], references: References, log: FindingLog) -> None:
    log.count("objects referenced")
    for reference in group:
        if reference.need and (reference.size not in (-1, info.size) or reference.end > info.size):
            expected = f"the {reference.size:,}" if reference.size != -1 else f"at least {reference.end:,}"
            log.add(
                _SIZE.get(_prefix(info.key), "file-size"),
                info.key,
                f"{info.size:,} bytes, not {expected} that its entry has",
                table=references.tables[reference.table],
                rows=reference.rows,
                versions=(reference.oldest, reference.newest),
            )
            return


def _missing_object(group: list[Reference], strongest: Reference, references: References) -> MissingObject:
    kind = _MISSING.get(_prefix(strongest.key), "file-missing")
    needed = [each for each in group if each.need]
    versions = (min(each.oldest for each in needed), max(each.newest for each in needed))
    rows = max(each.rows for each in needed)
    if _NEEDS[strongest.need] == "released":
        kind = "released-missing"
    return MissingObject(kind, strongest.key, references.tables[strongest.table], rows, versions)


def _confirm_missing(store: ObjectStore, runtime: Runtime, missing: Iterable[MissingObject]) -> Iterator[MissingObject]:
    """Missing objects that a request does not find either: an inconsistent listing must not look like damage."""

    def check(item: MissingObject) -> MissingObject | None:
        try:
            location = data_object(store, item.key)
            location.store.head(location.key)
        except (ObjectNotFoundError, CorruptionError):  # also an adopted file in a store of another kind
            return item
        return None

    return (confirmed for confirmed in runtime.map(check, missing) if confirmed is not None)


def _prefix(key: str) -> str:
    return key.partition("/")[0] + "/"
