"""Reads a dolmen database without dolmen, as docs/format.md specifies it. docs/reader.md introduces it.

    python examples/reader.py DIRECTORY [TABLE] [--version N]

It needs pyarrow, pyroaring and the standard library. It is made to be read and to be compared with, not to be fast: it
reads whole objects, checks every checksum, and evaluates predicates row by row.
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import operator
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from datetime import date
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap

Json = dict[str, Any]
Get = Callable[[str], bytes]
Mapping = list[Json] | None  # the names of columns in adopted files, by id
Operand = tuple[Any, str]  # a value in a predicate, and its type in the file; "" if the file lacks the column
Columns = dict[int, tuple[pa.Array, str]]  # by id: the values in the type of the table, and the type in the file

FEATURES = {
    "predicate-expressions", "predicate-fields", "predicate-functions", "predicate-lists", "tags", "erasures", "checks",
    "column-defaults", "widened-columns", "adopted-files", "indexes", "constant-columns", "default-functions",
    "partitions", "sort-orders",
}  # fmt: skip
KEY = re.compile(r"(data|tombstone|segment|index|intent)/(?!.*\.\.)[A-Za-z0-9_./-]{1,200}")
ADOPTED = re.compile(r"adopted/(ids|names)/(own|file)/((?!.*/\.{0,2}/)[A-Za-z0-9_.~=/%-]+)/[0-9a-f]{32}\.parquet")
FLOATS = {"double", "float"}  # min() of them is the wider one
DAY_US = 86_400_000_000
COMMIT_TS = {"id": 2_147_483_647, "name": "_commit_ts", "type": "int64", "nullable": False}


class FormatError(Exception):
    """An object is damaged, or of a kind that this reader does not know."""


def check(condition: bool, problem: str) -> None:
    """Raises an error unless the condition is true."""
    if not condition:
        raise FormatError(problem)


# Objects


def unseal(data: bytes, key: str) -> Json:
    """Sealed JSON, with its checksum, its format version and its features checked."""
    body, _, seal = data.rpartition(b',"crc32":')
    check(seal == b"%d}" % zlib.crc32(body + b"}"), f"{key}: the checksum is wrong")
    value: Json = json.loads(body + b"}")
    check(value["format_version"] == 1, f"{key}: format version {value['format_version']} is unknown")
    check(not (new := set(value.get("features", ())) - FEATURES), f"{key}: the features {sorted(new)} are unknown")
    return value


def read_object(get: Get, reference: Json) -> bytes:
    """An object, or a blob in one, checked against the reference to it."""
    key = reference["object"]
    check(KEY.fullmatch(key) is not None, f"{key}: no object has such a key")
    data = get(key)[reference.get("offset", 0) :][: reference.get("length")]
    check(len(data) == reference.get("size", reference.get("length")), f"{key}: the size is wrong")
    check(zlib.crc32(data) == reference.get("crc32", zlib.crc32(data)), f"{key}: the checksum is wrong")
    return data


def read_parquet(data: bytes) -> pa.Table:
    """All rows of a Parquet file, with the checksums of its pages checked if it has them."""
    file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True, coerce_int96_timestamp_unit="us")
    table = file.read(use_threads=False)
    check(file.metadata.num_rows == table.num_rows, "a Parquet file has another number of rows than its footer says")
    return table


def read_segment(get: Get, reference: Json) -> list[Any]:
    """The entries of a segment, oldest first."""
    key, kind, data = reference["object"], reference["kind"], read_object(get, reference)
    if kind == "files":
        table = read_parquet(data)
        entries = table.select([name for name in table.column_names if not re.match("(min|max)_", name)]).to_pylist()
        for entry in entries:
            entry["footer"] = [entry[f"footer_{member}"] for member in ("offset", "length", "crc32")]
            vector = ("object", "offset", "length", "crc32", "cardinality")
            entry["constants"] = json.loads(entry.get("constants") or "{}")
            entry["vector"] = {member: entry[f"vector_{member}"] for member in vector if entry["vector_object"]} or None
    else:
        magic, length, frame = struct.unpack_from("<4sQQ", data)
        text = pa.CompressedInputStream(pa.BufferReader(data[20 : 20 + frame]), "zstd").read()
        content = unseal(text, key)
        check((magic, length, kind) == (b"DSG1", len(text), content["kind"]), f"{key}: this is no segment of {kind}")
        entries = content["entries"]
    check(len(entries) == reference["count"], f"{key}: it has {len(entries)} entries, not {reference['count']}")
    return entries


def entries_of(get: Get, owner: Json, kind: str) -> list[Any]:
    """The entries of a kind that a manifest or a table entry has: those in segments, then those in itself."""
    segments = [segment for segment in owner.get("segments", ()) if segment["kind"] == kind]
    return [entry for segment in segments for entry in read_segment(get, segment)] + owner.get(kind, [])


# Values: numbers are int, Decimal and float, times are microseconds


def arrow_field(field: Json) -> pa.Field:
    """The Arrow field of a column, or of a field inside one."""
    type_ = field["type"]
    if isinstance(type_, dict):
        ((kind, fields),) = type_.items()
        inside = [arrow_field(each) for each in (fields if kind != "list" else [fields])]
        arrow = pa.struct(inside) if kind == "struct" else {"list": pa.list_, "map": pa.map_}[kind](*inside)
    elif type_.startswith(("decimal128", "fixed_size_binary")):
        arrow = (pa.decimal128 if type_[0] == "d" else pa.binary)(*map(int, re.findall(r"\d+", type_[10:])))
    else:
        arrow = pa.timestamp("us", "UTC") if type_ == "timestamp[us, tz=UTC]" else pa.type_for_alias(type_)
    return pa.field(field["name"], arrow, field.get("nullable", True))


def from_json(value: Any, type_: str) -> Any:
    """A value in a predicate, a list of keys or a default."""
    if value is None or type_ in FLOATS:
        return value if value is None else nearest(float(value), type_)
    if "binary" in type_:
        return base64.b64decode(value)
    return Decimal(value) if type_.startswith("decimal") else value * DAY_US if type_ == "date32[day]" else value


def from_arrow(array: pa.Array) -> list[Any]:
    """The values of an array."""
    if hasattr(array.type, "value_field"):
        return [from_arrow(each.values) if each.is_valid else None for each in array]
    if pa.types.is_temporal(array.type):
        kind, unit, whole = pa.time64("us") if pa.types.is_time(array.type) else pa.timestamp("us"), 1, pa.int64()
        if pa.types.is_date(array.type):
            kind, unit, whole = pa.date32(), DAY_US, pa.int32()
        return [None if value is None else value * unit for value in array.cast(kind).cast(whole).to_pylist()]
    return array.to_pylist()


def nearest(number: Any, type_: str) -> float:
    """The value of type double or float that is nearest to a number; ties go to even."""
    if type_ == "double":
        return float(number)
    return pa.scalar(number if isinstance(number, float) else str(number)).cast(pa.float32()).as_py()


# Predicates


def evaluate(term: Json, row: dict[int, Operand]) -> Operand:
    """The value of a column, a literal or a call."""
    kind, type_ = term["kind"], term["type"]
    if kind == "literal":
        return from_json(term["value"], type_), type_
    if kind == "call":
        return call(term["function"], [evaluate(argument, row) for argument in term["args"]], type_)
    check(kind in ("column", "field", "list"), f"a term of kind {kind} is unknown")
    value, stored = row[term["id"]]
    type_ = min({type_, *re.findall("(?:^|: )(double|float)", stored)} & FLOATS, default=type_)  # a list's is in <>
    return nearest(value, type_) if type_ in FLOATS and value is not None and kind != "list" else value, type_


def order(left: Operand, right: Operand) -> int:
    """-1, 0 or 1: the left value is less than, equal to or greater than the right one. Neither is NULL."""
    a, b = left[0], right[0]
    if floats := {left[1], right[1]} & FLOATS:
        numbers = (nearest(value, min(floats)) for value in (a, b))
        a, b = ((True, 0) if math.isnan(number) else (False, number) for number in numbers)
    return (a > b) - (a < b)


ORDERS = {"=": (0,), "<>": (-1, 1), "<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1)}


def truth(predicate: Json, row: dict[int, Operand]) -> Any:
    """True, False, or None for NULL."""
    kind = predicate["kind"]
    if kind in ("and", "or"):
        results, decisive = {truth(argument, row) for argument in predicate["args"]}, kind == "or"
        return decisive if decisive in results else None if None in results else not decisive
    if kind == "not":
        return {True: False, False: True}.get(truth(predicate["arg"], row))
    if kind == "constant":
        return predicate["value"]
    check(kind in ("compare", "in", "is_null", "like", "truth"), f"a predicate of kind {kind} is unknown")
    left = evaluate(predicate["left" if kind == "compare" else "column"], row)
    if kind == "is_null" or left[0] is None:
        return left[0] is None if kind == "is_null" else None
    if kind == "compare":
        right = evaluate(predicate["right"], row)
        return None if right[0] is None else order(left, right) in ORDERS[predicate["op"]]
    if kind == "in":
        members = ((from_json(value, predicate["type"]), predicate["type"]) for value in predicate["values"])
        return any(order(left, member) == 0 for member in members) or (None if predicate.get("null") else False)
    return left[0] if kind == "truth" else is_like(left[0], **predicate)


def is_like(text: str, pattern: str, escape: str = "", ignore_case: bool = False, **_: Any) -> bool:
    """Whether a text matches the pattern of a LIKE."""
    if ignore_case:
        text, pattern = FUNCTIONS["lower"](text), FUNCTIONS["lower"](pattern)
    pieces = re.findall(f"{re.escape(escape)}.|." if escape else ".", pattern, re.DOTALL)
    expression = "".join({"%": ".*", "_": "."}.get(piece) or re.escape(piece[-1]) for piece in pieces)
    return re.fullmatch(expression, text, re.DOTALL) is not None


def add_interval(us: int, months: int, days: int, rest: int) -> int | None:
    """A time after an interval; None beyond the range of timestamps."""
    day, time = divmod(us, DAY_US)
    if months:
        month = date_part(us, "year") * 12 + date_part(us, "month") - 1 + months
        day = min(first_day(month) + date_part(us, "day"), first_day(month + 1)) - 1
    us = (day + days) * DAY_US + time + rest
    return us if -(2**63) <= us < 2**63 else None


def first_day(month: int) -> int:
    """The first day of a month, counted from the year 0, as days since 1970-01-01."""
    return (date(month // 12 % 400 + 2000, month % 12 + 1, 1) - date(1970, 1, 1)).days + (month // 4800 - 5) * 146_097


def date_part(us: int, part: str) -> int:
    """The year, month or day of a time. The calendar repeats after 400 years."""
    eras, day = divmod(us // DAY_US + date(1970, 1, 1).toordinal() - 1, 146_097)
    return getattr(date.fromordinal(day + 1), part) + (400 * eras if part == "year" else 0)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "negate": operator.neg,
    "/": lambda a, b: pc.divide(a, b).as_py(),  # by IEEE 754
    "%": lambda a, b: int(Decimal(a) % b) if b else None,  # with the sign of the dividend
    "lower": lambda text: pc.utf8_lower(text).as_py(), "upper": lambda text: pc.utf8_upper(text).as_py(),
    "year": lambda us: date_part(us, "year"), "month": lambda us: date_part(us, "month"),
    "day": lambda us: date_part(us, "day"), "add_interval": add_interval, "abs": abs, "length": len,
    "hour": lambda us: us // 3_600_000_000 % 24, "minute": lambda us: us // 60_000_000 % 60,
    "coalesce": lambda *values: values[0],
}  # fmt: skip


def call(function: str, arguments: list[Operand], type_: str) -> Operand:
    """The result of a function. Its arguments may be wider in the file than they were when the predicate was bound."""
    check(function in {"cast", "list_contains", *FUNCTIONS}, f"the function {function} is unknown")
    values = [value for value, _ in arguments if value is not None]
    if not values or (len(values) < len(arguments) and function != "coalesce"):
        return None, type_
    if function == "cast":
        return cast(values[0], type_), type_
    if function == "list_contains":
        return any(order((each, arguments[0][1]), arguments[1]) == 0 for each in values[0] if each is not None), type_
    if type_ in FLOATS:
        type_ = min({argument for _, argument in arguments} & FLOATS, default="double")
        return nearest(FUNCTIONS[function](*(nearest(value, type_) for value in values)), type_), type_
    return FUNCTIONS[function](*values), type_


def cast(value: Any, type_: str) -> Any:
    """A value in another type; None if the type does not have it."""
    if type_ in {"string", *FLOATS}:
        return nearest(value, type_) if type_ in FLOATS else str(value).lower()  # of a bool: true, false
    if type_ == "date32[day]":
        return value // DAY_US * DAY_US
    if decimal := re.fullmatch(r"decimal128\((\d+), (\d+)\)", type_):
        return value if abs(value) * 10 ** int(decimal[2]) < 10 ** int(decimal[1]) else None
    if integer := re.fullmatch(r"(u?)int(\d+)", type_):
        span, least = 2 ** int(integer[2]), 0 if integer[1] else -(2 ** (int(integer[2]) - 1))
        return value if least <= value < least + span else None
    return value  # the same microseconds


# Data files


def read_file(get: Get, entry: Json) -> pa.Table:
    """All rows of a data file."""
    path, (offset, length, crc32) = entry["path"], entry["footer"]
    if adopted := ADOPTED.fullmatch(path):
        key = unquote(adopted[3])
        check(quote(key, safe="=/") == adopted[3], f"{path}: the path could be written otherwise")
        data = get(key) if adopted[2] == "own" else Path("/", key).read_bytes()
    else:
        check(KEY.fullmatch(path) is not None, f"{path}: this reader reads no file from there")
        data = get(path)
    check(len(data) == entry["size"], f"{path}: the size is wrong")
    footer = data[offset:]
    check((len(footer), zlib.crc32(footer)) == (length, crc32), f"{path}: the footer is damaged")
    blocks = footer[: -8 - int.from_bytes(footer[-8:-4], "little")]
    if blocks.endswith(b"DSUM"):  # the checksum of all bytes before the footer is the last one
        check(zlib.crc32(data[:offset]) == int.from_bytes(blocks[-8:-4], "little"), f"{path}: it is damaged")
    table = read_parquet(data)
    check(table.num_rows == entry["rows"], f"{path}: it has {table.num_rows} rows, not {entry['rows']}")
    return table


def find_column(table: pa.Table, column: Json, mapping: Mapping, constants: Json) -> tuple[pa.Array, str]:
    """A column or field, by its id or a mapping of names, or else its constant or default; and its type in the file."""
    constant = constants.get(str(column["id"]))
    for id_, array, inner in columns_in(table, mapping) if constant is None else ():
        if id_ == column["id"]:
            return convert(array, column, inner), str(array.type)
    type_, json_value = constant or (column["type"], column.get("initial_default"))
    value, target, stored = from_json(json_value, type_), arrow_field(column).type, type_ if constant else ""
    value = value // DAY_US if pa.types.is_date(target) and value is not None else value
    return pa.array([value] * table.num_rows, target), stored


def columns_in(table: pa.Table, mapping: Mapping) -> Iterator[tuple[int, pa.Array, Mapping]]:
    """The columns of a file, or the fields of a struct: the id, the values, and the mapping of the fields inside."""
    for field, column in zip(table.schema, table.columns, strict=True):
        own: Json = {"id": int((field.metadata or {}).get(b"PARQUET:field_id", -1)), "fields": None}
        if mapping is not None:
            own = next((each for each in mapping if field.name in each["names"]), {"id": -1})
        yield own["id"], pa.concat_arrays([pa.array([], field.type), *column.chunks]), own.get("fields", [])


def struct_fields(table: pa.Table, mapping: Mapping) -> Columns:
    """The fields of structs in a file, at every depth, in the types of the file."""
    found: Columns = {}
    for _, array, inner in columns_in(table, mapping):
        if pa.types.is_struct(array.type):
            stored = pa.table(array.flatten(), schema=pa.schema(list(array.type)))  # NULL where the struct is
            found |= {id_: (child, str(child.type)) for id_, child, _ in columns_in(stored, inner)}
            found |= struct_fields(stored, inner)
    return found


def convert(array: pa.Array, column: Json, mapping: Mapping) -> pa.Array:
    """An array of a file in the type of its column, with the fields inside found as columns are."""
    type_, target, nulls = column["type"], arrow_field(column).type, array.is_null()
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if not isinstance(type_, dict):
        return array.cast(target)
    ((kind, fields),) = type_.items()
    if kind == "struct":
        stored = pa.Table.from_struct_array(array)
        children = [find_column(stored, field, mapping, {})[0] for field in fields]
        return pa.StructArray.from_arrays(children, fields=list(target), mask=nulls)
    inside = [None, None] if mapping is None else [*(each.get("fields", []) for each in mapping), [], []]
    if kind == "list":
        array = array.cast(pa.list_(array.type.value_field))
        values = convert(array.values, fields, inside[0])
        return pa.ListArray.from_arrays(array.offsets, values, type=target, mask=nulls)
    keys, items = convert(array.keys, fields[0], inside[0]), convert(array.items, fields[1], inside[1])
    return pa.MapArray.from_arrays(array.offsets, keys, items, type=target, mask=nulls)


# Tombstones


def hidden_rows(get: Get, entry: Json, columns: Columns, tombstones: list[Json]) -> set[int]:
    """The positions of the rows of a file that its deletion vector or a tombstone hides: this is the rule."""
    hidden: set[int] = set()
    if vector := entry.get("vector"):
        hidden = set(BitMap.deserialize(read_object(get, vector)))
        check(len(hidden) == vector["cardinality"] and max(hidden, default=-1) < entry["rows"], "a vector is wrong")
    for tombstone in tombstones:
        if entry.get("applied_through", 0) < tombstone.get("ts", 0):
            here = dict(zip(tombstone["columns"], tombstone.get("here", tombstone["columns"]), strict=True))
            ids, is_match = matcher(get, tombstone)
            named = [columns.get(here.get(id_, id_), (pa.nulls(entry["rows"]), "")) for id_ in ids]
            cells = [[(value, type_) for value in from_arrow(array)] for array, type_ in named]
            with localcontext(prec=100):  # exact: no number has more digits
                hidden.update(i for i in range(entry["rows"]) if is_match([column[i] for column in cells]))
    return hidden


def matcher(get: Get, tombstone: Json) -> tuple[list[int], Callable[[list[Operand]], bool]]:
    """The columns and fields of structs that a tombstone names, and whether it matches a row, by their values."""
    ids, kind = tombstone["columns"], tombstone["kind"]
    check(kind in ("where", "keys"), f"a tombstone of kind {kind} is unknown")
    check(set(tombstone.get("needs", ())) <= FEATURES, f"a tombstone needs {tombstone.get('needs')}")
    if kind == "where":
        predicate = tombstone.get("predicate") or json.loads(read_object(get, tombstone["blob"]))
        ids = list({each["id"] for each in objects_in(predicate) if each.get("kind") in ("column", "field", "list")})
        return ids, lambda row: truth(predicate, dict(zip(ids, row, strict=True))) is True
    if tombstone.get("values") is not None:
        pairs = zip(tombstone["values"], tombstone["types"], strict=True)
        columns = [[from_json(value, type_) for value in values] for values, type_ in pairs]
    else:
        columns = [from_arrow(column.combine_chunks()) for column in read_parquet(read_object(get, tombstone["blob"]))]
    keys = set(zip(*columns, strict=True))  # none contains NULL
    check(len(keys) == tombstone["count"], f"a tombstone has {len(keys)} keys, not {tombstone['count']}")
    return ids, lambda row: tuple(value for value, _ in row) in keys


def objects_in(value: Any) -> list[Json]:
    """The objects in a JSON value, at every depth."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [value] * isinstance(value, dict) + [one for each in inner for one in objects_in(each)]


