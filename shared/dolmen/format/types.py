"""The types that a column may have, one entry for each, and the plain and JSON forms of single values.

A field of ``ColumnType`` that is a word (``text``, ``json``, ``codes``, ``polars``, ...) names a *kind*. The module
that treats the kinds differently has a mapping from each of them to a function. To add a type, add an entry, and run
``tests/project/test_types.py``: it names the modules in which a kind is missing.

docs/format.md ("Values") has the forms of each type. Plain values of one type compare with ``<`` as dolmen orders them
(strings by code point, which is also the byte order of UTF-8; NaN must be handled by the caller).
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from dolmen.errors import SchemaError

Mask = npt.NDArray[np.bool_]  # one byte for each row


def one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The values of a column as one array; copies only if there are several chunks."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def to_mask(array: Any) -> Mask:
    """The mask of a Boolean array, or chunked array, without NULLs."""
    mask: Mask = array.to_numpy(zero_copy_only=False) if isinstance(array, pa.Array) else array.to_numpy()
    return mask


def to_boolean_array(mask: Mask) -> pa.BooleanArray:
    """The Boolean array of a mask, several times faster than ``pa.array``."""
    bits = pa.py_buffer(np.packbits(mask, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(mask), [None, bits])


def null_mask(array: pa.Array) -> pa.BooleanArray | None:
    """The ``mask`` of an array's NULLs, as constructors of nested arrays take it; None if there are none."""
    return array.is_null() if array.null_count else None


