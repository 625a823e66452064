# ruff: noqa: E501
"""Times that are not written as ISO 8601: numbers since the epoch, and patterns."""

from __future__ import annotations

import datetime as dt
import io
import os
import random
from typing import Any

import pyarrow as pa
import pytest

from dolmen.errors import InputError, RowError
from dolmen.format.dialect import Dialect
from dolmen.ingest.formats.cells import TimeFormat
from dolmen.ingest.formats.formats import ReadOptions, SourceFile, detect, infer, read
from dolmen.rows.write.casts import Misfit

UTC = dt.UTC
MOMENT = dt.datetime(2023, 11, 14, 22, 13, 20)
NAIVE, ZONED, DATE, TIME = pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.date32(), pa.time64("us")


def _options(format: str) -> ReadOptions:
    return ReadOptions(Dialect(timestamp_formats=() if format == "iso" else tuple(format.split(" or "))))


def _values(name: str, cells: list[str], target: pa.DataType, format: str, block_bytes: int = 1 << 20) -> list[Any]:
    if name == "t.csv":
        data = "n,c\n" + "".join(f'1,"{cell}"\n' for cell in cells)
    elif name == "nested.jsonl":
        data = "".join(f'{{"n": 1, "c": {{"x": {cell}, "y": ["z"]}}}}\n' for cell in cells)
        target = pa.struct([("x", target), ("y", pa.list_(pa.string()))])
    else:
        data = "".join(f'{{"n": 1, "c": {cell}}}\n' for cell in cells)
    schema = pa.schema([("n", pa.int64()), ("c", target)])
    options = _options(format)
    table = read(
        SourceFile(lambda: io.BytesIO(data.encode()), detect(name), name, options, block_bytes=block_bytes), schema
    ).read_all()
    values: list[Any] = table["c"].to_pylist()
    return [value["x"] for value in values] if name == "nested.jsonl" else values


NAMES = ["t.csv", "t.jsonl", "nested.jsonl"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("format", "cells", "target", "values"),
    [
        ("epoch_s", ["1700000000", "-1", "0"], NAIVE, [MOMENT, dt.datetime(1969, 12, 31, 23, 59, 59), dt.datetime(1970, 1, 1)]),
        ("epoch_s", ["1700000000.123456", "1.7e9", "1700000000.5"], ZONED,
         [MOMENT.replace(microsecond=123456, tzinfo=UTC), MOMENT.replace(tzinfo=UTC), MOMENT.replace(microsecond=500000, tzinfo=UTC)]),
        ("epoch_ms", ["1700000000123", "1700000000123.456"], NAIVE, [MOMENT.replace(microsecond=123000), MOMENT.replace(microsecond=123456)]),
        ("epoch_us", ["1700000000000001"], ZONED, [MOMENT.replace(microsecond=1, tzinfo=UTC)]),
        ("epoch_us", ["-62135596800000000", "253402300799999999"], NAIVE, [dt.datetime.min, dt.datetime.max]),
        ("epoch_ms", ["19000", "-719162", "0"], DATE, [dt.date(2022, 1, 8), dt.date.min, dt.date(1970, 1, 1)]),
        ("epoch_ms", ["1", "86399999"], TIME, [dt.time(0, 0, 0, 1000), dt.time(23, 59, 59, 999000)]),
        ("epoch_s", ["45296.5"], TIME, [dt.time(12, 34, 56, 500000)]),
    ],
    ids=str,
)  # fmt: skip
def test_numbers_are_times_since_the_epoch(
    name: str, format: str, cells: list[str], target: pa.DataType, values: list[Any]
) -> None:
    assert _values(name, cells, target, format) == values
    assert _values(name, cells, target, format, block_bytes=1) == values


