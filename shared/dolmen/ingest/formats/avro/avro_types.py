"""Avro schemas as Arrow types.

=======================================  ==============================================================================
Avro                                     Arrow
=======================================  ==============================================================================
string, enum, uuid in text               string
bytes, fixed                             binary, fixed size binary
time-millis, time-micros                 time32, time64
timestamp-millis, -micros, -nanos        timestamp with zone UTC
local-timestamp-millis, ...              timestamp without a zone
record, array, map                       struct, list, map
union of null and one type               that type, nullable
union of int and long, float and double  int64, double
union of other types                     struct of ``member0``, ``member1``, ..., one for each type but null, as in
                                         Spark: the member of the value's type has the value, the others are NULL
all others                               the type of the same name
=======================================  ==============================================================================

A row that is not a record is a single column, ``value``. Unknown logical types count as their base type. Kafka Connect,
and so Debezium, names its own types of times in ``connect.name``: see ``CONNECT_TIMES`` and ``apply_named_times``. A
type that contains itself has no end, and is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import types as t

from dolmen.errors import InputError, SchemaError, short_repr
from dolmen.format.ingest_properties import MAX_COLUMNS
from dolmen.format.schema import own_names
from dolmen.format.types import TYPES, change_children, null_mask, text_bytes, to_mask, with_unit
from dolmen.ingest.formats.column_limits import MAX_FIXED_BYTES, too_many_columns
from dolmen.ingest.formats.source_file import VALUE_COLUMN

_BY_NAMES = {(base, logical): with_unit(each, unit) for each in TYPES for base, logical, unit in each.avro}
_PRIMITIVES = {"null": pa.null(), **{base: kind for (base, logical), kind in _BY_NAMES.items() if logical is None}}
CONNECT_TIMES: dict[tuple[str, str], pa.DataType] = {
    ("int", "io.debezium.time.Date"): pa.date32(),
    ("int", "org.apache.kafka.connect.data.Date"): pa.date32(),
    ("long", "io.debezium.time.Timestamp"): pa.timestamp("ms"),
    ("long", "org.apache.kafka.connect.data.Timestamp"): pa.timestamp("ms"),
    ("long", "io.debezium.time.MicroTimestamp"): pa.timestamp("us"),
    ("string", "io.debezium.time.ZonedTimestamp"): pa.timestamp("us", tz="UTC"),
}
"""Types by base type and ``connect.name``; they apply where the field has no logical type of Avro."""
FindTime: TypeAlias = Callable[[pa.DataType, pa.DataType | None], pa.DataType | None]
"""Takes the type of time that ``connect.name`` names, and the type of its target column or field, if there is one.
Returns the type to read the values as, or None to read them as plain numbers or text."""
_MEMBER = "member"
_WIDER_TYPES = {
    frozenset((pa.int32(), pa.int64())): pa.int64(),
    frozenset((pa.float32(), pa.float64())): pa.float64(),
}
"""The common types of unions that need no struct."""
MAX_DEPTH = 100  # how many levels deep a type may nest
_DECIMAL_BYTES, _DECIMAL_DIGITS = 32, 76
_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class _AvroType(NamedTuple):
    """A type of the schema; ``arrow`` is None while its fields are read. ``leaves`` counts columns without children."""

    plain: Any
    arrow: pa.DataType | None
    nullable: bool = False
    leaves: int = 1
    height: int = 0

    @property
    def fields(self) -> list[pa.Field]:
        """The fields of a record."""
        return list(self.arrow or ())


class AvroTypes:
    """The types in a file's parsed schema. Columns are counted before they are made: a short schema can have too many.

    Args:
        connect: whether ``connect.name`` turns numbers and text into types of times.

    Attributes:
        plain: the schema without logical types, with new names: the decoder then returns plain numbers and bytes.
        arrow: the columns.
        has_records: whether rows are records; otherwise there is one column.
    """

    def __init__(self, schema: Any, *, connect: bool = False, max_columns: int = MAX_COLUMNS) -> None:
        self._connect, self._max_columns = connect, max_columns
        self._named: dict[str, _AvroType] = {}
        self._bare: set[str] = set()
        self._defined = 0
        row = self._read(schema, "", "the row", 0)
        self.has_records = _is_record(schema)
        if not self.has_records:
            if not self._has_bytes(row.plain):
                raise SchemaError("its rows are NULL, and take no bytes that could be counted")
            row = self._wrap(VALUE_COLUMN, row)
        self.plain: Any = row.plain
        self.arrow = pa.schema(list(row.fields))

    def _read(self, schema: Any, namespace: str, where: str, depth: int) -> _AvroType:
        if depth > MAX_DEPTH:
            raise SchemaError(f"{where} is nested more than {MAX_DEPTH} levels deep")
        if isinstance(schema, list):
            return self._union(schema, namespace, where, depth)
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return _AvroType(schema, _PRIMITIVES[schema], schema == "null")
            return self._reference(schema, namespace, where, depth)
        kind = _part(schema, "type", where)
        if not isinstance(kind, str):
            return self._read(kind, namespace, where, depth + 1)
        if kind == "array":
            item = self._read(_part(schema, "items", where), namespace, where, depth + 1)
            if not self._has_bytes(item.plain):  # a few bytes could claim any number of items
                raise SchemaError(f"{where}: lists of nothing but NULL cannot be read")
            plain, field = {"type": "array", "items": item.plain}, pa.field("item", item.arrow, item.nullable)
            return _AvroType(plain, pa.list_(field), False, item.leaves, item.height + 1)
        if kind == "map":
            item = self._read(_part(schema, "values", where), namespace, where, depth + 1)
            plain, field = {"type": "map", "values": item.plain}, pa.field("value", item.arrow, item.nullable)
            return _AvroType(plain, pa.map_(pa.string(), field), False, item.leaves + 1, item.height + 1)
        if kind in ("record", "error", "enum", "fixed"):
            return self._define(schema, kind, namespace, where, depth)
        if kind not in _PRIMITIVES:
            return self._reference(kind, namespace, where, depth)
        logical = _logical(schema, kind, where)
        if logical is None and self._connect and isinstance(name := schema.get("connect.name"), str):
            logical = CONNECT_TIMES.get((kind, name))
        return _AvroType(kind, logical or _PRIMITIVES[kind], kind == "null")

    def _union(self, branches: list[Any], namespace: str, where: str, depth: int) -> _AvroType:
        if not branches:
            raise InputError(f"its schema is not valid: {where} is a union of no types")
        read = [self._read(branch, namespace, where, depth + 1) for branch in branches]
        kinds = [each for each in read if not t.is_null(each.arrow)]
        nullable = len(kinds) < len(read)
        different = frozenset(each.arrow for each in kinds)
        if len(different) > 1 and different not in _WIDER_TYPES:
            return self._members(read, nullable, where)
        arrow = _WIDER_TYPES.get(different, (kinds or read)[0].arrow)
        return (kinds or read)[0]._replace(plain=[each.plain for each in read], arrow=arrow, nullable=nullable)

    def _members(self, branches: list[_AvroType], nullable: bool, where: str) -> _AvroType:
        """A union as a struct with a field for each type."""
        plain, fields = list[Any](), list[pa.Field]()
        leaves, height = 0, 0
        for branch in branches:
            if t.is_null(branch.arrow):
                plain.append(branch.plain)
                continue
            member = self._wrap(f"{_MEMBER}{len(fields)}", branch)
            plain.append(member.plain)
            fields.append(member.fields[0].with_nullable(True))
            leaves, height = leaves + branch.leaves, max(height, member.height)
        if leaves > self._max_columns:
            raise too_many_columns(self._max_columns, where)
        return _AvroType(plain, pa.struct(fields), nullable, leaves, height)

    def _wrap(self, name: str, inner: _AvroType) -> _AvroType:
        """A record of one field, for the decoder; it takes the same bytes."""
        plain = {"type": "record", "name": self._new_name(), "fields": [{"name": name, "type": inner.plain}]}
        arrow = pa.struct([pa.field(name, inner.arrow, inner.nullable)])
        return _AvroType(plain, arrow, False, inner.leaves, inner.height + 1)

    def _new_name(self) -> str:
        self._defined += 1
        return f"t{self._defined}"

    def _define(self, schema: Any, kind: str, namespace: str, where: str, depth: int) -> _AvroType:
        name = _text(schema, "name", where)
        space = name.rpartition(".")[0] if "." in name else str(schema.get("namespace") or namespace)
        full = name if "." in name or not space else f"{space}.{name}"
        plain: dict[str, Any] = {"type": kind if kind != "error" else "record", "name": self._new_name()}
        self._named[full] = _AvroType(plain["name"], None)
        if kind == "enum":
            plain["symbols"] = _symbols(schema, where)
            avro_type = _AvroType(plain, pa.string())
        elif kind == "fixed":
            plain["size"] = size = _size(schema, where)
            avro_type = _AvroType(plain, _logical(schema, kind, where) or pa.binary(size))
        else:
            avro_type = self._record(schema, plain, space, where, depth)
        self._named[full] = avro_type._replace(plain=plain["name"])
        return avro_type

    def _record(self, schema: Any, plain: dict[str, Any], space: str, where: str, depth: int) -> _AvroType:
        listed = _part(schema, "fields", where)
        if not isinstance(listed, list):
            raise InputError(f"its schema is not valid: the fields of {where} are not a list")
        fields, plain["fields"] = [], []
        leaves, height = 0, 0
        for field in listed:
            name = _text(field, "name", f"a field of {where}")
            inner = self._read(_part(field, "type", f"field {name!r}"), space, f"field {name!r}", depth + 1)
            leaves, height = leaves + inner.leaves, max(height, inner.height + 1)
            if leaves > self._max_columns:
                raise too_many_columns(self._max_columns, where)
            plain["fields"].append({"name": name, "type": inner.plain})
            fields.append(pa.field(name, inner.arrow, inner.nullable))
        if not self._has_bytes(plain):
            self._bare.add(plain["name"])
        return _AvroType(plain, pa.struct(fields), False, leaves, height)

    def _has_bytes(self, plain: Any) -> bool:
        """Whether each value takes at least a byte."""
        if isinstance(plain, dict) and plain["type"] == "record":
            return any(self._has_bytes(field["type"]) for field in plain["fields"])
        return not isinstance(plain, str) or (plain != "null" and plain not in self._bare)

    def _reference(self, name: str, namespace: str, where: str, depth: int) -> _AvroType:
        full = f"{namespace}.{name}" if namespace and "." not in name else name
        avro_type = self._named.get(full) or self._named.get(name)
        if avro_type is None:
            raise InputError(f"its schema names a type {name!r} that it does not define")
        if avro_type.arrow is None:
            raise SchemaError(
                f"{where} is of type {short_repr(full)}, which contains itself: records without an end cannot be "
                "stored; write the inner records as JSON text"
            )
        if depth + avro_type.height > MAX_DEPTH:
            raise SchemaError(f"{where} is nested more than {MAX_DEPTH} levels deep")
        return avro_type


def _is_record(schema: Any) -> bool:
    """Whether the values of a schema are records, and not maps or members of a union."""
    while isinstance(schema, dict) and not isinstance(schema.get("type"), str):
        schema = schema.get("type")
    return isinstance(schema, dict) and schema["type"] in ("record", "error")


def _part(schema: Any, key: str, where: str) -> Any:
    """A part of a schema. Raises InputError if it is not there."""
    if not isinstance(schema, dict) or key not in schema:
        raise InputError(f"its schema is not valid: {where} has no {key!r}")
    return schema[key]


def _text(schema: Any, key: str, where: str) -> str:
    """A name in a schema. Raises InputError if it is none, or holds half of a surrogate pair."""
    text = _part(schema, key, where)
    if not isinstance(text, str) or any("\ud800" <= sign <= "\udfff" for sign in text):
        raise InputError(f"its schema is not valid: the {key} of {where} is not text")
    return text


def _symbols(schema: Any, where: str) -> list[str]:
    """The symbols of an enum. Raises InputError if they do not follow the specification."""
    symbols = _part(schema, "symbols", where)
    if not isinstance(symbols, list) or not symbols:
        raise InputError(f"its schema is not valid: {where} is an enum without a list of symbols")
    for symbol in symbols:
        if not isinstance(symbol, str) or not _SYMBOL.fullmatch(symbol):
            raise InputError(f"its schema is not valid: {where} has the symbol {short_repr(symbol)}, not a name")
    if len(set(symbols)) < len(symbols):
        raise InputError(f"its schema is not valid: {where} has a symbol twice")
    return symbols


def _size(schema: Any, where: str) -> int:
    """The bytes of a fixed. Raises SchemaError if no column holds them."""
    size = _part(schema, "size", where)
    if type(size) is not int or size < 1:
        raise SchemaError(f"{where} is a fixed of {short_repr(size)} bytes: there must be at least one")
    if size > MAX_FIXED_BYTES:
        raise SchemaError(f"{where} is a fixed of {size:,} bytes: at most {MAX_FIXED_BYTES:,} are read; write bytes")
    return size


def _logical(schema: Any, kind: str, where: str) -> pa.DataType | None:
    logical = schema.get("logicalType")
    if logical != "decimal" or kind not in ("bytes", "fixed"):
        return _BY_NAMES.get((kind, logical)) if isinstance(logical, str) else None
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision or precision < 1:
        return None  # the specification: an invalid logical type is ignored
    if precision > _DECIMAL_DIGITS:
        raise SchemaError(
            f"{where} is a decimal of {short_repr(precision)} digits: at most {_DECIMAL_DIGITS} can be read"
        )
    if kind == "fixed" and schema["size"] > _DECIMAL_BYTES:
        raise SchemaError(f"{where} is a decimal of {schema['size']:,} bytes: at most {_DECIMAL_BYTES} can be read")
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)


def is_union(kind: pa.DataType) -> bool:
    """Whether a type of Arrow is that of a union of several types."""
    return t.is_struct(kind) and [field.name for field in kind] == [f"{_MEMBER}{n}" for n in range(kind.num_fields)]


def apply_named_times(own: pa.Schema, connect: pa.Schema, find: FindTime, target: pa.Schema | None = None) -> pa.Schema:
    """Gives a file's columns the types that ``find`` returns for the times in ``connect``; values go to ``target``."""
    if own == connect:
        return own
    row = None if target is None else pa.struct(list(target))
    return pa.schema(list(_apply_times(pa.struct(list(own)), pa.struct(list(connect)), find, row)))


