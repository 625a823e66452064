"""Checks that all objects exist, by one listing merged with the sorted references of all versions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, Literal, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from dolmen.base.runtime import Runtime
from dolmen.errors import CorruptionError, ObjectNotFoundError
from dolmen.format.layout import parse_manifest_key
from dolmen.format.manifest import Manifest
from dolmen.maintenance.verify.findings import FindingLog, Unreferenced
from dolmen.rows.scan.data_objects import data_object
from dolmen.store.base import ObjectInfo, ObjectStore

PREFIXES = ("data/", "index/", "manifest/", "segment/", "tombstone/")
"""The prefixes of a database's objects, in the order of keys. No version references an intent."""

_CHUNK = 1 << 16

Need: TypeAlias = Literal["known", "released", "kept", "needed"]
"""known: was in use until recently, or is in use by another version, and may be gone; released: kept versions before
the newest need it, by the newest version's list; kept: a kept version that was read needs it; needed: the checked
version needs it."""

_NEEDS: tuple[Need, ...] = ("known", "released", "kept", "needed")

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
    """A reference to an object.

    Args:
        need: index in ``_NEEDS``: how important it is that the object exists.
        size: the object's size; -1 if it is not known.
        end: the least size that the object must have.
        rows: rows that would be lost with it.
        table: index of the table's name in ``References.tables``.
    """

    key: str
    need: int
    size: int
    end: int
    rows: int
    table: int
    oldest: int
    newest: int


class References:
    """All references of kept versions, in about 150 bytes each, which can be read in the order of keys."""

    def __init__(self) -> None:
        self.tables: list[str] = []
        self._places: dict[str, int] = {}
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
        index = self._places.get(table)
        if index is None:
            index = self._places[table] = len(self.tables)
            self.tables.append(table)
        self._rows.append(Reference(key, _NEEDS.index(need), size, end, rows, index, *versions))
        if len(self._rows) >= _CHUNK:
            self._pack()

    def _pack(self) -> None:
        """Turns references into columns. Of equal references of other versions, one is kept."""
        if self._rows:
            columns = [
                pa.array(values, field.type)
                for values, field in zip(zip(*self._rows, strict=True), _SCHEMA, strict=True)
            ]
            self._rows = []
            chunk = pa.table(columns, schema=_SCHEMA)
            own = pc.equal(chunk["need"], _NEEDED)
            others = chunk.filter(pc.invert(own)).group_by(_SCHEMA.names[:-2], use_threads=False)
            folded = others.aggregate([("oldest", "min"), ("newest", "max")]).rename_columns(_SCHEMA.names)
            self._chunks += [chunk.filter(own), folded]

    def _table(self) -> pa.Table:
        self._pack()
        return pa.concat_tables(self._chunks) if self._chunks else _SCHEMA.empty_table()

    def repeated_files(self) -> Iterator[Reference]:
        """Data files that one table of the checked version references twice, under one key or in two directories."""
        table = self._table()
        own = pc.and_(pc.equal(table["need"], _NEEDED), pc.starts_with(table["key"], "data/"))
        table = table.filter(own)
        names = pc.replace_substring_regex(table["key"], "^.*/", "")
        names = pc.binary_join_element_wise(names, pc.cast(table["table"], pa.string()), "/")
        seen = pc.value_counts(names)
        twice = seen.filter(pc.greater(seen.field("counts"), 1)).field("values")
        if len(twice):
            some = table.filter(pc.is_in(names, twice)).to_pylist()
            some.sort(key=_file_of_table)
            for _, same in groupby(some, key=_file_of_table):
                yield from (Reference(**row) for row in list(same)[1:])

    def __iter__(self) -> Iterator[list[Reference]]:
        """All references to one object together, in the order of keys."""
        table = self._table()
        order = pc.sort_indices(table, sort_keys=[("key", "ascending")])
        rows = chain.from_iterable(
            map(Reference._make, zip(*table.take(part).to_pydict().values(), strict=True))
            for part in (order.slice(start, _CHUNK) for start in range(0, len(order), _CHUNK))
        )
        return (list(some) for _, some in groupby(rows, key=itemgetter(0)))


