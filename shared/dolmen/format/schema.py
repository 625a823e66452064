"""Table schemas: columns with ids, and the translation between Arrow types and what is stored.

A column is its id, not its name or position: ids are used once per table. Every Arrow type has ONE stored form
(``stored_type``); a type without one is refused when the table is created.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
from msgspec import Struct

from dolmen.base.runtime import cached_property
from dolmen.base.units import DAY_US
from dolmen.errors import SchemaError
from dolmen.format.layout import build_decoders
from dolmen.format.types import (
    DECIMAL,
    FIXED_BINARY,
    LIST,
    MAP,
    STRUCT,
    TYPES,
    ColumnType,
    Json,
    from_json,
    short_type,
    to_scalar,
    type_of,
)

TypeJson: TypeAlias = str | dict[str, Any]
Default: TypeAlias = "Json | DefaultFunction"  # a default: a value in JSON form, or the function that gives it

COMMIT_TS = "_commit_ts"  # name of the hidden last column of files whose rows have different commit timestamps
COMMIT_TS_ID = 2**31 - 1  # field id of ``_commit_ts``; ids of users' columns stay below
MAX_DEPTH = 32
"""How deeply lists, structs and maps may nest: readers of Parquet take 100 levels, each of these up to three."""
MAX_LEVELS, MAX_TYPES = 128, 250_000
"""The most levels of a type, counting dictionaries, runs and extensions, and the most types inside it."""
_UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_INTERVALS = (pa.lib.Type_INTERVAL_MONTHS, pa.lib.Type_INTERVAL_DAY_TIME, pa.lib.Type_INTERVAL_MONTH_DAY_NANO)
_ADVICE: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_null, "NULL alone has no type; cast it to the type of the values to come"),
    (pa.types.is_float16, "cast it to float32, which holds all its values"),
    (lambda kind: kind.id in _INTERVALS, "store its months, days and nanoseconds as a struct of integers"),
    (pa.types.is_union, "give each kind of value a column of its own"),
    (pa.types.is_list_view, "cast it to a list"),
    (pa.types.is_large_list_view, "cast it to a list"),
    (pa.types.is_fixed_size_binary, "its values are all empty; cast it to binary, or leave it out"),
)
"""Advice for types that cannot be stored, beside durations."""
_FIELD_ID = b"PARQUET:field_id"
_BY_NAME: dict[str, pa.DataType] = {str(each.stored): each.stored for each in TYPES if each.stored is not None}
_DECIMAL = re.compile(r"decimal128\((\d+), (-?\d+)\)")
_FIXED_BINARY = re.compile(r"fixed_size_binary\[(\d+)\]")


class MappedColumn(msgspec.Struct, frozen=True, omit_defaults=True):
    """The id of a column in adopted files without field ids, its names there, and the same for the fields inside it."""

    id: int
    names: tuple[str, ...]
    fields: tuple[MappedColumn, ...] = ()


SortKey: TypeAlias = tuple[int | str, ...]
"""The terms of a sort key, as an entry has them: see ``dolmen.format.column_terms``."""


class Field(msgspec.Struct, frozen=True, omit_defaults=True):
    """A column, or a child of a nested one."""

    id: int  # never used twice in a table
    name: str  # may change
    type: TypeJson  # the stored form of its Arrow type
    nullable: bool = True  # whether it may be NULL
    comment: str = ""
    added_ts: int = 0  # timestamp of the statement that added it to a table with files; 0 = it came with the table
    initial_default: Json = None  # JSON form of its value in all rows older than ``added_ts``; it never changes
    write_default: Json = None  # JSON form of the value of new rows that lack the column
    # timestamp of the last statement that widened its type, or changed the fields inside it; 0 = there was none. Older
    # files have a narrower type, or other fields.
    widened_ts: int = 0
    write_function: str = ""  # the function that writers call for such values: ``now`` or ``uuid``; "" = there is none

    @property
    def arrow_type(self) -> pa.DataType:
        """The Arrow type of this column's values, children named and numbered."""
        return type_from_json(self.type)

    def initial_values(self, rows: int) -> pa.Array:
        """The values of rows that are older than the column."""
        return constant(self.initial_default, self.arrow_type, rows)

    def to_arrow(self) -> pa.Field:
        """An Arrow field that carries the id, as Parquet's writer stores it."""
        return pa.field(self.name, self.arrow_type, self.nullable, field_id_metadata(self.id))


COMMIT_TS_FIELD = Field(id=COMMIT_TS_ID, name=COMMIT_TS, type="int64", nullable=False)


