"""Avro object container files."""

from __future__ import annotations

import datetime as dt
import io
import json
import zlib
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from dolmen.errors import InputError, LimitError, RowError, SchemaError
from dolmen.ingest.formats.avro import avro_reader as avro
from dolmen.ingest.formats.avro import avro_records as avro_blocks
from dolmen.ingest.formats.formats import ReadOptions, SourceFile, detect, infer, read

MAGIC, SYNC = b"Obj\x01", bytes(range(16))


def _number(value: int) -> bytes:
    value, made = value << 1 ^ value >> 63, bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


def _text(data: bytes) -> bytes:
    return _number(len(data)) + data


def _container(schema: Any, blocks: list[tuple[int, bytes]], codec: bytes = b"null") -> bytes:
    """A file by its specification, so that things can be in it that no library writes."""
    made = MAGIC + _number(2) + _text(b"avro.schema") + _text(json.dumps(schema).encode())
    made += _text(b"avro.codec") + _text(codec) + _number(0) + SYNC
    return made + b"".join(_number(count) + _text(data) + SYNC for count, data in blocks)


def _record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "row", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def _written(schema: Any, rows: list[dict[str, Any]], **options: Any) -> bytes:
    sink = io.BytesIO()
    fastavro.writer(sink, schema, rows, **options)
    return sink.getvalue()


def _read(data: bytes, schema: pa.Schema | None = None, **options: Any) -> pa.Table:
    table = read(
        SourceFile(lambda: io.BytesIO(data), detect("t.avro"), "t.avro", ReadOptions(**options)), schema
    ).read_all()
    table.validate(full=True)
    return table


NUMBERS = _record(a="long")


@pytest.mark.parametrize(
    ("codec", "pack"),
    [
        (b"null", lambda data: data),
        (b"deflate", lambda data: zlib.compress(data)[2:-4]),
        (b"bzip2", __import__("bz2").compress),
        (b"xz", __import__("lzma").compress),
        (b"zstandard", lambda data: pa.compress(data, codec="zstd", asbytes=True)),
        (b"snappy", lambda data: pa.compress(data, codec="snappy", asbytes=True) + zlib.crc32(data).to_bytes(4, "big")),
    ],
)
def test_every_codec_of_the_specification_is_read(codec: bytes, pack: Any) -> None:
    blocks = [(2, pack(_number(1) + _number(-2))), (0, pack(b"")), (1, pack(_number(2**63 - 1)))]
    data = _container(NUMBERS, blocks, codec)
    assert _read(data)["a"].to_pylist() == [1, -2, 2**63 - 1]
    broken = _container(NUMBERS, [(2, pack(_number(1) + _number(-2))[:-1])], codec)
    with pytest.raises(InputError, match="damaged"):
        _read(broken)


def test_many_blocks_make_batches_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro, "BATCH_ROWS", 100)
    data = _written(NUMBERS, [{"a": n} for n in range(1234)], sync_interval=300)
    batches = list(read(SourceFile(lambda: io.BytesIO(data), detect("t.avro"), "t.avro"), None))
    assert pa.Table.from_batches(batches)["a"].to_pylist() == list(range(1234))
    assert max(batch.num_rows for batch in batches) == 100


