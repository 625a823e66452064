"""Whole columns prove how values are written; what they do not prove stays text."""

from __future__ import annotations

import csv
import datetime as dt
import io
import os
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dolmen.format.dialect import STRICT, Dialect
from dolmen.ingest.formats.formats import ReadOptions, SourceFile, detect, infer, read
from dolmen.ingest.inference.column_evidence import ColumnEvidence
from dolmen.ingest.inference.value_decision import Values, decide

NAIVE, ZONED, TIME, DATE = pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.time64("us"), pa.date32()
NBSP = "\N{NO-BREAK SPACE}"


def _decide(
    columns: dict[str, list[str]], rows: int = 1 << 20, dialect: Dialect = STRICT, given: dict[str, Any] | None = None
) -> Values:
    evidence = {}
    for name, cells in columns.items():
        evidence[name] = ColumnEvidence(dialect)
        array = pa.array([cell or None for cell in cells], pa.string())
        for start in range(0, len(array), rows):
            evidence[name].observe(array[start : start + rows])
    return decide(evidence, dialect, given or {})


def _everywhere(columns: dict[str, list[str]], **options: Any) -> Values:
    """What is decided, in whatever order the cells come and in whatever blocks."""
    values = _decide(columns, **options)
    backwards = {name: cells[::-1] for name, cells in columns.items()}
    for other in (_decide(columns, 1, **options), _decide(backwards, **options), _decide(backwards, 2, **options)):
        assert (other.schema, other.dialect, other.notes) == (values.schema, values.dialect, values.notes)
    return values


def _types(values: Values) -> list[pa.DataType]:
    return list(values.schema.types)


TEXT, INT, DOUBLE = pa.string(), pa.int64(), pa.float64()

NUMBERS = [
    ([["1,5", "2,25"]], ",", None, [DOUBLE]),
    ([["0,123"]], ",", None, [DOUBLE]),
    ([["1,5e3", "-2"]], ",", None, [DOUBLE]),
    ([["1.234,5", "7"]], ",", ".", [DOUBLE]),
    ([["-1,234.50", "99.00"]], ".", ",", [DOUBLE]),
    ([["1,234,567"]], ".", ",", [INT]),
    ([["1.234.567", "999"]], ",", ".", [INT]),
    ([["1 234", "56"]], ".", " ", [INT]),
    ([[f"1{NBSP}234,5", "12,3"]], ",", NBSP, [DOUBLE]),
    ([["1'234.5"]], ".", "'", [DOUBLE]),
    ([["1,234"], ["1,5"]], ",", None, [DOUBLE, DOUBLE]),
    ([["1,234"], ["1.5"]], ".", ",", [INT, DOUBLE]),
    ([["1.234"], ["1.234,5"], ["2,5"]], ",", ".", [INT, DOUBLE, DOUBLE]),
    ([["12"], ["1,5"], ["x"]], ",", None, [INT, DOUBLE, TEXT]),
]


@pytest.mark.parametrize(("columns", "decimal", "thousands", "types"), NUMBERS, ids=str)
def test_columns_prove_the_decimal_mark_and_the_separator_of_groups(
    columns: list[list[str]], decimal: str, thousands: str | None, types: list[pa.DataType]
) -> None:
    values = _everywhere({f"c{number}": cells for number, cells in enumerate(columns)})
    assert (values.dialect.decimal, values.dialect.thousands) == (decimal, thousands)
    assert _types(values) == types
    assert values.notes == ()