def text_bytes(array: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The bytes of the texts of an array, uncopied, and where in them each begins, and the last ends.

    NULLs may have bytes, too. Text is ``string`` or ``binary``, or one of their large forms.
    """
    _, ends, body = array.buffers()
    if ends is None or len(array) == 0:
        return np.zeros(0, np.uint8), np.zeros(len(array) + 1, np.int64)
    is_large = array.type.id in _LARGE_IDS
    stored = np.frombuffer(ends, np.int64 if is_large else np.int32)[array.offset : array.offset + len(array) + 1]
    data = np.zeros(0, np.uint8) if body is None else np.frombuffer(body, np.uint8)[stored[0] : stored[-1]]
    return data, np.subtract(stored, stored[0], dtype=np.int64)


_LARGE_IDS = (pa.large_string().id, pa.large_binary().id)

TextKind = Literal["string", "bool", "integer", "float", "decimal", "date", "time", "timestamp", "base64", "json"]
JsonKind = Literal["bare", "float", "string", "quoted", "array", "object"]
CodesKind = Literal["integer", "decimal", "fixed", "variable"]
_SHOWN_CHARACTERS = 200
_PACKED, _BYTES = "DELTA_BINARY_PACKED", "DELTA_BYTE_ARRAY"


class ColumnType(Struct, frozen=True, eq=False):
    """One type of columns."""

    name: str  # in messages and docs
    # the Arrow type in which values are stored; None for a type with parameters (digits, width, fields)
    stored: pa.DataType | None
    ids: tuple[int, ...]  # ids of the Arrow types that hold such values, also of types in which they are not stored
    plain: type | None = None  # the Python class of a single value in its plain form; None for a type with children
    # name of the predicate ``Domain`` in which values compare; None for a type that does not compare
    domain: str | None = None
    family: str = "nested"  # the word by which conversions of data frames tell types apart
    text: TextKind | None = None  # the kind of grammar for values as text; None if text cannot represent them
    json: JsonKind | None = None  # the form of values in JSON; None if JSON cannot represent them
    # how ``scan.key_codes`` makes 64-bit codes of values; None for a type that cannot be in a key
    codes: CodesKind | None = None
    key_encoding: str | None = None  # the Parquet encoding of lists of keys; None for Parquet's plain one
    # the integer type with the same bits, where plain values are integers but stored ones are not
    integers: pa.DataType | None = None
    # the type in which segments hold bounds of such columns, where it is not the column's own
    bounds: pa.DataType | None = None
    # the type in which a digest of rows takes values, where it is not the column's own
    widest: pa.DataType | None = None
    # how a column of this type is declared; None where declaring takes parameters, or is not possible
    sql: str | None = None
    sql_tokens: tuple[str, ...] = ()  # names by which sqlglot's parser knows the type
    sql_aliases: tuple[str, ...] = ()  # more of these, which declare a column, but to which no value is cast
    # Avro types that are read as this one: type, logical type, and unit of time
    avro: tuple[tuple[str, str | None, str], ...] = ()
    # name of the Spark type in which Spark's Parquet reader returns values; None if it takes parameters, or there is
    # none
    spark: str | None = None
    # name of the type in the expressions of Polars; None for one whose literals are not understood
    polars: str | None = None


def _integer(
    arrow: pa.DataType,
    sql: str,
    spark: str,
    polars: str,
    *,
    tokens: tuple[str, ...] = (),
    avro: tuple[tuple[str, str | None, str], ...] = (),
) -> ColumnType:
    return ColumnType(
        name=str(arrow), stored=arrow, ids=(arrow.id,), plain=int, domain="EXACT", family="number",
        text="integer", json="bare", codes="integer", key_encoding=_PACKED, widest=pa.int64(),
        sql=sql, sql_tokens=tokens or (sql,), avro=avro, spark=spark, polars=polars,
    )  # fmt: skip


BOOL = ColumnType(
    name="bool", stored=pa.bool_(), ids=(pa.bool_().id,), plain=bool, domain="BOOLEAN", family="bool",
    text="bool", json="bare", codes="integer", widest=pa.uint8(),
    sql="BOOLEAN", sql_tokens=("BOOLEAN",), avro=(("boolean", None, ""),), spark="boolean", polars="Boolean",
)  # fmt: skip

FLOAT = ColumnType(
    name="float", stored=pa.float32(), ids=(pa.float32().id,), plain=float, domain="FLOAT32", family="number",
    text="float", json="float", widest=pa.float64(),
    sql="FLOAT", sql_tokens=("FLOAT",), avro=(("float", None, ""),), spark="float", polars="Float32",
)  # fmt: skip

DOUBLE = ColumnType(
    name="double", stored=pa.float64(), ids=(pa.float64().id,), plain=float, domain="FLOAT64", family="number",
    text="float", json="float", widest=pa.float64(),
    sql="DOUBLE", sql_tokens=("DOUBLE",), avro=(("double", None, ""),), spark="double", polars="Float64",
)  # fmt: skip

DECIMAL = ColumnType(
    name="decimal", stored=None,
    ids=(pa.decimal32(1).id, pa.decimal64(1).id, pa.decimal128(1).id, pa.decimal256(1).id),
    plain=Decimal, domain="EXACT", family="number", text="decimal", json="quoted", codes="decimal", polars="Decimal",
)  # fmt: skip

STRING = ColumnType(
    name="string", stored=pa.string(), ids=(pa.string().id, pa.large_string().id, pa.string_view().id),
    plain=str, domain="TEXT", family="text",
    text="string", json="string", codes="variable", key_encoding=_BYTES,
    sql="VARCHAR", sql_tokens=("VARCHAR", "TEXT"), sql_aliases=("CHAR",),
    avro=(("string", None, ""),), spark="string", polars="String",
)  # fmt: skip

BINARY = ColumnType(
    name="binary", stored=pa.binary(), ids=(pa.binary().id, pa.large_binary().id, pa.binary_view().id),
    plain=bytes, domain="BYTES", family="bytes",
    text="base64", json="quoted", codes="variable", key_encoding=_BYTES,
    sql="BLOB", sql_tokens=("VARBINARY", "BLOB"), avro=(("bytes", None, ""),), spark="binary", polars="Binary",
)  # fmt: skip

FIXED_BINARY = ColumnType(
    name="fixed_size_binary", stored=None, ids=(pa.binary(1).id,), plain=bytes, domain="BYTES", family="bytes",
    text="base64", json="quoted", codes="fixed", bounds=pa.binary(), spark="binary",
)  # fmt: skip

DATE = ColumnType(
    name="date", stored=pa.date32(), ids=(pa.date32().id, pa.date64().id), plain=int, domain="DATE", family="date",
    text="date", json="quoted", codes="integer", key_encoding=_PACKED, integers=pa.int32(),
    sql="DATE", sql_tokens=("DATE",), avro=(("int", "date", ""),), spark="date", polars="Date",
)  # fmt: skip

TIME = ColumnType(
    name="time", stored=pa.time64("us"), ids=(pa.time32("s").id, pa.time64("us").id), plain=int, domain="TIME",
    family="time", text="time", json="quoted", codes="integer", key_encoding=_PACKED, integers=pa.int64(),
    sql="TIME", sql_tokens=("TIME",), avro=(("int", "time-millis", "ms"), ("long", "time-micros", "us")), polars="Time",
)  # fmt: skip

TIMESTAMP = ColumnType(
    name="timestamp", stored=pa.timestamp("us"), ids=(pa.timestamp("us").id,), plain=int, domain="NAIVE",
    family="naive timestamp",
    text="timestamp", json="quoted", codes="integer", key_encoding=_PACKED, integers=pa.int64(),
    sql="TIMESTAMP", sql_tokens=("TIMESTAMP", "TIMESTAMPNTZ"), sql_aliases=("DATETIME",),
    avro=(
        ("long", "local-timestamp-millis", "ms"),
        ("long", "local-timestamp-micros", "us"),
        ("long", "local-timestamp-nanos", "ns"),
    ),
    spark="timestamp_ntz", polars="Datetime",
)  # fmt: skip

TIMESTAMP_ZONED = ColumnType(
    name="timestamp with zone", stored=pa.timestamp("us", tz="UTC"), ids=(pa.timestamp("us").id,), plain=int,
    domain="ZONED", family="timestamp",
    text="timestamp", json="quoted", codes="integer", key_encoding=_PACKED, integers=pa.int64(),
    sql="TIMESTAMPTZ", sql_tokens=("TIMESTAMPTZ",),
    avro=(
        ("long", "timestamp-millis", "ms"),
        ("long", "timestamp-micros", "us"),
        ("long", "timestamp-nanos", "ns"),
    ),
    spark="timestamp", polars="Datetime",
)  # fmt: skip

LIST = ColumnType(
    name="list", stored=None,
    ids=(pa.list_(pa.bool_()).id, pa.large_list(pa.bool_()).id, pa.list_(pa.bool_(), 1).id), text="json", json="array",
)  # fmt: skip

STRUCT = ColumnType(name="struct", stored=None, ids=(pa.struct([]).id,), text="json", json="object")
MAP = ColumnType(name="map", stored=None, ids=(pa.map_(pa.bool_(), pa.bool_()).id,))

TYPES: tuple[ColumnType, ...] = (
    BOOL,
    _integer(pa.int8(), "TINYINT", "byte", "Int8"),
    _integer(pa.int16(), "SMALLINT", "short", "Int16"),
    _integer(pa.int32(), "INTEGER", "integer", "Int32", tokens=("INT",), avro=(("int", None, ""),)),
    _integer(pa.int64(), "BIGINT", "long", "Int64", avro=(("long", None, ""),)),
    _integer(pa.uint8(), "UTINYINT", "short", "UInt8"),
    _integer(pa.uint16(), "USMALLINT", "integer", "UInt16"),
    _integer(pa.uint32(), "UINTEGER", "long", "UInt32", tokens=("UINT",)),
    _integer(pa.uint64(), "UBIGINT", "decimal(20,0)", "UInt64"),
    FLOAT,
    DOUBLE,
    STRING,
    BINARY,
    DATE,
    TIME,
    TIMESTAMP,
    TIMESTAMP_ZONED,
    DECIMAL,
    FIXED_BINARY,
    LIST,
    STRUCT,
    MAP,
)
"""All of them, in the order in which messages list them."""

_BY_ID = {id_: column_type for column_type in TYPES for id_ in column_type.ids}
_TIMESTAMP_ID = pa.timestamp("us").id


def type_of(arrow_type: pa.DataType) -> ColumnType | None:
    """The column type whose values an Arrow type holds, in whatever layout, width or unit; None if there is none.

    Dictionaries, run-end encodings and extension types have none of their own: pass the type of their values.
    """
    id_ = arrow_type.id
    if id_ == _TIMESTAMP_ID:
        return TIMESTAMP_ZONED if arrow_type.tz else TIMESTAMP
    return _BY_ID.get(id_)


def contains_kind(arrow_type: pa.DataType, is_kind: Callable[[pa.DataType], bool]) -> bool:
    """Whether values of a type are of some kind, or hold such values at any depth."""
    children = (arrow_type.field(index).type for index in range(arrow_type.num_fields))
    return bool(is_kind(arrow_type)) or any(contains_kind(child, is_kind) for child in children)


def change_fields(arrow_type: pa.DataType, change: Callable[[pa.Field], pa.Field]) -> pa.DataType:
    """A struct, list or map with its fields changed (items, keys); any other type as it is."""
    t = pa.types
    if t.is_struct(arrow_type):
        return pa.struct(map(change, arrow_type))
    if t.is_map(arrow_type):
        return pa.map_(change(arrow_type.key_field), change(arrow_type.item_field))
    if t.is_list(arrow_type):
        return pa.list_(change(arrow_type.value_field))
    if t.is_large_list(arrow_type):
        return pa.large_list(change(arrow_type.value_field))
    if t.is_fixed_size_list(arrow_type):
        return pa.list_(change(arrow_type.value_field), arrow_type.list_size)
    return arrow_type


def change_children(arrow_type: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """``change_fields``, of which only the types change."""
    return change_fields(arrow_type, lambda field: field.with_type(change(field.type)))


def short_type(arrow_type: pa.DataType) -> str:
    """The name of a type for messages: that of a struct can have any length, and is cut off."""
    name = str(arrow_type)
    return name if len(name) <= _SHOWN_CHARACTERS else f"{name[:_SHOWN_CHARACTERS]}..."


def column_text(field: pa.Field) -> str:
    """A stored column's type, and NOT NULL, as a declaration has them."""
    return type_text(field.type) + ("" if field.nullable else " NOT NULL")


def type_text(arrow_type: pa.DataType) -> str:
    """A stored type as a declaration has it; Arrow's name for a type without SQL name."""
    t = pa.types
    if t.is_list(arrow_type):
        return f"{type_text(arrow_type.value_type)}[]"
    if t.is_map(arrow_type):
        return f"MAP({type_text(arrow_type.key_type)}, {type_text(arrow_type.item_type)})"
    if t.is_struct(arrow_type):
        fields = [(each.name if each.name.isidentifier() else quote_name(each.name), each) for each in arrow_type]
        return f"STRUCT({', '.join(f'{name} {column_text(field)}' for name, field in fields)})"
    if t.is_decimal(arrow_type):
        return f"DECIMAL({arrow_type.precision}, {arrow_type.scale})"
    found = type_of(arrow_type)
    return (found and found.sql) or str(arrow_type)


def quote_name(name: str) -> str:
    """A name in SQL, whatever its characters."""
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """A text as SQL's literal."""
    return "'" + text.replace("'", "''") + "'"


def can_be_key(arrow_type: pa.DataType) -> bool:
    """Whether rows can be found by values of this type: not by floats, nor by values with children."""
    column_type = type_of(arrow_type)
    return column_type is not None and column_type.codes is not None


def check_key_type(arrow_type: pa.DataType, column: str = "") -> None:
    """Raises SchemaError for a type whose values ``can_be_key`` excludes."""
    if not can_be_key(arrow_type):
        name = f"column {column!r}" if column else "a column"
        raise SchemaError(f"{name} of type {short_type(arrow_type)} can't be part of a key")


def with_unit(column_type: ColumnType, unit: str) -> pa.DataType:
    """The Arrow type of a column type's values, with another unit of time: s, ms, us or ns; "" keeps the stored one."""
    if unit in ("", "us"):
        return column_type.stored
    if column_type is TIME:
        return pa.time64(unit) if unit == "ns" else pa.time32(unit)
    return pa.timestamp(unit, None if column_type is TIMESTAMP else "UTC")


def is_text(arrow_type: pa.DataType) -> bool:
    return type_of(arrow_type) is STRING


def is_bytes(arrow_type: pa.DataType) -> bool:
    """Whether values are bytes, of a fixed size or not, in any of Arrow's layouts."""
    return type_of(arrow_type) in (BINARY, FIXED_BINARY)


Plain: TypeAlias = bool | int | float | str | bytes | Decimal | None
Json: TypeAlias = bool | int | float | str | None
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def integer_form(arrow_type: pa.DataType) -> pa.DataType | None:
    """The integer type with the same bits, for stored times, whose plain form is an integer; None for all others."""
    column_type = type_of(arrow_type)
    return None if column_type is None else column_type.integers


def to_plain(array: pa.Array) -> list[Plain]:
    """The plain values of an array of a stored, not nested type."""
    integers = integer_form(array.type)
    values: list[Plain] = (array.view(integers) if integers else array).to_pylist()
    return values


def to_array(values: list[Plain], arrow_type: pa.DataType) -> pa.Array:
    """The array of these plain values; the inverse of ``to_plain``."""
    integers = integer_form(arrow_type)
    if integers:
        return pa.array(values, integers).view(arrow_type)
    return pa.array(values, arrow_type)


def to_scalar(value: Plain, arrow_type: pa.DataType) -> pa.Scalar:
    return to_array([value], arrow_type)[0]


def to_json(value: Plain) -> Json:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return str(value)
    return value


def from_json(json: Json, arrow_type: pa.DataType) -> Plain:
    """The plain value of a JSON form. Raises SchemaError: the JSON does not fit the type."""
    if json is None:
        return None
    column_type = type_of(arrow_type)
    if column_type is not None and column_type.plain is not None:
        forms, read = FROM_JSON[column_type.plain]
        if type(json) in forms:
            try:
                return read(json)
            except (KeyError, InvalidOperation, binascii.Error):
                pass
    raise SchemaError(f"{json!r} is not a stored value of type {arrow_type}")


def from_json_list(values: Sequence[Json], arrow_type: pa.DataType) -> list[Plain]:
    """The plain values of JSON forms. Raises SchemaError: one does not fit the type."""
    column_type = type_of(arrow_type)
    if column_type is not None and column_type.plain is not None:
        forms, read = FROM_JSON[column_type.plain]
        if read is _same and set(map(type, values)) <= {*forms, type(None)}:  # usually true, and there are many values
            return [*values]
    return [from_json(value, arrow_type) for value in values]


def _same(json: Any) -> Any:
    return json


def _float(json: Any) -> float:
    return _NON_FINITE[json] if isinstance(json, str) else float(json)


def _bytes(json: Any) -> bytes:
    return base64.b64decode(json, validate=True)


FROM_JSON: dict[type, tuple[tuple[type, ...], Callable[[Any], Plain]]] = {
    bool: ((bool,), _same),
    int: ((int,), _same),
    float: ((int, float, str), _float),
    str: ((str,), _same),
    bytes: ((str,), _bytes),
    Decimal: ((str,), Decimal),
}
"""By the class of plain values: the classes that their JSON may have, and how one is read."""