def test_logical_types_are_columns_of_their_type() -> None:
    schema = _record(
        day={"type": "int", "logicalType": "date"},
        millis={"type": "int", "logicalType": "time-millis"},
        moment={"type": "long", "logicalType": "timestamp-millis"},
        nanos={"type": "long", "logicalType": "timestamp-nanos"},
        local={"type": "long", "logicalType": "local-timestamp-micros"},
        uuid={"type": "string", "logicalType": "uuid"},
        small={"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
        large={"type": "fixed", "name": "f", "size": 20, "logicalType": "decimal", "precision": 38, "scale": 0},
        invalid={"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 5},
        unknown={"type": "long", "logicalType": "of-ours"},
        kind={"type": "enum", "name": "kinds", "symbols": ["click", "view"]},
    )
    values = b"".join(
        [
            *map(_number, [19_000, 1, 1_700_000_000_123, 1_700_000_000_123_456_000, -1]),
            _text(b"123e4567-e89b-12d3-a456-426614174000"),
            _text((-5).to_bytes(3, "big", signed=True)),
            (10**38 - 1).to_bytes(20, "big"),
            _text(b"\x01"),
            _number(7),
            _number(1),
        ]
    )
    data = _container(schema, [(1, values)])
    inferred = infer(SourceFile(lambda: io.BytesIO(data), detect("t.avro"), "t.avro"))
    assert inferred.field("small").type == pa.decimal128(4, 2)
    assert inferred.field("moment").type == pa.timestamp("us", "UTC")
    assert not inferred.field("day").nullable
    assert _read(data).to_pylist() == [
        {
            "day": dt.date(2022, 1, 8),
            "millis": dt.time(0, 0, 0, 1000),
            "moment": dt.datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=dt.UTC),
            "nanos": dt.datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=dt.UTC),
            "local": dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
            "uuid": "123e4567-e89b-12d3-a456-426614174000",
            "small": Decimal("-0.05"),
            "large": 10**38 - 1,
            "invalid": b"\x01",
            "unknown": 7,
            "kind": "view",
        }
    ]


def test_records_lists_maps_and_names_used_twice_are_nested_columns() -> None:
    point = {"type": "record", "name": "point", "namespace": "geo", "fields": [{"name": "x", "type": "double"}]}
    paid = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    schema = _record(
        start=point,
        end=["null", "geo.point"],
        path={"type": "array", "items": "geo.point"},
        paid={"type": "map", "values": ["null", paid]},
        prices=["null", {"type": "array", "items": paid}],
    )
    rows = [
        {"start": {"x": 1.5}, "end": None, "path": [{"x": 1.0}, {"x": 2.0}], "paid": {"a": Decimal("1.25"), "b": None},
         "prices": None},
        {"start": {"x": 2.5}, "end": {"x": 3.0}, "path": [], "paid": {}, "prices": [Decimal("-0.01"), Decimal("7")]},
    ]  # fmt: skip
    expected = [row | {"paid": list(row["paid"].items())} for row in rows]  # type: ignore[attr-defined]
    table = _read(_written(schema, rows))
    assert table.to_pylist() == expected
    assert table.schema.field("paid").type == pa.map_(pa.string(), pa.decimal128(9, 2))


def test_a_map_that_the_table_has_no_map_for_is_refused() -> None:
    data = _written(_record(m={"type": "map", "values": "long"}), [{"m": {"a": 1}}])
    with pytest.raises(SchemaError, match=r"column 'm': .*map<string, int64.*struct"):
        _read(data, pa.schema([("m", pa.struct([("a", pa.int64())]))]))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("null", "rows are NULL"),
        (
            {"type": "record", "name": "n", "fields": [{"name": "next", "type": ["null", "n"]}]},
            "'n', which contains itself",
        ),
        ({"type": "array", "items": {"type": "record", "name": "n", "fields": [{"name": "a", "type": "n"}]}}, "itself"),
        (_record(a=["null", "row"]), "contains itself"),
        (_record(a={"type": "array", "items": "null"}), "nothing but NULL"),
        (_record(a={"type": "array", "items": {"type": "record", "name": "e", "fields": []}}), "nothing but NULL"),
        (_record(a={"type": "bytes", "logicalType": "decimal", "precision": 90}), "90 digits"),
        (_record(a="somewhere"), "define"),
        (_record(a={"type": "fixed", "name": "f", "size": 0}), "0 bytes"),
        ({"type": "record", "name": "row", "fields": 5}, "fields"),
        ({"name": "row"}, "'type'"),
        (__import__("functools").reduce(lambda inner, _: {"type": "array", "items": inner}, range(150), "int"), "deep"),
    ],
)
def test_a_schema_without_columns_for_its_values_is_refused(schema: Any, reason: str) -> None:
    with pytest.raises(InputError, match=rf"file 't\.avro': .*{reason}"):
        _read(_container(schema, [(1, b"\x02")]))