def _apply_times(own: pa.DataType, connect: pa.DataType, find: FindTime, target: pa.DataType | None) -> pa.DataType:
    if own == connect or (own.id != connect.id and (t.is_nested(own) or t.is_nested(connect))):
        return own  # of the types of a union, only some have a name of Connect
    if t.is_struct(own):
        inner = {field.name: field.type for field in target} if target is not None and t.is_struct(target) else {}
        names = own_names([field.name for field in own], inner)
        return pa.struct(
            [
                field.with_type(_apply_times(field.type, named.type, find, inner.get(name)))
                for field, named, name in zip(own, connect, names, strict=True)
            ]
        )
    if t.is_list(own):
        item = target.value_type if target is not None and t.is_list(target) else None
        return pa.list_(own.value_field.with_type(_apply_times(own.value_type, connect.value_type, find, item)))
    if t.is_map(own):
        item = target.item_type if target is not None and t.is_map(target) else None
        value = own.item_field.with_type(_apply_times(own.item_type, connect.item_type, find, item))
        return pa.map_(own.key_type, value)
    return find(connect, target) or own


def decoded_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values that the decoder of the plain schema returns for this type."""
    if t.is_decimal(kind):
        return pa.binary()
    if t.is_date(kind) or t.is_time32(kind):
        return pa.int32()
    if t.is_temporal(kind):
        return pa.int64()
    return change_children(kind, decoded_type)


def wide_type(kind: pa.DataType) -> pa.DataType:
    """The type that holds all values: decimals may have more digits than declared; the cast checks them."""
    return pa.decimal256(_DECIMAL_DIGITS, kind.scale) if t.is_decimal(kind) else change_children(kind, wide_type)


def to_column_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Converts decoded values to ``kind``. The array is not a slice."""
    if array.type == kind:
        return array
    mask = null_mask(array)
    if t.is_decimal(kind):
        return _decimals(array, kind)
    if t.is_struct(kind):
        children = [to_column_type(array.field(index), field.type) for index, field in enumerate(kind)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if t.is_list(kind):
        return pa.ListArray.from_arrays(
            array.offsets, to_column_type(array.values, kind.value_type), type=kind, mask=mask
        )
    if t.is_map(kind):
        items = to_column_type(array.items, kind.item_type)
        return pa.MapArray.from_arrays(array.offsets, array.keys, items, type=kind, mask=mask)
    return array.cast(kind)


def _decimals(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Converts unscaled numbers (big-endian) to decimals. Raises ValueError if one is too long."""
    data, bounds = text_bytes(array)
    sizes = np.diff(bounds)
    if len(sizes) and sizes.max() > _DECIMAL_BYTES:
        raise ValueError(f"a decimal of more than {_DECIMAL_BYTES} bytes")
    padded = np.zeros((len(array), _DECIMAL_BYTES), np.uint8)
    filled = sizes > 0
    negative = np.zeros(len(array), bool)
    negative[filled] = data[bounds[:-1][filled]] >= 0x80
    padded[negative] = 0xFF
    rows = np.repeat(np.arange(len(array)), sizes)
    from_end = np.repeat(bounds[1:], sizes) - 1 - np.arange(len(data))
    padded[rows, from_end] = data
    validity = None
    if array.null_count:
        validity = pa.py_buffer(np.packbits(to_mask(array.is_valid()), bitorder="little"))
    return pa.Array.from_buffers(kind, len(array), [validity, pa.py_buffer(padded)])
