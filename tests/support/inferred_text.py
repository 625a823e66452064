"""Files of random columns of text, and what their values must give back once their types were inferred."""

from __future__ import annotations

import bz2
import datetime as dt
import gzip
import io
import json
import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

import fastavro
import pyarrow as pa
from pyarrow import ipc, parquet
from pyarrow import types as t

Text = str | None

PATTERNS = ("%d/%m/%Y", "%Y%m%d", "%d.%m.%y %H:%M", "%b %d, %Y %I:%M %p", "%Y/%m/%dT%H%M%S", "%d.%m.%Y %H:%M:%S %z")
TIME_FORMATS = (None, "epoch_s", "epoch_ms", "epoch_us", *PATTERNS)
NULLS = (("",), ("", "N/A", "\\N"), ("", "0", "-"))
COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda data: bytes(pa.compress(data, "zstd", asbytes=True)),
}
_SECONDS = ("", ":00", ":59", ":59.5", ":07.123456", ":07.123456000", ":07.1234567", ":60")
_ZONES = ("", "", "Z", "+02:00", "-0530", "+14", "-00:00", " Z", "z", "+25:00")


def _integer(chance: random.Random) -> str:
    return str(chance.choice([0, 1, -1]) * chance.randrange(10 ** chance.randint(1, 40)))


def _float(chance: random.Random) -> str:
    number = chance.choice([chance.uniform(-100, 100), chance.uniform(-1, 1) * 10.0 ** chance.randint(-320, 300)])
    return chance.choice([repr, "{:.17g}".format, "{:.20f}".format, "{:.15e}".format, "{:.3E}".format])(number)


def _amount(chance: random.Random) -> str:
    return f"{chance.uniform(-1000, 1000):.2f}"


def _version(chance: random.Random) -> str:
    return f"{chance.randint(0, 3)}.{chance.randint(0, 20)}"


def _code(chance: random.Random) -> str:
    digits = "".join(chance.choices("0123456789", k=chance.randint(1, 20)))
    return chance.choice(["0", "00", "+", "+49", "-0", "", "0x", " ", "1_", "\u0663", "1e", "."]) + digits


def _day(chance: random.Random) -> dt.date:
    return dt.date.fromordinal(chance.choice([1, dt.date.max.toordinal(), chance.randint(1, dt.date.max.toordinal())]))


def _date(chance: random.Random) -> str:
    day = _day(chance)
    forms = [day.isoformat(), day.strftime("%Y%m%d"), f"{day.year}-{day.month}-{day.day}", f"1{day.isoformat()}"]
    return chance.choices([*forms, "0000-01-01", "2025-02-30", "-0001-01-01"], [20, 1, 1, 1, 1, 1, 1])[0]


def _timestamp(chance: random.Random) -> str:
    time = f"{chance.randint(0, 24):02}:{chance.randint(0, 59):02}{chance.choice(_SECONDS)}"
    return f"{_day(chance)}{chance.choice('TT -t')}{time}{chance.choice(_ZONES)}"


def _plain_timestamp(chance: random.Random, zones: Sequence[str]) -> str:
    time = f"{chance.randint(0, 23):02}:{chance.randint(0, 59):02}{chance.choice(_SECONDS[:6])}"
    return f"{_day(chance)}{chance.choice('T ')}{time}{chance.choice(zones)}"


def _patterned(chance: random.Random, pattern: str) -> str:
    moment = dt.datetime.combine(_day(chance), dt.time(chance.randint(0, 23), chance.randint(0, 59)), dt.UTC)
    return moment.strftime(pattern)


_WORDS = [
    "true",
    "TRUE",
    "False",
    "1",
    "0",
    "yes",
    "T",
    "nan",
    "NaN",
    "-nan",
    "inf",
    "-Infinity",
    "+inf",
    "null",
    "None",
]
_ODD = [
    "",
    " ",
    "-",
    ".",
    "+",
    "-0",
    "-0.0",
    "1.",
    ".5",
    "1e5",
    "1E400",
    "1e-400",
    "0e0",
    "1.10",
    "N/A",
    "\\N",
    'a"b,c\n',
]
_ODD += [
    "12:30",
    "P1D",
    "50%",
    "$3",
    "1,5",
    "9007199254740993",
    "9223372036854775808",
    "\ufeff1",
    "\u00a01",
    "aGk=",
    "0b1",
]