PLAIN_TEXT = [
    ["1,234"],
    ["1,234", "1234"],
    ["1,50", "1,5"],
    ["1.234.567"],
    ["601 234 567", "602 111 222"],
    ["110 001", "560 002"],
    ["192.168.100.100", "10.100.200.200"],
    ["1.2.3", "1.10"],
    ["101,102", "205"],
    ["1,2,3"],
    ["1,5", "1.5"],
    ["1.234,5", "1,234.5"],
    ["1,23,456"],
    ["+49,5"],
    ["007", "1,5"],
    ["yes"],
    ["yes", "n"],
    ["t", "f", "true"],
    ["y", "n", "?"],
    ["1/2/2025", "12/11/2025"],
    ["05.06.2025"],
    ["31/04/2025", "13/01/2025"],
    ["13/01/2025", "01/13/2025"],
    ["13/01/2025", "2025-01-13"],
    ["13/01/2025", "13.01.2025"],
    ["13/01/2025", "13/01/2025 10:00"],
    ["13/05/24", "14/05/24"],
    ["2025.1.2"],
    ["Jan 5, 2025", "January 6, 2025"],
    ["Sept 5, 2025"],
    ["10:30", "12:60"],
    ["9:05"],
    ["24:00"],
    ["13:05 PM"],
    ["2025-01-05T10:00:00Z", "2025-01-05T10:00:00"],
    ["2025-01-31 10:00:00 UTC", "2025-01-31 10:00:00 GMT"],
]


@pytest.mark.parametrize("cells", PLAIN_TEXT, ids=str)
def test_what_a_column_does_not_prove_stays_text(cells: list[str]) -> None:
    values = _everywhere({"c": cells})
    assert (_types(values), values.dialect) == ([TEXT], STRICT)


TIMES = [
    (["31/12/2025", "1/2/2025"], "%d/%m/%Y", DATE),
    (["12-31-2025"], "%m-%d-%Y", DATE),
    (["13.01.2025 9:15"], "%d.%m.%Y %H:%M", NAIVE),
    (["2025/01/05", "2025/1/6"], "%Y/%m/%d", DATE),
    (["2025-1-5", "2025-10-15"], "%Y-%m-%d", DATE),
    (["2025.01.05"], "%Y.%m.%d", DATE),
    (["13/05/99"], "%d/%m/%y", DATE),
    (["05/13/24"], "%m/%d/%y", DATE),
    (["99-01-02"], "%y-%m-%d", DATE),
    (["13-JAN-24"], "%d-%b-%y", DATE),
    (["May 5, 2025", "Jan 31, 2025"], "%b %d, %Y", DATE),
    (["January 5, 2025 3:04 PM", "May 15, 2025 12:00 am"], "%B %d, %Y %I:%M %p", NAIVE),
    (["10/Oct/2000:13:55:36 -0700"], "%d/%b/%Y:%H:%M:%S %z", ZONED),
    (["2025-01-05 10:00:00 UTC"], "%Y-%m-%d %H:%M:%S UTC", ZONED),
    (["20250131T101500Z"], "%Y%m%dT%H%M%S%z", ZONED),
    (["31/01/2025 10:15:30.123"], "%d/%m/%Y %H:%M:%S.%f", NAIVE),
    (["1:05 PM", "11:00 am"], "%I:%M %p", TIME),
    (["10:30", "23:59:59.5"], None, TIME),
    (["20250131"], None, INT),
]


@pytest.mark.parametrize(("cells", "pattern", "kind"), TIMES, ids=str)
def test_a_column_proves_how_its_times_are_written(cells: list[str], pattern: str | None, kind: pa.DataType) -> None:
    values = _everywhere({"c": cells, "n": ["1"] * len(cells)})
    assert values.dialect.timestamp_formats == ((pattern,) if pattern else ())
    assert _types(values) == [kind, INT]


def test_columns_of_contradicting_patterns_stay_text_and_say_why() -> None:
    values = _everywhere({"day": ["13/1/2025"], "month": ["1/13/2025"], "german": ["13.1.2025"], "doubt": ["1/2/2025"]})
    assert _types(values) == [TEXT, TEXT, DATE, TEXT]
    assert values.dialect.timestamp_formats == ("%d.%m.%Y",)
    assert ["'day'" in values.notes[0], "'month'" in values.notes[1]] == [True, True]
    assert "%d/%m/%Y or %m/%d/%Y" in values.notes[2]


def test_two_digit_years_are_said() -> None:
    (note,) = _everywhere({"c": ["13/05/99"]}).notes
    assert "1969 to 2068" in note


def test_more_patterns_than_a_table_may_have_leave_text() -> None:
    signs = [f"%d{sign}%m{sign}%Y{joint}%H:%M{more}" for sign in "./-" for joint in (" ", "T") for more in ("", ":%S")]
    moment = dt.datetime(2025, 1, 31, 10, 15, 30)
    values = _everywhere({f"c{number}": [moment.strftime(sign)] for number, sign in enumerate(signs)})
    assert _types(values) == [NAIVE] * 10 + [TEXT] * 2
    assert ["at most 10" in note for note in values.notes] == [True] * 2