POINT = {"type": "record", "name": "p", "fields": [{"name": "x", "type": "int"}]}
DAY = {"type": "int", "logicalType": "date"}
TIME = {"type": "long", "logicalType": "timestamp-millis"}
AMOUNT = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}


@pytest.mark.parametrize(
    ("schema", "values", "kind"),
    [
        ("long", [1, -(2**63)], pa.int64()),
        (DAY, [dt.date(2026, 1, 31)], pa.date32()),
        ("string", ["", "x"], pa.string()),
        ({"type": "array", "items": ["null", "long"]}, [[1, None], []], pa.list_(pa.int64())),
        (
            {"type": "map", "values": "long"},
            [[("a", 1)], []],
            pa.map_(pa.string(), pa.field("value", pa.int64(), False)),
        ),
        ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, ["A", "B"], pa.string()),
        ({"type": "fixed", "name": "f", "size": 2}, [b"ab"], pa.binary(2)),
        (["null", POINT], [{"x": 1}, None], pa.struct([pa.field("x", pa.int32(), False)])),
        (["null", "long"], [None, 5], pa.int64()),
        (
            ["null", "long", "string"],
            [None, {"member0": 5, "member1": None}, {"member0": None, "member1": "5"}],
            pa.struct([("member0", pa.int64()), ("member1", pa.string())]),
        ),
    ],
)
def test_rows_that_are_no_records_are_a_column_of_values(schema: Any, values: list[Any], kind: pa.DataType) -> None:
    def written(value: Any) -> Any:
        if isinstance(value, dict) and "member0" in value:
            return next(member for member in value.values() if member is not None)
        return dict(value) if kind.id == pa.map_(pa.string(), pa.int64()).id else value

    data = _written(schema, list(map(written, values)))
    table = _read(data)
    assert table.schema.field("value").type == kind
    assert table.to_pydict() == {"value": values}
    assert _read(data, table.schema).equals(table)
    with pytest.raises(SchemaError, match="not records, so they need a column 'value'; there are: a"):
        _read(data, pa.schema([("a", kind)]))


def test_a_row_in_a_union_of_its_own_is_a_value() -> None:
    for schema in ([POINT], {"type": [POINT]}):
        assert _read(_container(schema, [(1, b"\0\2")])).to_pydict() == {"value": [{"x": 1}]}
    assert _read(_container({"type": POINT}, [(1, b"\2")])).to_pydict() == {"x": [1]}


UNIONS: list[tuple[list[Any], list[tuple[int, Any]], list[pa.DataType]]] = [
    (["string", "long"], [(0, "5"), (1, 5)], [pa.string(), pa.int64()]),
    (["null", "int", "double"], [(0, 1), (1, 1.5), (0, None)], [pa.int32(), pa.float64()]),
    (["string", "null", "bytes"], [(0, "x"), (1, b"x"), (1, None)], [pa.string(), pa.binary()]),
    (["boolean", DAY], [(0, True), (1, dt.date(1969, 12, 31))], [pa.bool_(), pa.date32()]),
    ([POINT, {"type": "array", "items": "p"}], [(0, {"x": 1}), (1, [{"x": 2}, {"x": 3}])], [None, None]),
    (
        ["string", TIME, AMOUNT],
        [(0, "x"), (1, dt.datetime(2026, 1, 31, tzinfo=dt.UTC)), (2, Decimal("-1.25"))],
        [pa.string(), pa.timestamp("us", "UTC"), pa.decimal128(9, 2)],
    ),
]  # fmt: skip