FAMILIES: tuple[Callable[[random.Random], str], ...] = (
    _integer,
    _float,
    _amount,
    _version,
    _code,
    _date,
    _timestamp,
    partial(_plain_timestamp, zones=[""]),
    partial(_plain_timestamp, zones=["Z", "+02:00", "-0530"]),
    *(partial(_patterned, pattern=pattern) for pattern in PATTERNS),
    lambda chance: chance.choice(["true", "False"]),
    lambda chance: chance.choice(_WORDS),
    lambda chance: chance.choice(_ODD),
    lambda chance: str(chance.randrange(10**8)).zfill(8),
    lambda chance: "".join(chance.choices("0123456789ABCDEF", k=8)) + "-4915-1123-45AB-0123456789AB",
)
JSON_NUMBERS = [
    "0",
    "-0",
    "1",
    "-7",
    "1.50",
    "2.25",
    "1e5",
    "1E400",
    "1e-400",
    "0.1234567890123456789",
    "9007199254740993",
]
JSON_NUMBERS += [
    "9223372036854775808",
    "123456789012345678901234567890",
    "0.30000000000000004",
    "-0.0",
    "1e22",
    "4.5e-310",
]


@dataclass(frozen=True)
class TextColumn:
    """One column of a file.

    Args:
        values: its texts, None for NULL; of JSON, the text of a number in a string if it is in ``numbers``.
        numbers: whether they are written without quotes (JSON).
    """

    values: Sequence[Text]
    numbers: bool = False


def random_columns(chance: random.Random, count: int, rows: int, *, json_numbers: bool) -> dict[str, TextColumn]:
    """Columns of few families of text each, with NULLs now and then."""
    made: dict[str, TextColumn] = {}
    for place in range(count):
        numbers = json_numbers and chance.random() < 0.3
        families = chance.choices(FAMILIES, k=chance.choices([1, 2, 3], [6, 2, 1])[0])
        few = [
            chance.choice(JSON_NUMBERS) if numbers else chance.choice(families)(chance)
            for _ in range(chance.randint(1, rows))
        ]
        empty = chance.choice([0, 0, 0.3])
        values = [None if chance.random() < empty else chance.choice(few) for _ in range(rows)]
        made[f"c{place}"] = TextColumn(values, numbers)
    return made


def as_delimited(chance: random.Random, columns: dict[str, TextColumn], delimiter: str, nulls: Sequence[str]) -> str:
    """The columns as CSV, with an ``id`` that counts from 1."""

    def cell(value: Text) -> str:
        if value is None:
            return chance.choice(nulls) if chance.random() < 0.5 else nulls[0]
        if value in nulls or re.search(rf'["\r\n{delimiter}]', value) or chance.random() < 0.1:
            return '"' + value.replace('"', '""') + '"'
        return value

    rows = zip(*(column.values for column in columns.values()), strict=True)
    lines = [delimiter.join([str(place), *map(cell, row)]) for place, row in enumerate(rows, 1)]
    return "\n".join([delimiter.join(["id", *columns]), *lines]) + "\n"


def as_json_lines(columns: dict[str, TextColumn], **more: str) -> str:
    """The columns as JSON lines, with an ``id`` that counts from 1, and more members in each line."""
    lines = []
    for place in range(len(next(iter(columns.values())).values)):
        members = [f'"id":{place + 1}', *(f'"{name}":{value}' for name, value in more.items())]
        for name, column in columns.items():
            value = column.values[place]
            members.append(f'"{name}":{value if column.numbers and value is not None else json.dumps(value)}')
        lines.append("{" + ",".join(members) + "}\n")
    return "".join(lines)