class DefaultFunction(Struct, frozen=True):
    """A default that writers compute: ``now`` once for the rows of a statement, ``uuid`` for each row."""

    name: str

    def __str__(self) -> str:
        return f"{self.name}()"

    def fits(self, arrow_type: pa.DataType) -> bool:
        """Whether a column of this type can have its values."""
        if self.name == "now":
            return bool(pa.types.is_timestamp(arrow_type) or pa.types.is_date32(arrow_type))
        return bool(pa.types.is_string(arrow_type) or arrow_type == pa.binary(16))


def time_json(now_us: int, arrow_type: pa.DataType) -> int:
    """A time as a value of a column of times or days, in JSON form."""
    return now_us // DAY_US if pa.types.is_date32(arrow_type) else now_us


class FormerName(msgspec.Struct, frozen=True):
    """A name that a column, perhaps a dropped one, had until the statement of timestamp ``until_ts``."""

    id: int
    name: str
    until_ts: int


class CheckConstraint(msgspec.Struct, frozen=True):
    """A condition that is FALSE for no visible row: see "Checks" in docs/format.md."""

    name: str  # unique in its table, whatever its case
    columns: tuple[int, ...]  # ids of the columns that it names, ascending
    predicate: dict[str, Any]  # the stored form of the predicate (``dolmen.predicate.ast``)


class Schema(msgspec.Struct, frozen=True, omit_defaults=True, dict=True):
    """The columns of a table: see "Schemas and types" in docs/format.md."""

    fields: tuple[Field, ...]  # in the order in which scans return them
    next_id: int  # the first id never used
    dropped: tuple[Field, ...] = ()  # dropped columns that a tombstone still names
    altered_ts: int = 0  # files with a row of this timestamp or before may lack columns, or have them under other names
    mapping: tuple[MappedColumn, ...] = ()  # the columns of adopted files without field ids; it never changes
    former: tuple[FormerName, ...] = ()  # names that columns had, in the order in which they lost them
    named_since: int | None = None  # timestamp from which on ``former`` is complete; None if it was never recorded
    placed_since: int = 0  # timestamp of the last statement that changed the order of columns; 0 = there was none
    # for reading only, never stored: the columns that an older version shows with a narrower type than that of
    # ``fields``, by which later deletes apply to it
    narrower: tuple[Field, ...] = ()
    checks: tuple[CheckConstraint, ...] = ()  # conditions that all visible rows meet, oldest first

    @classmethod
    def from_arrow(cls, schema: pa.Schema) -> Schema:
        """Gives every column, nested ones included, an id and its stored type.

        Raises SchemaError: no columns, a name twice (in whatever case) or reserved, or a type that cannot be stored.
        """
        if len(schema) == 0:
            raise SchemaError("a table needs at least one column")
        with readable_names():
            check_column_names([field.name for field in schema])
            ids = iter(range(1, COMMIT_TS_ID))
            fields = tuple(_number(field, ids) for field in schema)
            return cls(fields=fields, next_id=next(ids))

    @cached_property
    def arrow(self) -> pa.Schema:
        """The Arrow schema of full rows, with field ids as metadata."""
        return pa.schema([field.to_arrow() for field in self.shown])

    @cached_property
    def shown(self) -> tuple[Field, ...]:
        """The columns with the types that readers of this version get."""
        own = {field.id: field for field in self.narrower}
        return tuple(own.get(field.id, field) for field in self.fields) if own else self.fields

    @cached_property
    def write_defaults(self) -> dict[str, Default]:
        """The values, other than NULL, of columns that new rows lack, by name."""
        found: dict[str, Default] = {}
        for field in self.fields:
            if field.write_default is not None:
                found[field.name] = field.write_default
            elif field.write_function:
                found[field.name] = DefaultFunction(field.write_function)
        return found

    def at(self, clock: Callable[[], int]) -> Schema:
        """The columns for the rows of one statement, for which ``now()`` is the clock's time, in microseconds."""
        if not any(field.write_function == "now" for field in self.fields):
            return self
        now_us = clock()
        fields = (
            msgspec.structs.replace(field, write_default=time_json(now_us, field.arrow_type))
            if field.write_function == "now"
            else field
            for field in self.fields
        )
        return msgspec.structs.replace(self, fields=tuple(fields))

    def names_of(self, ids: Iterable[int]) -> list[str]:
        """The names of the columns with these ids, in their order."""
        return [self.by_id[id_].name for id_ in ids]

    @cached_property
    def by_id(self) -> dict[int, Field]:
        """Columns by id, dropped ones included."""
        return {field.id: field for field in (*self.dropped, *self.fields)}

    @cached_property
    def widened_types(self) -> dict[int, pa.DataType]:
        """The types of columns that had a narrower one, by id; not of nested ones, which have no bounds."""
        types = {id_: field.arrow_type for id_, field in self.by_id.items() if field.widened_ts}
        return {id_: arrow_type for id_, arrow_type in types.items() if not is_nested(arrow_type)}

    def field(self, name: str) -> Field:
        """The column of this name, in whatever case. Raises SchemaError with the names there are."""
        [own] = own_names([name], self)
        for field in self.fields:
            if field.name == own:
                return field
        raise SchemaError(f"no column {name!r}; there are: {', '.join(f.name for f in self.fields)}")