@pytest.mark.parametrize("place", ["column", "field", "list", "map", "named"])
@pytest.mark.parametrize("union", range(len(UNIONS)))
def test_a_union_of_several_types_is_a_struct_with_a_member_for_each(union: int, place: str) -> None:
    """As Spark reads it. Each value comes back, and so does its type."""
    branches, given, kinds = UNIONS[union]
    members = [
        None if value is None else {f"member{n}": value if n == branch else None for n in range(len(kinds))}
        for branch, value in given
    ]
    values = [value for _, value in given]
    schema = {
        "column": _record(a=branches),
        "field": _record(a={"type": "record", "name": "outer", "fields": [{"name": "f", "type": branches}]}),
        "list": _record(a={"type": "array", "items": branches}),
        "map": _record(a={"type": "map", "values": branches}),
        "named": _record(
            a="int", b={"type": "record", "name": "o", "fields": [{"name": "f", "type": branches}]}, c="o"
        ),
    }[place]
    rows: list[dict[str, Any]] = {
        "column": [{"a": value} for value in values],
        "field": [{"a": {"f": value}} for value in values],
        "list": [{"a": values}, {"a": []}],
        "map": [{"a": {str(n): value for n, value in enumerate(values)}}],
        "named": [{"a": 1, "b": {"f": value}, "c": {"f": values[0]}} for value in values],
    }[place]
    expected: list[dict[str, Any]] = {
        "column": [{"a": member} for member in members],
        "field": [{"a": {"f": member}} for member in members],
        "list": [{"a": members}, {"a": []}],
        "map": [{"a": [(str(n), member) for n, member in enumerate(members)]}],
        "named": [{"a": 1, "b": {"f": member}, "c": {"f": members[0]}} for member in members],
    }[place]
    table = _read(_written(schema, rows))
    assert table.to_pylist() == expected
    if place == "column" and kinds[0] is not None:
        assert table.schema.field("a").type == pa.struct([(f"member{n}", kind) for n, kind in enumerate(kinds)])
        assert table.schema.field("a").nullable == ("null" in branches)
        with pytest.raises(SchemaError, match=r"column 'a': values of a union of several types .* struct<member0: "):
            _read(_written(schema, rows), pa.schema([("a", pa.string())]))


def test_a_union_of_numbers_of_two_widths_is_the_wider_one() -> None:
    for branches, values, kind in (
        (["int", "null", "long"], [1, 2**40, None], pa.int64()),
        (["float", "double"], [1.5, 0.1], pa.float64()),
    ):
        table = _read(_written(_record(a=branches), [{"a": value} for value in values]))
        assert (table.schema.field("a").type, table["a"].to_pylist()) == (kind, values)


def test_types_of_kafka_connect_in_a_union_stay_plain() -> None:
    day = {"type": "int", "connect.name": "io.debezium.time.Date"}
    data = _container(_record(a=[day, DAY], b=[day, "long"], c=["string", day]), [(1, b"\0\2\2\2\2\2")])
    assert _read(data).to_pylist() == [
        {"a": {"member0": 1, "member1": None}, "b": 1, "c": {"member0": None, "member1": 1}}
    ]
    declared = pa.struct([("member0", pa.string()), ("member1", pa.date32())])
    schema = pa.schema(
        [("a", pa.struct([("member0", pa.int32()), ("member1", pa.date32())])), ("b", pa.int64()), ("c", declared)]
    )
    assert _read(data, schema)["c"].to_pylist() == [{"member0": None, "member1": dt.date(1970, 1, 2)}]


def test_a_damaged_value_in_a_union_is_named() -> None:
    data = _container(_record(a=["long", "string"]), [(2, _number(0) + _number(5) + _number(1) + _text(b"\xff"))])
    with pytest.raises(InputError, match=r"block 1, record 2, field 'a\.member1': its text is not UTF-8"):
        _read(data)
    fields = [{"name": f"f{n}", "type": "int"} for n in range(6000)]
    kinds = [{"type": "record", "name": "a", "fields": fields}, {"type": "record", "name": "b", "fields": fields[1:]}]
    with pytest.raises(LimitError, match="10,000 columns"):
        _read(_container(_record(a=kinds), []))


def test_values_fit_their_column_or_are_refused_by_row() -> None:
    data = _written(NUMBERS, [{"a": 1}, {"a": 300}])
    with pytest.raises(RowError) as caught:
        _read(data, pa.schema([("a", pa.int8())]))
    assert (caught.value.file, caught.value.row, caught.value.column) == ("t.avro", 2, "a")