BOOLEANS = [["yes", "no"], ["Y", "N", ""], ["t", "f"], ["On", "OFF"]]


@pytest.mark.parametrize("cells", BOOLEANS, ids=str)
def test_both_texts_of_a_pair_prove_booleans(cells: list[str]) -> None:
    values = _everywhere({"c": cells, "text": [cells[0], "perhaps", ""][: len(cells)]})
    assert (_types(values), values.dialect.booleans) == (
        [pa.bool_(), TEXT],
        (tuple(cell.lower() for cell in cells[:2]),),
    )
    assert _types(_everywhere({"c": ["0", "1"]})) == [INT]


NULLS = [
    ({"a": ["1", "NA"]}, ("", "NA"), [INT]),
    ({"a": ["1", "-", "-5"]}, ("", "-"), [INT]),
    ({"a": ["1,5", "N/A"], "b": ["yes", "no", r"\N"]}, ("", "N/A", r"\N"), [DOUBLE, pa.bool_()]),
    ({"a": ["13/01/2025", "NULL", "null"]}, ("", "NULL", "null"), [DATE]),
    ({"a": ["1", "NA"], "b": ["NA", "NA"]}, ("", "NA"), [INT, TEXT]),
    ({"a": ["1", "NA"], "b": ["DE", "NA"]}, ("",), [TEXT, TEXT]),
    ({"a": ["1", "NA"], "b": ["DE", "NA"], "c": ["2", "None"]}, ("", "None"), [TEXT, TEXT, INT]),
    ({"a": ["1", "NA", "-"], "b": ["DE", "NA"], "c": ["2", "-"]}, ("",), [TEXT, TEXT, TEXT]),
    ({"a": ["1", "nan"], "b": ["2,5", "NaN"]}, ("",), [DOUBLE, DOUBLE]),
    ({"a": ["2025-01-01", "nan"], "b": ["1.5"]}, ("", "nan"), [DATE, DOUBLE]),
    ({"a": ["2025-01-01", "nan"], "b": ["1.5", "nan"]}, ("",), [TEXT, DOUBLE]),
    ({"a": ["1", "NA", "x"]}, ("",), [TEXT]),
    ({"a": ["1", " NA"]}, ("",), [TEXT]),
    ({"a": ["NA", "NA"]}, ("",), [TEXT]),
]


@pytest.mark.parametrize(("columns", "nulls", "types"), NULLS, ids=str)
def test_a_text_is_null_only_if_no_column_has_it_as_a_value(
    columns: dict[str, list[str]], nulls: tuple[str, ...], types: list[pa.DataType]
) -> None:
    values = _everywhere(columns)
    assert (values.dialect.nulls, _types(values)) == (nulls, types)


def test_a_column_that_would_lose_its_text_names_the_other() -> None:
    (note,) = _everywhere({"amount": ["1", "NA"], "country": ["DE", "NA"]}).notes
    assert all(word in note for word in ("'amount'", "int64", "'NA'", "'country'"))


def test_what_is_given_is_not_decided() -> None:
    columns = {"c": ["1,234"], "d": ["1/2/2025"], "b": ["yes", "no"], "n": ["1", "NA"]}
    assert _types(_everywhere(columns)) == [TEXT, TEXT, pa.bool_(), INT]
    given = {"decimal": ",", "timestamp_formats": ("%m/%d/%Y",), "booleans": (), "nulls": ("",)}
    dialect = Dialect(**given)
    for known in (dialect, STRICT):  # whoever saw the cells may have known it or not
        evidence = {name: ColumnEvidence(known) for name in columns}
        for name, cells in columns.items():
            evidence[name].observe(pa.array(cells))
        values = decide(evidence, dialect, given)
        assert (_types(values), values.dialect) == ([DOUBLE, DATE, TEXT, TEXT], dialect)
    assert _types(_everywhere({"c": ["1,234"]}, given={"decimal": "."})) == [INT]
    assert _types(_everywhere({"c": ["1,234"]}, given={"decimal": ".", "thousands": None})) == [TEXT]