def number_field(field: pa.Field, first_id: int) -> tuple[Field, int]:
    """A new column with ids from ``first_id`` on, and the next id after them. Raises SchemaError."""
    with readable_names():
        ids = iter(range(first_id, COMMIT_TS_ID))
        return _number(field, ids), next(ids)


def check_column_names(names: list[str]) -> None:
    """Raises SchemaError for a name that is empty or reserved, and for two that SQL does not tell apart."""
    for name in names:
        if not name or name.lower() == COMMIT_TS:
            raise SchemaError(f"column name {name!r} is {'reserved' if name else 'empty'}: choose another")
    _check_names("column", names)


def check_field_names(names: list[str]) -> None:
    """Raises SchemaError for a field's name that is empty, and for two that SQL does not tell apart."""
    if "" in names:
        raise SchemaError("a field's name is empty: choose another")
    _check_names("field", names)


@contextmanager
def readable_names() -> Iterator[None]:
    """Raises SchemaError where a name in a foreign Arrow schema is not UTF-8."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise SchemaError(
            f"the name of a column, field or time zone is not UTF-8 ({error.object!r}): rename it"
        ) from None


def same_names(names: Iterable[str], own: Iterable[str] | None = None) -> tuple[str, str] | None:
    """The first two names that SQL cannot tell apart because it ignores case; None if there are none.

    With ``own``, the ``own_names`` of these: the first two that are the same column of a table.
    """
    names, by_own = list(names), dict[str, str]()
    for name, key in zip(names, map(str.lower, names) if own is None else own, strict=True):
        if key in by_own:
            return by_own[key], name
        by_own[key] = name
    return None


def same_names_problem(pair: tuple[str, str], what: str = "column") -> str:
    """The error's text about two names that ``same_names`` finds."""
    first, second = pair
    if first == second:
        return f"{what} {first!r} is there twice"
    return f"{what}s {first!r} and {second!r} differ in case only, which SQL does not see: rename one, or leave it out"


NUMBER_THEM = "ingest_names: number gives such columns names (column_3, name_2)"
"""Advice about columns of a file that have no name, or that of another one: see ``number_names``."""


def no_common_column(where: str, table: Iterable[str]) -> SchemaError:
    """The error for a file that has no column of its table."""
    return SchemaError(f"{where}: no column is one of the table's; there are: {', '.join(table)}")


def own_names(names: Iterable[str], fields: Schema | Iterable[Field | pa.Field | str]) -> list[str]:
    """Names of columns in a schema's spelling. Names that the schema does not have stay as they are.

    Old tables may have names that differ in case only: there, the exact name counts.
    """
    columns = fields.fields if isinstance(fields, Schema) else fields
    spelt: list[str] = [field if isinstance(field, str) else field.name for field in columns]
    own = {name.lower(): name for name in reversed(spelt)} | {name: name for name in spelt}
    return [own.get(name, own.get(name.lower(), name)) for name in names]


def number_names(names: Iterable[str]) -> list[str]:
    """Makes names complete and distinct in any case: a missing one becomes ``column_3``, a repeated one ``name_2``.

    The first column of a name keeps it, and so does one that is called ``name_2`` or ``column_3`` in the file.
    """
    given = list(names)
    taken = {name.lower() for name in given}
    seen, numbered = set[str](), list[str]()
    count: dict[str, int] = {}
    for position, name in enumerate(given, 1):
        own = name
        if not name.strip():
            own = stem = f"column_{position}"
            number = 1
        elif name.lower() in seen:
            stem, number = name, count.get(name.lower(), 1) + 1
            own = f"{stem}_{number}"
        if own != name:
            while own.lower() in taken:
                number += 1
                own = f"{stem}_{number}"
            count[stem.lower()] = number
            taken.add(own.lower())
        seen.add(own.lower())
        numbered.append(own)
    return numbered