@pytest.mark.parametrize("name", NAMES)
def test_iso_times_are_understood_beside_numbers(name: str) -> None:
    """As Debezium writes them: numbers in columns without a zone, text in columns with one."""
    quote = "" if name == "t.csv" else '"'
    cells = ["1700000000000", f"{quote}2023-11-14T22:13:20Z{quote}", f"{quote}1700000000000{quote}"]
    for block_bytes in (1 << 20, 1):
        assert _values(name, cells, ZONED, "epoch_ms", block_bytes) == [MOMENT.replace(tzinfo=UTC)] * 3
    days = ["19000", f"{quote}2022-01-08{quote}"]
    assert _values(name, days, DATE, "epoch_ms") == [dt.date(2022, 1, 8)] * 2


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("format", "cell", "target", "reason"),
    [
        ("epoch_s", "1700000000.1234567", NAIVE, "without loss|not a valid"),
        ("epoch_us", "1.5", NAIVE, "without loss"),
        ("epoch_s", "1700000000000", NAIVE, r"1 to 9999.* unit"),
        ("epoch_us", "99999999999999999999", NAIVE, "not a valid|another unit"),
        ("epoch_ms", "1.5", DATE, "without loss"),
        ("epoch_ms", "2932897", DATE, "years 1 to 9999"),
        ("epoch_ms", "86400000", TIME, "day"),
        ("epoch_ms", "-1", TIME, "day"),
        ("epoch_ms", "true", NAIVE, "not a valid"),
        ("epoch_ms", '"today"', NAIVE, "epoch_ms"),
    ],
)  # fmt: skip
def test_numbers_that_are_no_times_are_refused(
    name: str, format: str, cell: str, target: pa.DataType, reason: str
) -> None:
    good = "0" if target != TIME else "5"
    if name == "t.csv":
        cell = cell.strip('"')
    if name == "nested.jsonl":
        reason = "."  # the words are the parser's
    for block_bytes in (1 << 20, 1):
        with pytest.raises(RowError, match=reason) as caught:
            _values(name, [good, cell], target, format, block_bytes)
        assert (caught.value.row, caught.value.column) == (2, "c")


@pytest.mark.parametrize(
    ("format", "text", "target", "value"),
    [
        ("%d/%m/%Y %H:%M:%S", "14/11/2023 22:13:20", NAIVE, MOMENT),
        ("%d/%m/%Y %H:%M:%S", "14/11/2023   22:13:20", ZONED, MOMENT.replace(tzinfo=UTC)),
        ("%m/%d/%y %I:%M %p", "1/2/69 12:05 am", NAIVE, dt.datetime(1969, 1, 2, 0, 5)),
        ("%m/%d/%y %I:%M %p", "1/2/68 1:05 PM", NAIVE, dt.datetime(2068, 1, 2, 13, 5)),
        ("%Y%m%dT%H%M%S.%f", "20231114T221320.5", NAIVE, MOMENT.replace(microsecond=500000)),
        ("%d-%b-%Y %H:%M", "14-NOV-2023 22:13", NAIVE, MOMENT.replace(second=0)),
        ("%B %d, %Y %H:%M:%S %z", "november 14, 2023 22:13:20 +0130", ZONED, (MOMENT - dt.timedelta(minutes=90)).replace(tzinfo=UTC)),
        ("[%Y.%m.%d] 100%% %H:%M", "[2023.11.14] 100% 22:13", NAIVE, MOMENT.replace(second=0)),
        ("%d.%m.%Y", "14.11.2023", DATE, MOMENT.date()),
        ("%d.%m.%Y", "14.11.2023", NAIVE, dt.datetime(2023, 11, 14)),
        ("%d.%m.%Y", "14.11.2023", ZONED, dt.datetime(2023, 11, 14, tzinfo=UTC)),
        ("%d.%m.%Y", "10:30", TIME, dt.time(10, 30)),
        ("%I:%M %p", "1:05 pm", TIME, dt.time(13, 5)),
        ("%I:%M %p", "2023-11-14T22:13:20", NAIVE, MOMENT),
        ("%d/%m/%Y %H:%M:%S", "2023-11-14", DATE, MOMENT.date()),
        ("%d/%m/%Y %H:%M:%S", "2023-11-14 22:13:20", NAIVE, MOMENT),
        ("%d/%m/%Y %H:%M:%S", "", NAIVE, None),
    ],
)  # fmt: skip
def test_a_pattern_says_how_times_are_written(format: str, text: str, target: pa.DataType, value: Any) -> None:
    assert _values("t.csv", [text, text], target, format) == [value, value]
    quoted = f'"{text}"' if text else "null"
    assert _values("t.jsonl", [quoted], target, format) == [value]
    assert _values("nested.jsonl", [quoted, "null"], target, format) == [value, None]


@pytest.mark.parametrize(
    ("format", "text", "target"),
    [
        ("%d/%m/%Y %H:%M:%S", "30/02/2023 00:00:00", NAIVE),
        ("%d/%m/%Y %H:%M:%S", "14/11/2023 24:00:00", NAIVE),
        ("%d/%m/%Y %H:%M:%S", "14/11/2023 22:13", NAIVE),
        ("%d/%m/%Y %H:%M:%S", "14/11/2023 22:13:20 ", DATE),
        ("%d/%m/%Y %H:%M:%S", "2023-11-14T22:13:20", ZONED),
        ("%d/%m/%Y %H:%M:%S", "1700000000", NAIVE),
        ("%Y-%m-%d %H:%M %z", "2023-11-14 22:13 Z", NAIVE),
        ("%I:%M %p", "13:05 PM", TIME),
        ("%d.%m.%Y", "14x11x2023", DATE),
        ("%d.%m.%Y", "14.11.2023\n", pa.int64()),
    ],
)  # fmt: skip
def test_text_that_does_not_match_the_pattern_is_refused(format: str, text: str, target: pa.DataType) -> None:
    with pytest.raises(RowError) as caught:
        _values("t.csv", ["", text], target, format)
    assert (caught.value.row, caught.value.column) == (2, "c")