def test_a_decimal_with_more_digits_than_it_says_is_not_rounded() -> None:
    schema = _record(a={"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0})
    data = _container(schema, [(1, _text((12345).to_bytes(2, "big")))])
    assert _read(data, pa.schema([("a", pa.decimal128(9, 0))]))["a"].to_pylist() == [12345]
    with pytest.raises(RowError, match="without loss"):
        _read(data)


def test_extra_columns_and_fields_are_ignored_where_asked() -> None:
    point = {"type": "record", "name": "p", "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "int"}]}
    data = _written(_record(a="long", s=point, z="string"), [{"a": 1, "s": {"x": 2, "y": 3}, "z": "q"}])
    schema = pa.schema([("a", pa.int64()), ("s", pa.struct([("y", pa.int64())]))])
    assert _read(data, schema, extra="ignore").to_pylist() == [{"a": 1, "s": {"y": 3}}]
    with pytest.raises(SchemaError):
        _read(data, schema)


FIXED: dict[str, Any] = {"type": "fixed", "name": "f"}
ENUM = {"type": "enum", "name": "e", "symbols": ["A", "B"]}
INTS = {"type": "array", "items": "int"}
INT_MAP = {"type": "map", "values": "int"}


@pytest.mark.parametrize(
    "size", [2**16 + 1, 2**31 - 1, 2**31, 2**62, 2**70, 0, -1, -(2**62), 4.5, "9", True, None, [1]]
)
@pytest.mark.parametrize("nullable", [False, True])
def test_a_fixed_that_no_memory_holds_is_refused(size: Any, nullable: bool) -> None:
    kind = {**FIXED, "size": size}
    data = _container(_record(a=["null", kind] if nullable else kind), [(9, bytes(9))])
    with pytest.raises(SchemaError, match=r"file 't\.avro': field 'a' is a fixed of .* bytes: "):
        _read(data)


def test_many_nulls_of_wide_fixed_values_take_bounded_memory() -> None:
    data = _container(_record(a=["null", {**FIXED, "size": 2**16}]), [(5000, bytes(5000))])
    batches = list(read(SourceFile(lambda: io.BytesIO(data), detect("t.avro"), "t.avro"), None))
    assert sum(batch.num_rows for batch in batches) == 5000
    assert max(batch.nbytes for batch in batches) < 70 << 20


@pytest.mark.parametrize(
    ("kind", "value", "fault"),
    [
        (INTS, _number(2**62) + b"\2", "4,611,686,018,427,387,904 items"),
        (INTS, _number(-(2**62)) + _number(5) + b"\2", "has 4,611,686,018,427,387,904 items"),
        (INT_MAP, _number(2**62) + b"\2", "has 4,611,686,018,427,387,904 items"),
        (INT_MAP, _number(1) + _text(b"\xff") + b"\2\0", "UTF-8"),
        ("string", _number(2**62) + b"x", "4,611,686,018,427,387,904 bytes"),
        ("string", _number(-1) + b"x", "-1 bytes"),
        ("string", _text(b"\xff"), "UTF-8"),
        ("bytes", _number(5) + b"x", "5 bytes"),
        ("bytes", _number(-5), "-5 bytes"),
        ({**FIXED, "size": 8}, b"x", "8 bytes"),
        ("double", b"x", "8 bytes"),
        ("long", b"\xff", "0 are left"),
        (["null", "long"], _number(5) + b"\2", r"type 5.* 2"),
        (["null", "long"], _number(-1) + b"\2", r"type -1.* 2"),
        (["null", "long"], _number(-2), r"type -2.* 2"),
        (["null", ENUM], _number(-64), r"type -64.* 2"),
        (ENUM, _number(2**62), "symbol 4611686018427387904 of 2"),
        *(
            (kind, _number(branch) + bytes(9), f"of type {branch} of a union of 2")
            for kind in (["null", "long"], ["null", ENUM])
            for branch in (2, 62, 64, -1, -62, -63, -65, -66, -67, -128, -8192, -8193, -(2**31), -(2**63))
        ),
        *((ENUM, _number(symbol), f"symbol {symbol} of 2") for symbol in (2, -1, -2, -64, -65, -66, -(2**63))),
        *(
            (kind, number + bytes(9), "a number of more than 64 bits")
            for kind in ("long", "int", "string", "bytes", ["null", "long"], ENUM, INTS, INT_MAP)
            for number in (
                b"\x80" * 9 + b"\2",
                b"\xff" * 9 + b"\x7f",
                b"\x80" * 10 + b"\0",
                b"\x82" + b"\x80" * 9 + b"\2",
            )
        ),
        (INTS, _number(-(2**63)) + b"\2\0", "has 9,223,372,036,854,775,808 items"),
        (INT_MAP, _number(-(2**63)) + b"\2\0", "has 9,223,372,036,854,775,808 items"),
        ("int", _number(2**40), "type"),
        ({"type": "int", "logicalType": "date"}, _number(2**40), "type"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 5}, _text(bytes(33)), "type"),
    ],
)
def test_a_value_that_is_none_is_refused_by_record_and_field(kind: Any, value: bytes, fault: str) -> None:
    """Of the second record of the second block, in a record inside it."""
    schema = _record(n="long", r={"type": "record", "name": "inner", "fields": [{"name": "a", "type": kind}]})
    good = {"string": b"\0", "bytes": b"\0", "long": b"\0", "int": b"\0", "double": bytes(8)}
    fine = good.get(kind, b"\0") if isinstance(kind, str) else bytes(kind["size"]) if "size" in kind else b"\0"
    data = _container(schema, [(1, _number(1) + fine), (2, _number(1) + fine + _number(2) + value)])
    place = "record 3.*'r'" if fault == "type" else r"block 2, record 2, field 'r\.a'"
    with pytest.raises(InputError, match=rf"'t\.avro'.*{place}: .*{fault}"):
        _read(data)


def test_bytes_like_those_of_a_number_that_is_too_long_are_values() -> None:
    schema = _record(
        least="long",
        most=["null", "long"],
        text="string",
        bits="bytes",
        short="bytes",
        six={**FIXED, "size": 6},
        d="double",
    )
    row = {
        "least": -(2**63), "most": 2**63 - 1, "text": "\u65e5\u672c\u8a9e" * 9, "bits": b"\xff" * 99,
        "short": b"\xff", "six": b"\xff" * 6, "d": -1.5e300,
    }  # fmt: skip
    after = row | {"least": 2**63 - 1, "most": None}
    assert _read(_written(schema, [row, after, row])).to_pylist() == [row, after, row]


def test_numbers_may_have_more_bytes_than_they_need() -> None:
    data = _container(NUMBERS, [(2, b"\x82" + b"\x80" * 8 + b"\0" + b"\x84\x80\0")])
    assert _read(data).to_pylist() == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        (_record(a=[]), r"field 'a'.*union"),
        (_record(a={**FIXED}), "field 'a' has no 'size'"),
        (_record(a={"type": "array"}), "field 'a' has no 'items'"),
        (_record(a={"type": "map"}), "field 'a' has no 'values'"),
        (_record(a={"type": "enum", "name": "e", "symbols": []}), "symbols"),
        (_record(a={"type": "enum", "name": "e", "symbols": "AB"}), "symbols"),
        (_record(a={"type": "enum", "name": "e", "symbols": ["a b"]}), "'a b'"),
        (_record(a={"type": "enum", "name": "e", "symbols": ["a", "a"]}), "a symbol twice"),
        (_record(a=5), "field 'a' has no 'type'"),
        ({"type": "record", "name": "r", "fields": ["a"]}, "'name'"),
        ({"type": "record", "name": 5, "fields": []}, "name"),
        ({"type": "record", "name": "r", "fields": [{"name": "\ud800", "type": "int"}]}, "text"),
        (5, "'type'"),
        (_record(a={"type": "bytes", "logicalType": "decimal", "precision": 10**30}), "76"),
    ],
)
def test_a_schema_that_is_none_is_refused_in_plain_words(schema: Any, fault: str) -> None:
    with pytest.raises(InputError, match=rf"file 't\.avro': .*{fault}"):
        _read(_container(schema, [(1, b"\2")]))