def erased_from(erasure: Json, entry: Json) -> list[Json]:
    """The tombstones of an erasure on a table of an older version, with the `fields` that they name."""
    lineage = {entry["uuid"], entry.get("source", ""), *entry.get("origins", ())} - {""}
    known = {field["id"]: field for field in entry["schema"]["fields"] + entry["schema"].get("dropped", [])}
    deletes = [each for each in erasure.get("tables", ()) if each["uuid"] in lineage]
    if deletes:
        pairs = [(each["tombstone"], each.get("columns", [])) for each in deletes]
        now = [ids_in([known[field["id"]] for field in fields if field["id"] in known]) for _, fields in pairs]
        same = [one | ids_in(fields) == ids_in(fields) | one for one, (_, fields) in zip(now, pairs, strict=True)]
        return [{**one, "fields": fields} for (one, fields), is_same in zip(pairs, same, strict=True) if is_same]
    subject = entry.get("properties", {}).get("subject")
    column = next((field for field in entry["schema"]["fields"] if field["name"] == subject), None)
    if column is None or not erasure.get("subject"):
        return []
    is_number = re.match("u?int|decimal", column["type"]) is not None
    check(is_number or column["type"] == "string", f"this reader finds no subjects of type {column['type']}")
    values = [value for value in erasure["subject"] if isinstance(value, int) == is_number]
    keys = {"kind": "keys", "columns": [column["id"]], "values": [values], "count": len(values)}
    return [{**keys, "types": ["int64" if is_number else "string"], "ts": erasure["ts"]}]


