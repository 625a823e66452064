"""Values of columns in the names of folders, as in ``day=2026-11-27/country=DE/part-0.parquet``."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache
from typing import TypeAlias
from urllib.parse import unquote

import pyarrow as pa

from dolmen.adopt.candidate_file import CandidateFile, FileLocation, FileShape, read_column
from dolmen.adopt.columns import AdoptionRefusals
from dolmen.base import pc
from dolmen.base.runtime import Runtime
from dolmen.entries.partitions import NULL_FOLDER
from dolmen.errors import PredicateError, SchemaError, short_repr
from dolmen.format.entries import ColumnStats, ConstantColumn, column_stats, constant_bounds
from dolmen.format.schema import Schema, is_nested, own_names, type_from_json
from dolmen.format.types import short_type, to_json, to_plain
from dolmen.predicate.constants import scalar_from_text
from dolmen.rows.scan.data_objects import AdoptedColumn

FolderValues: TypeAlias = Mapping[str, str | None]  # texts by the names in folders, in their order; None for NULL

_INTEGER = re.compile(r"-?(0|[1-9]\d{0,18})", re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


def folder_values(folders: Iterable[str]) -> dict[str, str | None]:
    """The values in names of folders; others are left out. Raises SchemaError for a name that occurs twice."""
    values: dict[str, str | None] = {}
    for folder in folders:
        name, equals, text = folder.partition("=")
        if not equals or not name:
            continue
        name = _decode(name)
        if name.lower() in map(str.lower, values):
            raise SchemaError(f"its folders give {name!r} twice")
        values[name] = None if text == NULL_FOLDER else _decode(text)
    return values


def is_value(folder: str) -> bool:
    """True for a folder whose name has a column's value."""
    return folder.find("=") > 0