@pytest.mark.parametrize("doublings", [15, 20, 30])
@pytest.mark.parametrize(
    "wrap", [lambda kind: kind, lambda kind: ["null", kind], lambda kind: {"type": "array", "items": kind}]
)
def test_records_named_twice_have_no_more_columns_than_a_file_may(doublings: int, wrap: Any) -> None:
    """A schema of a few kilobytes can have more columns than memory holds."""
    kind: Any = {"type": "record", "name": "e0", "fields": [{"name": "a", "type": "long"}]}
    for number in range(1, doublings):
        fields = [{"name": "a", "type": wrap(kind)}, {"name": "b", "type": wrap(f"e{number - 1}")}]
        kind = {"type": "record", "name": f"e{number}", "fields": fields}
    data = _container(_record(x=kind), [(1, bytes(9))])
    with pytest.raises(LimitError, match="10,000 columns"):
        _read(data)
    with pytest.raises(LimitError, match="100 columns"):
        _read(data, max_columns=100)


def test_names_that_lead_deeper_and_deeper_are_refused() -> None:
    fields: list[dict[str, Any]] = [
        {"name": "x0", "type": {"type": "record", "name": "e0", "fields": [{"name": "a", "type": "long"}]}}
    ]
    for number in range(1, 300):
        inner = {"type": "record", "name": f"e{number}", "fields": [{"name": "a", "type": f"e{number - 1}"}]}
        fields.append({"name": f"x{number}", "type": inner})
    with pytest.raises(SchemaError, match="100 levels"):
        _read(_container({"type": "record", "name": "top", "fields": fields}, []))