def ids_in(fields: list[Json]) -> dict[int, int]:
    """The ids of columns and of the fields inside them, each with the time when it was added."""
    return {each["id"]: each.get("added_ts", 0) for each in objects_in(fields) if "id" in each}


def remembered_from(erasure: Json, owner: Json, entry: Json) -> list[Json]:
    """The tombstones of an erasure on the table that remembers the keys of the rows deleted from another, its owner."""
    names = {field["id"]: field["name"] for field in owner["schema"]["fields"]}
    ids = {field["name"]: field["id"] for field in entry["schema"]["fields"]}
    found = [each for each in erased_from(erasure, owner) if set(each["columns"]) <= set(owner.get("primary_key", ()))]
    return [{**each, "here": [ids[names[id_]] for id_ in each["columns"]], "fields": []} for each in found]


# Versions and tables


class Database:
    """A database, by a function that returns the bytes of a key."""

    def __init__(self, get: Get) -> None:
        self._get = get
        pointer = unseal(get("_latest_manifest"), "_latest_manifest")
        self.newest = self._read_manifest(pointer["manifest"], pointer, "version", "commit_id")
        history, horizon = entries_of(get, self.newest, "history"), self.newest.get("horizon", 0)
        self._history = {commit["version"]: commit for commit in history if commit["version"] >= horizon}
        self._tags = {tag["version"]: tag for tag in self.newest.get("tags", {}).values()}

    def _read_manifest(self, key: str, expected: Json, *members: str) -> Json:
        manifest = unseal(self._get(key), key)
        name = f"manifest/v{manifest['version']:020}-{manifest['attempt']}.json"
        check(key == name and all(manifest[each] == expected[each] for each in members), f"{key}: it is another one")
        return manifest

    def versions(self) -> list[int]:
        """The versions that are kept: those from the horizon on, and those with a tag."""
        return sorted({*self._history, *self._tags, self.newest["version"]})

    def manifest(self, version: int | None = None) -> Json:
        """The manifest of a kept version, by default of the newest one."""
        if version is None or version == self.newest["version"]:
            return self.newest
        check(version in self.versions(), f"version {version} does not exist, or is not kept")
        if commit := self._history.get(version):
            key = f"manifest/v{version:020}-{commit['attempt']}.json"
            return self._read_manifest(key, commit, "commit_id", "commit_ts", "created_at")
        return self._read_manifest(self._tags[version]["manifest"], self._tags[version], "version", "created_at")

    def tables(self, version: int | None = None) -> list[str]:
        """The names of the tables of a version."""
        return sorted(self.manifest(version).get("tables", {}))

    def rows(self, table: str, version: int | None = None, with_commit_ts: bool = False) -> pa.Table:
        """All rows of a table, in any order; if asked for, with the timestamps of their commits."""
        manifest = self.manifest(version)
        check(table in manifest.get("tables", {}), f"version {manifest['version']} has no table {table}")
        entry = self._whole(manifest["tables"][table])
        tombstones = entries_of(self._get, entry, "tombstones") + self._erased(manifest, entry)
        fields, dropped = entry["schema"]["fields"], entry["schema"].get("dropped", [])
        named = [field for tombstone in tombstones for field in tombstone.get("fields", ())]
        known = {field["id"]: field for field in named + dropped + fields}
        shown = [*fields, COMMIT_TS] if with_commit_ts else fields
        schema = pa.schema([arrow_field(field) for field in shown])
        parts = [schema.empty_table()]
        for file in self._live_files(entry):
            mapping = entry["schema"].get("mapping", []) if file["path"].startswith("adopted/names/") else None
            stored, commit_ts = read_file(self._get, file), {**COMMIT_TS, "initial_default": file.get("row_ts", 0)}
            constants, needed = file.get("constants", {}), [*known.values(), commit_ts]
            columns = {field["id"]: find_column(stored, field, mapping, constants) for field in needed}
            hidden = hidden_rows(self._get, file, struct_fields(stored, mapping) | columns, tombstones)
            rest = [position for position in range(file["rows"]) if position not in hidden]
            data = pa.table([columns[field["id"]][0] for field in shown], schema=schema)
            parts.append(data.take(pa.array(rest, pa.int64())))
        return pa.concat_tables(parts)

    def _whole(self, entry: Json) -> Json:
        """A table entry with all members: that of an idle table is in a segment."""
        entries = [entry] if entry.get("section") is None else read_segment(self._get, entry["section"])
        return next(each for each in entries if each["uuid"] == entry["uuid"])

    def _live_files(self, entry: Json) -> Iterator[Json]:
        """The live files of a table, each with the newest of its pairs of `applied_through` and `vector`."""
        removed, overlays = entries_of(self._get, entry, "removed"), entries_of(self._get, entry, "overlays")
        for segment in entry.get("segments", ()):
            for file in read_segment(self._get, segment) if segment["kind"] == "files" else ():
                uuid = file["path"].rpartition("/")[2].removesuffix(".parquet")
                if uuid not in removed:
                    pairs = [file, *(overlay for overlay in overlays if overlay["file"] == uuid)]
                    ages = [(x.get("applied_through", 0), (x.get("vector") or {}).get("cardinality", 0)) for x in pairs]
                    newest = pairs[ages.index(max(ages))]
                    through = max(newest.get("applied_through", 0), segment.get("resolved_through", 0))
                    yield {**file, "applied_through": through, "vector": newest.get("vector")}
        yield from entry.get("files", ())

    def _erased(self, manifest: Json, entry: Json) -> list[Json]:
        """The tombstones that later erasures put on a table of an older version."""
        erasures = entries_of(self._get, self.newest, "erasures")
        found = []
        for erasure in (each for each in erasures if each["ts"] > manifest["commit_ts"]):
            own = erased_from(erasure, entry)
            found += own
            for owner in map(self._whole, manifest["tables"].values() if not own else ()):
                if (owner.get("sequences") or {}).get("memory") == entry["uuid"]:
                    found += remembered_from(erasure, owner, entry)
        return found


def main() -> None:
    """Prints the names of the tables, or the rows of one as lines of JSON."""
    parser = argparse.ArgumentParser(description="Reads a dolmen database without dolmen.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("table", nargs="?")
    parser.add_argument("--version", type=int, help="a kept version; by default the newest")
    given = parser.parse_args()
    if not (given.directory / "_latest_manifest").exists():
        parser.error(f"{given.directory} is not a database: it has no _latest_manifest")
    database = Database(lambda key: (given.directory / key).read_bytes())
    rows = database.rows(given.table, given.version).to_pylist() if given.table else []
    lines = [json.dumps(row, default=str, ensure_ascii=False) for row in rows]
    print("".join(f"{line}\n" for line in (lines if given.table else database.tables(given.version))), end="")


if __name__ == "__main__":
    main()