def _check_names(what: str, names: Iterable[str]) -> None:
    if pair := same_names(names):
        raise SchemaError(same_names_problem(pair, what))


def _number(field: pa.Field, ids: Iterator[int]) -> Field:
    own = next(ids)  # a parent before its children, as in Iceberg
    try:
        stored = stored_type(field.type)
        if pa.types.is_struct(stored):
            _check_names("field", [child.name for child in stored])
        type_json = type_to_json(stored, lambda child: _number(child, ids))
        return Field(id=own, name=field.name, type=type_json, nullable=field.nullable)
    except SchemaError as error:
        raise SchemaError(f"column {field.name!r}: {error}") from None


def stored_type(arrow_type: pa.DataType) -> pa.DataType:
    """The one Arrow type in which values of ``arrow_type`` are stored and returned.

    Dictionaries and runs become their values, extension types (``arrow.uuid``, ``arrow.json``) their storage type,
    large and view types and lists of a fixed size the ordinary ones, all times microseconds, zoned timestamps UTC.
    Idempotent. Raises SchemaError: there is none: for null, float16, durations, intervals, unions, views of lists,
    structs without fields or with one twice, decimals over 38 digits or of a scale outside of these, binaries of width
    0, types that are nested too deeply. It says what to do instead.
    """
    check_nesting(arrow_type)
    return _stored_type(arrow_type, MAX_DEPTH)


def check_nesting(arrow_type: pa.DataType) -> None:
    """Raises SchemaError if the types inside a type nest too deeply, or are too many, for code that recurses."""
    seen, level = 0, [arrow_type]
    for _ in range(MAX_LEVELS + 1):
        inner: list[pa.DataType] = []
        for kind in level:
            inner += _inner_types(kind)
            if seen + len(inner) > MAX_TYPES:
                raise SchemaError(f"it has more than {MAX_TYPES:,} fields: store the inner values as JSON text")
        if not inner:
            return
        seen, level = seen + len(inner), inner
    raise _too_deep()


def _inner_types(arrow_type: pa.DataType) -> list[pa.DataType]:
    if isinstance(arrow_type, pa.BaseExtensionType):
        return [arrow_type.storage_type]
    if pa.types.is_dictionary(arrow_type) or pa.types.is_run_end_encoded(arrow_type):
        return [arrow_type.value_type]
    return [arrow_type.field(index).type for index in range(arrow_type.num_fields)]


def _too_deep() -> SchemaError:
    return SchemaError(f"it is nested more than {MAX_DEPTH} levels deep: store the inner values as JSON text")


def _stored_type(arrow_type: pa.DataType, depth: int) -> pa.DataType:
    if depth < 0:
        raise _too_deep()
    arrow_type = plain_type(arrow_type)
    column_type = type_of(arrow_type)
    if column_type is None:
        raise SchemaError(f"type {short_type(arrow_type)} cannot be stored: {_advice_for(arrow_type)}")
    return column_type.stored or STORABLE[column_type](arrow_type, depth)


def plain_type(arrow_type: pa.DataType) -> pa.DataType:
    """The type of the values themselves, without the dictionaries, runs and extensions around it."""
    while True:
        if isinstance(arrow_type, pa.BaseExtensionType):
            arrow_type = arrow_type.storage_type
        elif pa.types.is_dictionary(arrow_type) or pa.types.is_run_end_encoded(arrow_type):
            arrow_type = arrow_type.value_type
        else:
            return arrow_type


def _stored_decimal(arrow_type: pa.DataType, depth: int) -> pa.DataType:
    if arrow_type.precision > 38 or not 0 <= arrow_type.scale <= arrow_type.precision:
        raise SchemaError(
            f"type {short_type(arrow_type)} cannot be stored: a decimal has 1 to 38 digits, of which 0 to all are "
            "after the point; cast it to such a type"
        )
    return pa.decimal128(arrow_type.precision, arrow_type.scale)


def _stored_fixed_binary(arrow_type: pa.DataType, depth: int) -> pa.DataType:
    if arrow_type.byte_width == 0:
        raise SchemaError(f"type {short_type(arrow_type)} cannot be stored: {_advice_for(arrow_type)}")
    return arrow_type


