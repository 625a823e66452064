"""The plan of a scan: what has to be read, found from the manifest alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from dolmen.errors import InputError, SchemaError
from dolmen.format.entries import DataFile, KeysTombstone, Tombstone, WhereTombstone
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.schema import COMMIT_TS_FIELD, Field, type_from_json
from dolmen.format.statistics import Bounds, bounds
from dolmen.format.values import Plain, from_json
from dolmen.predicate import Predicate, Verdict, columns, from_builtins, judge, to_sql
from dolmen.scan.display import html, text

Reason: TypeAlias = Literal["filter", "deleted", "limit"]

_WORDS: dict[Reason, str] = {"filter": "statistics", "deleted": "deletes of all rows", "limit": "the limit"}


@dataclass(frozen=True)
class FilePlan:
    """A data file to read.

    Args:
        file: its entry.
        filter: whether its rows have to be tested against the scan's predicate; False when all of them match.
        tombstones: deletes that may hide rows of it, as far as statistics can tell.
    """

    file: DataFile
    filter: bool
    tombstones: tuple[Tombstone, ...]

    @property
    def exact_rows(self) -> int | None:
        """How many rows the scan gets from it, where metadata knows."""
        return None if self.filter or self.tombstones else self.file.live_rows


@dataclass(frozen=True)
class PrunedFile:
    """A data file that needs not be read, and why: nothing matches, all is deleted, or the limit is reached."""

    file: DataFile
    reason: Reason


@dataclass(frozen=True, repr=False)
class Plan:
    """What a scan reads.

    Args:
        table: its name.
        version: of the snapshot.
        entry: the table in that snapshot.
        output: columns of the result, in order.
        where: the scan's predicate.
        limit: at most so many rows.
        files: to read, oldest first.
        pruned: not to read.
    """

    table: str
    version: int
    entry: TableEntry
    output: tuple[Field, ...]
    where: Predicate | None
    limit: int | None
    files: tuple[FilePlan, ...]
    pruned: tuple[PrunedFile, ...]

    @cached_property
    def schema(self) -> pa.Schema:
        """Arrow schema of the result."""
        return pa.schema([pa.field(field.name, field.arrow_type, field.nullable) for field in self.output])

    @cached_property
    def output_ids(self) -> frozenset[int]:
        """Ids of the result's columns."""
        return frozenset(field.id for field in self.output)

    def facts(self) -> list[tuple[str, str]]:
        """What ``repr`` shows, line by line: all of it known from the manifest alone."""
        why = Counter(pruned.reason for pruned in self.pruned)
        reasons = ", ".join(f"{count:,} by {_WORDS[reason]}" for reason, count in sorted(why.items()))
        facts = [
            ("scan", f"{self.table}, version {self.version}"),
            ("columns", ", ".join(field.name for field in self.output) or "none"),
            ("where", to_sql(self.where, self.entry.schema) if self.where is not None else ""),
            ("limit", "" if self.limit is None else f"{self.limit:,}"),
            (
                "files",
                f"{len(self.files):,} of {len(self.files) + len(self.pruned):,}, "
                f"{sum(file.file.size for file in self.files):,} bytes{f'; pruned {reasons}' if reasons else ''}",
            ),
            ("rows in them", f"{sum(file.file.live_rows for file in self.files):,}"),
            ("tombstones", f"{len(self.tombstones):,} of {len(self.entry.tombstones):,} to be checked"),
        ]
        return [(name, value) for name, value in facts if value]

    def __repr__(self) -> str:
        return text(self.facts())

    def _repr_html_(self) -> str:
        return html(self.facts())

    @cached_property
    def tombstones(self) -> tuple[Tombstone, ...]:
        """All tombstones that some file has to be checked against, oldest first."""
        needed = {(t.blob.object, t.blob.offset, t.ts) for file in self.files for t in file.tombstones}
        return tuple(t for t in self.entry.tombstones if (t.blob.object, t.blob.offset, t.ts) in needed)