LONGS = b"".join(map(_number, range(5)))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "begin"),
        (b"Obj\x02", "begin"),
        (_container(NUMBERS, [(5, LONGS)])[:-1], "ends early"),
        (_container(NUMBERS, [(5, LONGS)])[:-17], "ends early"),
        (_container(NUMBERS, [(5, LONGS)]) + b"\x02", "ends early"),
        (_container(NUMBERS, [(5, LONGS)])[:-1] + b"x", "mark"),
        (_container(NUMBERS, [(6, LONGS)]), "of 6 records"),
        (_container(NUMBERS, [(4, LONGS)]), "4 records"),
        (_container(NUMBERS, [(2, b"\x80\x80")]), "damaged"),
        (_container(NUMBERS, [(10**12, LONGS)]), "records"),
        (_container(NUMBERS, [(-1, LONGS)]), "records"),
        (_container(_record(a="string"), [(1, _text(b"\xff"))]), "damaged"),
        (_container(_record(a="string"), [(1, _number(10**15) + b"x")]), "damaged"),
        (_container(_record(a=["null", "long"]), [(1, _number(5) + _number(1))]), "damaged"),
        (_container(NUMBERS, [], b"lz4"), "'lz4'"),
        (MAGIC + _number(0) + SYNC, "no schema"),
        (MAGIC + _number(10**9) + _number(10**12), "too large"),
        (MAGIC + b"\xff" * 20, "64 bits"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        _read(data, pa.schema([("a", pa.int64())]) if b"string" not in data else pa.schema([("a", pa.string())]))


@pytest.mark.parametrize(
    ("codec", "pack"),
    [
        (b"deflate", lambda data: zlib.compress(data)[2:-4]),
        (b"bzip2", __import__("bz2").compress),
        (b"xz", __import__("lzma").compress),
        (b"zstandard", lambda data: pa.compress(data, codec="zstd", asbytes=True)),
        (b"snappy", lambda data: pa.compress(data, codec="snappy", asbytes=True) + zlib.crc32(data).to_bytes(4, "big")),
    ],
)
def test_a_block_unpacks_to_a_limit(codec: bytes, pack: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_blocks, "MAX_BLOCK_BYTES", 5000)
    assert _read(_container(NUMBERS, [(5000, pack(bytes(5000)))], codec)).num_rows == 5000
    with pytest.raises(InputError, match=r"5,?00[01]"):
        _read(_container(NUMBERS, [(5001, pack(bytes(5001)))], codec))


def test_fastavro_is_not_loaded_for_other_formats() -> None:
    import subprocess
    import sys

    program = "import sys, dolmen.ingest.formats.formats; print('fastavro' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout == b"False\n"