@pytest.mark.parametrize(
    "format",
    ["", "today", "%", "%Q", "%Y", "%Y-%m", "%d %Y-%m-%d", "%H", "%I:%M", "%H:%M %p", "%H:%M.%f", "%Y-%m-%d %H",
     "%Y-%m-%d %H:%M %I", "%m-%b-%Y %d", "%H:%M %z", "%y %Y-%m-%d", "%S", "epoch_ns"],
)  # fmt: skip
def test_a_format_that_says_no_time_is_refused(format: str) -> None:
    with pytest.raises(InputError, match="time format"):
        TimeFormat.of((format,))


def test_iso_alone_is_no_format() -> None:
    assert TimeFormat.of(()) is None
    assert TimeFormat.of(Dialect.of({"ingest_timestamp_format": "iso"}).timestamp_formats) is None


@pytest.mark.slow
@pytest.mark.parametrize("format", ["%Y/%m/%d %H:%M:%S.%f", "%d.%m.%y %I:%M:%S %p", "%b %d %Y %H:%M:%S %z", "%d %B %Y"])
def test_random_times_are_read_as_the_standard_library_reads_them(format: str) -> None:
    seed = int(os.environ.get("DOLMEN_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"DOLMEN_TEST_SEED={seed}")
    chance = random.Random(seed)
    moments = [dt.datetime(1970, 1, 1, tzinfo=UTC) + dt.timedelta(microseconds=chance.randrange(2 * 10**15)) for _ in range(500)]  # fmt: skip
    cells = [moment.strftime(format) for moment in moments]
    expected = [dt.datetime.strptime(cell, format).replace(tzinfo=UTC) for cell in cells]
    assert _values("t.csv", cells, ZONED, format) == expected
    assert _values("t.jsonl", [f'"{cell}"' for cell in cells], ZONED, format, 100) == expected


def _inferred(name: str, cells: list[str], format: str) -> pa.DataType:
    csv = name == "t.csv"
    data = "c\n" + "\n".join(cells) if csv else "\n".join(f'{{"c": "{cell}"}}' for cell in cells)
    kinds = {
        infer(
            SourceFile(
                lambda: io.BytesIO(data.encode()),
                detect(name),
                name,
                _options(format),
                block_bytes=block_bytes,
            )
        )
        .field("c")
        .type
        for block_bytes in (1, 20, 1 << 20)
    }
    (kind,) = kinds
    read(
        SourceFile(lambda: io.BytesIO(data.encode()), detect(name), name, _options(format)),
        pa.schema([("c", kind)]),
    ).read_all()
    return kind


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_a_pattern_counts_for_inferred_types_and_a_unit_does_not(name: str) -> None:
    day, moment, iso = "14.11.2023", "14.11.2023 22:13:20", "2023-11-14T22:13:20"
    timed, zoned = "%d.%m.%Y %H:%M:%S", "%d.%m.%Y %H:%M:%S %z"
    assert _inferred(name, [moment, iso], timed) == NAIVE
    assert _inferred(name, [moment, "2023-11-14"], timed) == NAIVE
    assert _inferred(name, [moment, f"{iso}Z"], timed) == pa.string()
    assert _inferred(name, [f"{moment} Z", f"{iso}+01:00"], zoned) == ZONED
    assert _inferred(name, [f"{moment} Z", iso], zoned) == pa.string()
    assert _inferred(name, [day, "2023-11-14"], "%d.%m.%Y") == DATE
    assert _inferred(name, [day, iso], "%d.%m.%Y") == NAIVE
    assert _inferred(name, [day, "x"], "%d.%m.%Y") == pa.string()
    if name == "t.csv":
        assert _inferred(name, ["1700000000", "1"], "epoch_s") == pa.int64()


@pytest.mark.parametrize("format", ["epoch_s", "epoch_ms", "epoch_us", "%Y%m%d", "%d%m%Y %H:%M", "%d.%m%Y"])
@pytest.mark.parametrize("cell", ["+4915112345", "01099", "20231114", "1700000000", "19000.5", "1e9"])
@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_text_that_is_a_number_is_never_inferred_to_be_a_time(name: str, cell: str, format: str) -> None:
    kind = _inferred(name, [cell], format)
    assert not pa.types.is_temporal(kind)
    assert name == "t.csv" or kind == pa.string()


@pytest.mark.parametrize(
    ("format", "cell"),
    [
        ("%Y%m%dT%H%M", "2023115T0900"),
        ("%Y%m%dT%H%M", "20231105T900"),
        ("on %y%m%d", "on 23115"),
        ("%Y/%m5%d", "2023/151"),
    ],
)
def test_numbers_of_a_pattern_that_touch_digits_have_two_digits_all(format: str, cell: str) -> None:
    with pytest.raises(RowError):
        _values("t.csv", [cell], NAIVE, format)
    assert _inferred("t.csv", [cell], format) == pa.string()


SEVERAL = "%d/%m/%Y or %d/%m/%Y %H:%M or %b %d, %Y or %m/%d/%Y"


@pytest.mark.parametrize("name", NAMES)
def test_of_several_patterns_the_first_that_matches_is_taken(name: str) -> None:
    cells = ["1/2/2023", "14/11/2023 22:13", "Nov 14, 2023", "2023-11-14T22:13:20", "2023-11-14"]
    written = [f'"{cell}"' for cell in cells] if name != "t.csv" else cells
    day, night = dt.datetime(2023, 11, 14), MOMENT.replace(second=0)
    for block_bytes in (1 << 20, 1):
        values = _values(name, written, NAIVE, SEVERAL, block_bytes)
        assert values == [dt.datetime(2023, 2, 1), night, day, MOMENT, day]
        zoned = _values(name, written[:3], ZONED, SEVERAL, block_bytes)
        assert zoned == [value.replace(tzinfo=UTC) for value in values[:3]]
        days = _values(name, [written[0], written[2], written[4]], DATE, SEVERAL, block_bytes)
        assert days == [dt.date(2023, 2, 1), day.date(), day.date()]


@pytest.mark.parametrize("name", NAMES)
def test_no_later_pattern_reads_what_the_first_refuses(name: str) -> None:
    cell = "02/28/2023" if name == "t.csv" else '"02/28/2023"'
    for block_bytes in (1 << 20, 1):
        with pytest.raises(RowError):
            _values(name, [cell], DATE, SEVERAL, block_bytes)


def test_several_patterns_count_for_inferred_types() -> None:
    for name in ("t.csv", "t.jsonl"):
        assert _inferred(name, ["1/2/2023", "2023-11-14"], SEVERAL) == DATE
        assert _inferred(name, ["1/2/2023", "1/2/2023 10:00"], SEVERAL) == NAIVE
        assert _inferred(name, ["1/2/2023", "x"], SEVERAL) == pa.string()
        zoned = "%d/%m/%Y %H:%M or %d/%m/%Y %H:%M %z"
        assert _inferred(name, ["1/2/2023 10:00 Z", "2023-11-14T10:00:00+01:00"], zoned) == ZONED
        assert _inferred(name, ["1/2/2023 10:00 Z", "1/2/2023 10:00"], zoned) == pa.string()


ALIGNED = [
    "%d/%m/%Y",
    "%y%m%d",
    "%m.%d.%y %H:%M",
    "[%Y.%m.%d] 100%% %H:%M:%S",
    "%H:%M:%S.%f %d/%m/%Y",
    "%H-%M",
    "%S:%M:%H",
]


@pytest.mark.slow
@pytest.mark.parametrize("format", ALIGNED)
def test_times_of_one_width_are_read_as_one_by_one(format: str) -> None:
    """Many at once, with their digits in the same columns; or else field by field, as few are."""
    seed = int(os.environ.get("DOLMEN_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"DOLMEN_TEST_SEED={seed}")
    rng = random.Random(seed)
    targets = [NAIVE, ZONED] if "%d" in format else [TIME]
    targets += [DATE] if "%d" in format and "%H" not in format else []
    for target in targets:
        for odd in (None, "", "shift", "31"):
            cells = [
                dt.datetime(
                    rng.randint(1970, 2068),
                    rng.randint(1, 12),
                    rng.randint(1, 28),
                    rng.randint(0, 23),
                    rng.randint(0, 59),
                    rng.randint(0, 59),
                ).strftime(format)
                for _ in range(200)
            ]
            if odd is not None:
                cell = cells[77]
                cells[77] = odd and (
                    cell.replace("/0", "/", 1).replace(" ", "  ", 1) if odd == "shift" else odd + cell[2:]
                )
            each = [_one(cell, target, format) for cell in cells]
            bad = [row for row, value in enumerate(each, 1) if value == "bad"]
            if bad:
                with pytest.raises(RowError) as caught:
                    _values("t.csv", cells, target, format)
                assert caught.value.row == bad[0]
            else:
                assert _values("t.csv", cells, target, format) == each


def _one(cell: str, target: pa.DataType, format: str) -> Any:
    times = TimeFormat.of((format,))
    assert times is not None
    parse = times.parser(target)
    assert parse is not None
    try:
        return parse(pa.array([cell or None], pa.string()))[0].as_py()
    except Misfit:
        return "bad"