def _decode(text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        return text


def infer_type(texts: Iterable[str | None]) -> pa.DataType:
    """The type of a column with these values: integers without leading zeros, dates, or else text."""
    known = {text for text in texts if text is not None}
    if known and all(_INTEGER.fullmatch(text) and -(2**63) <= int(text) < 2**63 for text in known):
        return pa.int64()
    if known and all(map(_is_date, known)):
        return pa.date32()
    return pa.string()


def _is_date(text: str) -> bool:
    try:
        return bool(_DATE.fullmatch(text) and date.fromisoformat(text))
    except ValueError:
        return False


def parse_value(text: str | None, arrow_type: pa.DataType) -> pa.Scalar:
    """The value of a folder, as predicates read texts. Raises SchemaError."""
    if is_nested(arrow_type):
        raise SchemaError(f"it is {short_type(arrow_type)}, and folders have no such values")
    if text is None:
        return pa.scalar(None, arrow_type)
    try:
        return scalar_from_text(text, arrow_type)
    except (PredicateError, SchemaError) as error:
        raise SchemaError(f"{short_repr(text)} in a folder is not {short_type(arrow_type)}: {error}") from None


@lru_cache(maxsize=1024)
def constant_of(text: str | None, arrow_type: pa.DataType) -> ConstantColumn:
    """The constant of a file in a folder. Raises SchemaError."""
    value = to_plain(pa.array([parse_value(text, arrow_type)], arrow_type))[0]
    return ConstantColumn(str(arrow_type), to_json(value))


def constant_stats(constant: ConstantColumn, rows: int) -> ColumnStats:
    """The statistics of a column with one value."""
    return column_stats(*constant_bounds(constant.value, type_from_json(constant.type), rows))


@dataclass(frozen=True)
class FolderColumns:
    """The columns whose values are in names of folders, and the values of each file."""

    names: tuple[str, ...] = ()
    values: Mapping[FileLocation, FolderValues] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        locations: Iterable[FileLocation],
        files: Sequence[CandidateFile],
        hive: bool | None,
        refusals: AdoptionRefusals,
    ) -> FolderColumns:
        """The columns of files at these locations. Each file must have all of them, in its folders or inside."""
        if hive is False or not files:
            return cls()
        roots, values = {location.key for location in locations}, dict[FileLocation, FolderValues]()
        for one in files:
            try:
                values[one.location] = folder_values(_folders(one.location.key, roots))
            except SchemaError as error:
                refusals.add(one.location.label, str(error))
        names = dict.fromkeys(name for each in values.values() for name in each)
        for one in files if names else ():
            inside = {column.name.lower() for column in one.shape.columns}
            for name in names.keys() - values.get(one.location, {}).keys():
                if name.lower() not in inside:
                    reason = "it is only in the names of other files' folders: hive=False leaves it out"
                    refusals.add(one.location.label, reason, name)
        if hive and not names:
            refusals.add("", "no folder has a name like day=2026-11-27")
        return cls(tuple(names), values)

    def missing_fields(self, shapes: Iterable[FileShape], known: Iterable[str] = ()) -> list[pa.Field]:
        """The columns that no file has, and that are not among the known ones, with types that fit all folders."""
        inside = {column.name.lower() for shape in shapes for column in shape.columns} | set(map(str.lower, known))
        fields = []
        for name in (name for name in self.names if name.lower() not in inside):
            texts = {each[name] for each in self.values.values() if name in each}
            fields.append(pa.field(name, infer_type(texts)))
        return fields

    def constants(self, one: CandidateFile, schema: Schema, refusals: AdoptionRefusals) -> dict[int, ConstantColumn]:
        """The constants of a file, by column id: of the table's columns that the file itself lacks."""
        if not self.names:
            return {}
        inside = {column.name.lower() for column in one.shape.columns}
        constants: dict[int, ConstantColumn] = {}
        for name, own in zip(self.names, own_names(self.names, schema), strict=True):
            column = next((each for each in schema.fields if each.name == own), None)
            if column is None or name.lower() in inside:
                continue
            text = self.values[one.location].get(name)
            if text is None and not column.nullable:
                refusals.add(one.location.label, "it is NULL in a folder, and it cannot be NULL in the table", own)
                continue
            try:
                constants[column.id] = constant_of(text, column.arrow_type)
            except SchemaError as error:
                refusals.add(one.location.label, str(error), own)
        return constants

    def check(self, files: Sequence[CandidateFile], runtime: Runtime, refusals: AdoptionRefusals) -> None:
        """Refuses files in which the value of a column differs from that in the folder's name."""
        doubtful = []
        for one in files if self.names else ():
            texts = {name.lower(): text for name, text in self.values.get(one.location, {}).items()}
            doubtful += [
                (one, column, texts[column.name.lower()])
                for column in one.shape.columns
                if column.name.lower() in texts
            ]
        for (one, column, text), agrees in zip(doubtful, runtime.map(_agrees, doubtful), strict=True):
            if not agrees:
                value = "NULL" if text is None else repr(text)
                reason = f"the file's value differs from its folder's, {value}: hive=False uses the file's"
                refusals.add(one.location.label, reason, column.name)


def _folders(key: str, roots: Collection[str]) -> list[str]:
    """The folders of a file below its root, with those at the end of the root's own name that have values."""
    *folders, _ = key.split("/")
    depth = next((depth for depth in range(len(folders) + 1) if "/".join(folders[:depth]) in roots), len(folders))
    while depth and is_value(folders[depth - 1]):
        depth -= 1
    return folders[depth:]


def _agrees(item: tuple[CandidateFile, AdoptedColumn, str | None]) -> bool:
    """True if all values of a column equal the folder's, by statistics or, if these are not exact, by reading."""
    one, column, text = item
    try:
        expected = constant_of(text, column.type)
    except SchemaError:
        return False
    stats = one.stats.get(column.name)
    if stats is not None and stats == constant_stats(expected, one.rows) and stats.min == expected.value:
        return True
    value = pa.scalar(None, column.type) if text is None else parse_value(text, column.type)
    for part in read_column(one, column):
        values = part.cast(column.type)
        same = values.is_null() if text is None else pc.fill_null(pc.equal(values, value), False)
        if not pc.all(same, min_count=0).as_py():
            return False
    return True