def as_typed(columns: dict[str, TextColumn], kind: str) -> bytes:
    """The columns as a file that has types: all text."""
    data = io.BytesIO()
    rows = len(next(iter(columns.values())).values)
    made = {"id": pa.array(range(1, rows + 1)), **{n: pa.array(c.values, pa.string()) for n, c in columns.items()}}
    table = pa.table(made)
    if kind == "parquet":
        parquet.write_table(table, data)
    elif kind == "arrow":
        with ipc.new_file(data, table.schema) as writer:
            writer.write_table(table)
    else:
        fields: list[Any] = [{"name": name, "type": ["null", "string"]} for name in columns]
        schema = {"type": "record", "name": "row", "fields": [{"name": "id", "type": "long"}, *fields]}
        fastavro.writer(data, fastavro.parse_schema(schema), table.to_pylist())
    return data.getvalue()


def check_column(
    column: TextColumn,
    found: pa.ChunkedArray,
    time_format: str | Sequence[str] | None,
    *,
    cells: bool,
    nulls: Sequence[str] = (),
) -> None:
    """Raises AssertionError unless values give back the texts of their column, up to notation.

    Args:
        cells: whether these were cells of CSV, around which spaces and quotes do not count.
        nulls: texts that inference found to be NULL, unless they are in quotes.
    """
    kind = found.type
    values = found.to_pylist()
    for text, value in zip(column.values, values, strict=True):
        told = f"{text!r} is {value!r} of {kind} among {column.values}"
        is_null = text is None or (cells and not text.strip()) or text.strip() in nulls
        if text is None or (is_null and not t.is_string(kind)):
            assert value is None, told
        elif t.is_string(kind):
            is_unquoted_null = value is None and bool(text) and text in nulls  # which another column needs
            assert is_unquoted_null or value == text, told
        else:
            trimmed = text.strip(" \t\r\n") if cells else text
            assert value is not None, told
            assert cells or column.numbers or t.is_temporal(kind), told
            assert _gives_back(trimmed, value, kind, time_format), told
    if t.is_floating(kind) and cells:
        mantissas = [
            text.strip().lower().partition("e")[0] for text in column.values if text and re.search("[0-9]", text)
        ]
        places = {len(mantissa.partition(".")[2]) for mantissa in mantissas}
        padded = any(re.search(r"\.[0-9]+0$", mantissa) for mantissa in mantissas)
        assert not padded or len(places) == 1, f"{column.values} are of different precision, and would be {values}"


def _gives_back(text: str, value: Any, kind: pa.DataType, time_format: str | Sequence[str] | None) -> bool:
    if t.is_boolean(kind):
        return text.lower() == str(value).lower()
    if t.is_integer(kind) or t.is_decimal(kind):
        return text == str(value)
    if t.is_floating(kind):
        return _gives_back_float(text, value)
    if re.fullmatch(r"[+-]?[0-9.]+([eE][+-]?[0-9]+)?", text):
        return False  # a number is no time
    for pattern in [time_format] if isinstance(time_format, str) else time_format or ():
        try:
            moment = dt.datetime.strptime(text, pattern)
        except ValueError:
            continue
        if pattern.endswith(("z", "UTC", "GMT")) and not pattern.endswith("%z"):
            moment = moment.replace(tzinfo=dt.UTC)
        whole = dt.datetime.combine(value, dt.time()) if t.is_date(kind) else value
        return bool(moment == whole)
    if t.is_date(kind):
        return text == value.isoformat()
    form = (
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6}0*)?)?(Z|[+-][0-9]{2}(:?[0-9]{2})?)?)?"
    )
    plain = re.sub(r"(\.[0-9]{6})0+", r"\1", text)
    return bool(re.fullmatch(form, text)) and dt.datetime.fromisoformat(plain) == value


def _gives_back_float(text: str, value: float) -> bool:
    if not math.isfinite(value):
        name = "nan" if math.isnan(value) else repr(value)
        return text.lower().replace("infinity", "inf") == name
    if not re.fullmatch(r"-?(0|[1-9][0-9]*)?(\.[0-9]+)?([eE][+-]?[0-9]+)?", text):
        return False
    return Decimal(text) == Decimal(repr(value)) and text.startswith("-") == (math.copysign(1, value) < 0)