def test_one_odd_cell_at_the_end_of_a_million_counts() -> None:
    many = {
        "comma": ["1,5", "x"],
        "date": ["13/01/2025", "01/13/2025"],
        "bool": ["yes", "maybe"],
        "null": ["7", "NA"],
        "country": ["DE", "NA"],
        "clock": ["10:30", "12:60"],
    }
    evidence = {name: ColumnEvidence() for name in many}
    for name, (usual, odd) in many.items():
        block = pa.array([usual, "no" if name == "bool" else usual] * 50_000)
        for _ in range(10):
            evidence[name].observe(block)
        assert pa.string() not in _types(decide({name: evidence[name]}, STRICT, {})) or name == "country"
        evidence[name].observe(pa.array([usual, odd]))
    assert set(_types(decide(evidence, STRICT, {}))) == {TEXT}


@pytest.mark.slow
def test_plain_columns_have_the_types_of_strict_inference() -> None:
    rng = random.Random(os.environ.get("DOLMEN_TEST_SEED", "plain columns"))
    pool = ["1", "-5", "0", "2.5", "1.50", "1.10", "1e3", "-0", "nan", "9007199254740993", "007", "+1", "inf", "true"]
    pool += [
        "FALSE",
        "2025-01-31",
        "2025-01-31T10:00:00",
        "2025-01-31T10:00:00Z",
        "99999999999999999999",
        "x",
        "0.1234567890123456789",
    ]
    for _ in range(60):
        cells = rng.choices(rng.sample(pool, rng.randint(1, 3)), k=rng.randint(1, 6))
        data = ("n,c\n" + "".join(f"1,{cell}\n" for cell in cells)).encode()
        strict = infer(SourceFile(lambda data=data: io.BytesIO(data), detect("t.csv"), "t.csv")).field("c").type
        found = _everywhere({"c": cells}).schema.field("c").type
        assert found == strict or (strict == TEXT and set(cells) & {"nan"}), cells


Write = Callable[[Any], str]


def _group(digits: str, separator: str) -> str:
    return separator.join(digits[max(0, end - 3) : end] for end in range(len(digits) % 3 or 3, len(digits) + 1, 3))


class _Locale:
    """How one random program writes values."""

    def __init__(self, rng: random.Random) -> None:
        self.decimal = rng.choice(".,")
        self.thousands = rng.choice([sign for sign in [",", ".", " ", NBSP, "'", "", ""] if sign != self.decimal])
        sign, order, year = rng.choice("./-"), rng.choice(["dmy", "mdy", "ymd"]), rng.choice(["%Y", "%Y", "%y"])
        date = sign.join({"d": "%d", "m": "%m", "y": year}[part] for part in order)
        self.date = rng.choice([date, date, "%Y-%m-%d", "%d-%b-%Y", "%B %d, %Y", "%b %d, %Y"])
        self.clock = rng.choice(["%H:%M:%S", "%H:%M", "%I:%M:%S %p", "%H:%M:%S.%f"])
        self.joint = rng.choice([" ", "T", ", "])
        self.is_padded = rng.random() < 0.7 or "%y" in self.date  # a year of two digits keeps its zero
        self.pair = rng.choice([("yes", "no"), ("Y", "N"), ("true", "false"), ("on", "off")])
        self.null = rng.choice(["", "", "NA", "NULL", "-"])

    def number(self, value: Decimal) -> str:
        whole, _, part = f"{abs(value)}".partition(".")
        text = _group(whole, self.thousands) if self.thousands else whole
        return ("-" if value < 0 else "") + text + (self.decimal + part if part else "")

    def time(self, pattern: str) -> Write:
        def write(value: Any) -> str:
            text = dt.datetime.strftime(value, pattern)
            return text if self.is_padded else text.removeprefix("0").replace("/0", "/").replace(".0", ".")

        return write