def plan(
    manifest: Manifest,
    table: str,
    *,
    columns: Sequence[str] | None = None,
    where: Predicate | None = None,
    limit: int | None = None,
    with_commit_ts: bool = False,
) -> Plan:
    """Plans a scan of one table of a snapshot. Reads nothing.

    Args:
        columns: names of the result's columns; all by default. None at all is allowed (for counting).
        where: a predicate bound to the table's schema.
        limit: at most so many rows, any.
        with_commit_ts: adds the column ``_commit_ts`` at the end.

    Raises:
        TableNotFoundError, SchemaError: no such table or column.
        InputError: a negative limit.
    """
    entry = manifest.table(table)
    if limit is not None and limit < 0:
        raise InputError(f"limit {limit}: it can't be negative")
    judged = _FileJudge(entry, where)
    files: list[FilePlan] = []
    pruned: list[PrunedFile] = []
    exact = 0
    for file in entry.files:
        if limit is not None and exact >= limit:
            pruned.append(PrunedFile(file, "limit"))
            continue
        found = judged.plan(file)
        if isinstance(found, PrunedFile):
            pruned.append(found)
            continue
        files.append(found)
        exact += found.exact_rows or 0
    output = _output(entry, columns, with_commit_ts)
    return Plan(table, manifest.version, entry, output, where, limit, tuple(files), tuple(pruned))


def _output(entry: TableEntry, names: Sequence[str] | None, with_commit_ts: bool) -> tuple[Field, ...]:
    if names is None:
        fields = entry.schema.fields
    else:
        if isinstance(names, str):
            raise InputError(f"columns={names!r}: give a list of names")
        fields = tuple(entry.schema.field(name) for name in names)
        if len(set(names)) < len(fields):
            raise SchemaError(f"a column is there twice in {list(names)}")
    return (*fields, COMMIT_TS_FIELD) if with_commit_ts else fields


class _FileJudge:
    """Decides file by file, with what is the same for all files worked out once."""

    def __init__(self, entry: TableEntry, where: Predicate | None) -> None:
        self._entry, self._where = entry, where
        self._tombstones = [(t, _predicate(t), key_bounds(t)) for t in entry.tombstones]
        ids = {id_ for tombstone in entry.tombstones for id_ in tombstone.columns}
        ids |= columns(where) if where is not None else set()
        self._types = {id_: entry.schema.by_id[id_].arrow_type for id_ in ids}

    def plan(self, file: DataFile) -> FilePlan | PrunedFile:
        known = {id_: bounds(file.stats.get(id_), arrow_type) for id_, arrow_type in self._types.items()}
        if not file.live_rows:
            return PrunedFile(file, "deleted")
        verdict = Verdict.ALWAYS if self._where is None else judge(self._where, known, file.rows)
        if verdict is Verdict.NEVER:
            return PrunedFile(file, "filter")
        applicable: list[Tombstone] = []
        for tombstone, predicate, ends in self._tombstones:
            if tombstone.ts <= file.applied_through:
                continue
            if predicate is not None:
                match = judge(predicate, known, file.rows)
                if match is Verdict.ALWAYS:
                    return PrunedFile(file, "deleted")
                if match is Verdict.NEVER:
                    continue
            elif not may_hold_keys(ends, known, file.rows):
                continue
            applicable.append(tombstone)
        return FilePlan(file, verdict is Verdict.MAYBE, tuple(applicable))


def _predicate(tombstone: Tombstone) -> Predicate | None:
    if isinstance(tombstone, WhereTombstone) and tombstone.predicate is not None:
        return from_builtins(tombstone.predicate)
    return None


def key_bounds(tombstone: Tombstone) -> dict[int, tuple[Plain, Plain]]:
    """Least and greatest value of each column of a keys tombstone's tuples; nothing for others."""
    if not isinstance(tombstone, KeysTombstone):
        return {}
    found = {}
    for id_, name, (least, greatest) in zip(tombstone.columns, tombstone.types, tombstone.bounds, strict=True):
        arrow_type = type_from_json(name)
        found[id_] = (from_json(least, arrow_type), from_json(greatest, arrow_type))
    return found


def may_hold_keys(keys: Mapping[int, tuple[Plain, Plain]], known: Mapping[int, Bounds], rows: int) -> bool:
    """Whether rows with these bounds may have a tuple of values within ``keys``."""
    for id_, (least, greatest) in keys.items():
        own = known[id_]
        if own.nulls == rows or _less(own.max, least) or _less(greatest, own.min):
            return False
    return True


def _less(a: Any, b: Any) -> bool:
    """Whether a < b is certain; None is unknown."""
    return a is not None and b is not None and bool(a < b)