def _stored_struct(arrow_type: pa.DataType, depth: int) -> pa.DataType:
    names = [field.name for field in arrow_type]
    if not names:
        raise SchemaError("a struct without fields cannot be stored; leave it out")
    if twice := {name for name in names if names.count(name) > 1}:
        raise SchemaError(f"a struct has the field {min(twice)!r} twice: rename one")
    return pa.struct([_stored_field(field, depth) for field in arrow_type])


STORABLE: dict[ColumnType, Callable[[pa.DataType, int], pa.DataType]] = {
    DECIMAL: _stored_decimal,
    FIXED_BINARY: _stored_fixed_binary,
    LIST: lambda kind, depth: pa.list_(_stored_field(kind.value_field, depth)),
    STRUCT: _stored_struct,
    MAP: lambda kind, depth: pa.map_(_stored_type(kind.key_type, depth - 1), _stored_field(kind.item_field, depth)),
}
"""How a type with parameters becomes the stored one, given how deeply it may still nest."""


def _advice_for(arrow_type: pa.DataType) -> str:
    if pa.types.is_duration(arrow_type):
        return f"cast it to int64, a number of {_UNITS[arrow_type.unit]}, and say so in the column's name"
    return next((advice for is_kind, advice in _ADVICE if is_kind(arrow_type)), "cast it first")


def _stored_field(field: pa.Field, depth: int) -> pa.Field:
    return field.with_type(_stored_type(field.type, depth - 1)).remove_metadata()


def type_to_json(arrow_type: pa.DataType, number: Callable[[pa.Field], Field]) -> TypeJson:
    """The stored form of a storable type; ``number`` gives each child its id."""

    def child(field: pa.Field) -> dict[str, Any]:
        """A child in the form that decoding gives it, so that a new schema equals itself when it is read."""
        built: dict[str, Any] = msgspec.to_builtins(number(field))
        return built

    t = pa.types
    if t.is_list(arrow_type):
        return {"list": child(arrow_type.value_field)}
    if t.is_struct(arrow_type):
        return {"struct": [child(field) for field in arrow_type]}
    if t.is_map(arrow_type):
        return {"map": [child(arrow_type.key_field), child(arrow_type.item_field)]}
    return str(arrow_type)


def type_from_json(json: TypeJson) -> pa.DataType:
    """The Arrow type of a stored type. Raises SchemaError for an unknown one."""
    if isinstance(json, str):
        if json in _BY_NAME:
            return _BY_NAME[json]
        if match := _DECIMAL.fullmatch(json):
            return pa.decimal128(int(match[1]), int(match[2]))
        if match := _FIXED_BINARY.fullmatch(json):
            return pa.binary(int(match[1]))
    elif len(json) == 1:
        [kind] = json
        children = [field.to_arrow() for field in child_fields(json)]
        if kind == "list":
            return pa.list_(*children)
        if kind == "struct":
            return pa.struct(children)
        if kind == "map":
            return pa.map_(*children)
    raise SchemaError(f"unknown stored type {json!r}")


def child_fields(json: TypeJson) -> tuple[Field, ...]:
    """The fields of a struct, the element of a list, or key and value of a map; none of a type that is not nested."""
    inner = () if isinstance(json, str) else next(iter(json.values()))
    children = inner if isinstance(inner, (list, tuple)) else [inner]
    return tuple(each if isinstance(each, Field) else msgspec.convert(each, Field) for each in children)


def field_id_metadata(id_: int) -> dict[bytes, bytes]:
    """The metadata by which an Arrow field carries an id into Parquet, and out of it."""
    return {_FIELD_ID: str(id_).encode()}


def field_id(field: pa.Field) -> int | None:
    """The id that an Arrow field carries, as Parquet's reader and ``Field.to_arrow`` give it; None without one."""
    metadata = field.metadata
    return int(metadata[_FIELD_ID]) if metadata and _FIELD_ID in metadata else None


def constant(json: Json, arrow_type: pa.DataType, rows: int) -> pa.Array:
    if json is None:
        return pa.nulls(rows, arrow_type)
    return pa.repeat(to_scalar(from_json(json, arrow_type), arrow_type), rows)


def is_nested(arrow_type: pa.DataType) -> bool:
    """Whether the type has children: such columns are stored, but not used in predicates or keys."""
    return bool(pa.types.is_nested(arrow_type))


def leaf_count(arrow_type: pa.DataType) -> int:
    """The number of columns that a column of this type is in Parquet."""
    if not is_nested(arrow_type):
        return 1
    return sum(leaf_count(arrow_type.field(index).type) for index in range(arrow_type.num_fields))


build_decoders(Field, MappedColumn, CheckConstraint)