def _columns(rng: random.Random, locale: _Locale) -> dict[str, tuple[list[Any], Write]]:
    rows = rng.choice([1, 3, 20, 60])
    places, size = rng.choice([1, 2, 3]), rng.choice([10, 10_000, 10**7])

    def moment() -> dt.datetime:
        return dt.datetime(rng.randint(1970, 2060), rng.randint(1, 12), rng.randint(1, 28)) + dt.timedelta(
            seconds=rng.randrange(86400)
        )

    def text() -> str:
        parts = [str(rng.randrange(10**3)) for _ in range(4)]
        return rng.choice(
            [".".join(parts), "v" + parts[0], " ".join(parts[:2]), "DE", "NA", f"0{parts[0]}", ":".join(parts[:2])]
        )

    patterns = {"date": locale.date, "moment": locale.date + locale.joint + locale.clock}
    kinds: dict[str, tuple[Callable[[], Any], Write]] = {
        "int": (lambda: Decimal(rng.randint(-size, size)), locale.number),
        "amount": (lambda: Decimal(rng.randint(-size, size)).scaleb(-places), locale.number),
        "date": (lambda: moment().replace(hour=0, minute=0, second=0), locale.time(patterns["date"])),
        "moment": (moment, locale.time(patterns["moment"])),
        "bool": (lambda: rng.random() < 0.5, lambda value: locale.pair[not value]),
        "text": (text, str),
    }
    return {
        f"{kind}{number}": ([None if rng.random() < 0.1 else make() for _ in range(rows)], write)
        for number in range(2)
        for kind, (make, write) in kinds.items()
        if rng.random() < 0.6
    }


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_values_in_random_notations_come_back_or_stay_text(part: int) -> None:
    rng = random.Random(f"{os.environ.get('DOLMEN_TEST_SEED', 'notations')} {part}")
    typed = 0
    for _ in range(20 if "DOLMEN_LONG" not in os.environ else 3000):
        locale = _Locale(rng)
        columns = _columns(rng, locale) or {"n": ([1], str)}
        cells = {
            name: [locale.null if value is None else write(value) for value in values]
            for name, (values, write) in columns.items()
        }
        values = _decide(cells, rng.choice([5, 1000]))
        order = list(range(len(next(iter(cells.values())))))
        rng.shuffle(order)
        shuffled = _decide({name: [some[row] for row in order] for name, some in cells.items()}, rng.choice([5, 1000]))
        assert (shuffled.schema, set(shuffled.dialect.nulls)) == (values.schema, set(values.dialect.nulls))
        table = _read(cells, values)
        for name, (originals, _) in columns.items():
            found = table[name].to_pylist()
            if values.schema.field(name).type == TEXT:
                nulls = {"", *values.dialect.nulls}
                assert found == [None if cell in nulls else cell for cell in cells[name]], (name, locale.__dict__)
                continue
            typed += 1
            for value, original, cell in zip(found, originals, cells[name], strict=True):
                assert _is_same(value, original, cell, locale, name), (value, original, cell, name, locale.__dict__)
    assert typed > 20


def _is_same(value: Any, original: Any, cell: str, locale: _Locale, name: str) -> bool:
    if original is None or value is None:
        return original is None and value is None
    if isinstance(original, Decimal):
        if locale.thousands == "." and locale.decimal == "," and "," not in cell and cell.count(".") == 1:
            return value in (float(original), float(cell))  # alone, 1.234 has a decimal point
        return float(original) == value
    if isinstance(original, dt.datetime):
        if not isinstance(value, dt.datetime):
            return bool(value == original.date())
        fields = ["second"] if "%S" not in locale.clock else []
        return value.replace(tzinfo=None) == original.replace(**dict.fromkeys(fields, 0))
    return bool(value == original)


def _read(cells: dict[str, list[str]], values: Values) -> pa.Table:
    file = io.StringIO()
    writer = csv.writer(file, delimiter="\t")
    writer.writerow(["row", *cells])
    writer.writerows((number, *row) for number, row in enumerate(zip(*cells.values(), strict=True)))
    options = ReadOptions(values.dialect)
    data = file.getvalue().encode()
    schema = pa.schema([pa.field("row", INT), *values.schema])
    return read(
        SourceFile(lambda: io.BytesIO(data), detect("t.tsv"), "t.tsv", options, block_bytes=1000), schema
    ).read_all()