def _file_of_table(row: dict[str, Any]) -> tuple[int, str]:
    return row["table"], row["key"].rpartition("/")[2]


class Missing(NamedTuple):
    """A reference to an object that is not listed."""

    kind: str
    key: str
    table: str
    rows: int
    versions: tuple[int, int]


def check_objects(
    store: ObjectStore, runtime: Runtime, references: References, log: FindingLog, newest: Manifest
) -> tuple[list[Missing], dict[str, Unreferenced]]:
    """Lists the database once, and compares the listing with the references.

    Returns missing objects, each confirmed by a request of its own, and the orphans by prefix.
    """
    missing: list[Missing] = []
    orphans: dict[str, Unreferenced] = {}
    listed = _listing(store, log)
    there = next(listed, None)

    def orphan(info: ObjectInfo) -> None:
        parsed = parse_manifest_key(info.key)
        if parsed and newest.freed <= parsed[0] < newest.horizon:
            return  # its version has expired, and its deletion waits for that of released objects
        prefix = _prefix(info.key)
        orphans[prefix] = orphans.get(prefix, Unreferenced()) + Unreferenced(1, info.size)
        if info.last_modified_us < newest.swept:
            log.add("orphan-left", info.key, f"{info.size:,} bytes that nothing references")

    for some in references:
        key = some[0].key
        while there is not None and there.key < key:
            orphan(there)
            there = next(listed, None)
        if there is not None and there.key == key:
            _check_size(there, some, references, log)
            there = next(listed, None)
        else:
            need = max(some, key=lambda each: each.need)
            if need.need:
                missing.append(_missing(some, need, references))
    while there is not None:
        orphan(there)
        there = next(listed, None)
    return list(_confirm_missing(store, runtime, missing)), orphans


def _listing(store: ObjectStore, log: FindingLog) -> Iterator[ObjectInfo]:
    for prefix in PREFIXES:
        for info in store.list(prefix):
            log.count("objects listed")
            yield info


def check_repeated(references: References, log: FindingLog) -> None:
    for one in references.repeated_files():
        table, versions = references.tables[one.table], (one.oldest, one.newest)
        log.add("file-twice", one.key, "it is referenced twice", table=table, rows=one.rows, versions=versions)


def _check_size(there: ObjectInfo, some: list[Reference], references: References, log: FindingLog) -> None:
    log.count("objects referenced")
    for one in some:
        if one.need and (one.size not in (-1, there.size) or one.end > there.size):
            expected = f"the {one.size:,}" if one.size != -1 else f"at least {one.end:,}"
            log.add(
                _SIZE.get(_prefix(there.key), "file-size"),
                there.key,
                f"{there.size:,} bytes, not {expected} that its entry has",
                table=references.tables[one.table],
                rows=one.rows,
                versions=(one.oldest, one.newest),
            )
            return


def _missing(some: list[Reference], need: Reference, references: References) -> Missing:
    kind = _MISSING.get(_prefix(need.key), "file-missing")
    needed = [each for each in some if each.need]
    versions = (min(each.oldest for each in needed), max(each.newest for each in needed))
    rows = max(each.rows for each in needed)
    if _NEEDS[need.need] == "released":
        kind = "released-missing"
    return Missing(kind, need.key, references.tables[need.table], rows, versions)


def _confirm_missing(store: ObjectStore, runtime: Runtime, missing: Iterable[Missing]) -> Iterator[Missing]:
    """Missing objects that a request does not find either, so that no inconsistent listing looks like damage."""

    def look(one: Missing) -> Missing | None:
        try:
            there = data_object(store, one.key)
            there.store.head(there.key)
        except (ObjectNotFoundError, CorruptionError):  # also an adopted file in a store of another kind
            return one
        return None

    return (found for found in runtime.map(look, missing) if found is not None)


def _prefix(key: str) -> str:
    return key.partition("/")[0] + "/"
