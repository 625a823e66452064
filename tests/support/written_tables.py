"""Random tables as Python's csv, pandas, Polars, DuckDB, Spark and writers of workbooks write them, in random dialects.

``judge`` infers such a file, reads it, and compares each value with the one that was written.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import math
import random
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal
from zoneinfo import ZoneInfo

import duckdb
import openpyxl
import pandas as pd
import polars as pl
import pyarrow as pa
import xlsxwriter
from odf.opendocument import OpenDocumentSpreadsheet
from odf.table import Table, TableCell, TableRow
from odf.text import P

import dolmen
from dolmen.errors import InputError
from dolmen.format.dialect import Dialect
from dolmen.ingest.formats.formats import ReadOptions, SourceFile, read
from dolmen.ingest.inference.inference import Inference, describe

Verdict = Literal["equal", "refused", "assumed", "wrong"]
DATES = ("%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%d-%b-%Y", "%Y/%m/%d")
CLOCKS = ("%H:%M:%S", "%I:%M:%S %p")
TIMES = tuple(f"{date}{joint}{clock}" for date in DATES for joint in " T" for clock in CLOCKS)
_WORDS = (
    "Bern",
    "Müller",
    "São Paulo",
    "a b",
    "x",
    "N",
    "no",
    "O'Neil",
    "naïve",
    "日本",
    "ok",
    "Zürich West",
    "true-ish",
)
_MESS = (",", ";", "\t", "|", '"', "'", "\n", "\\", "#", " ", "=", "€", ":", "--", "a", "b", "1", "/", "{", "[")
_CODES = (
    "007",
    "+49",
    "1e5",
    "0x1F",
    "1_000",
    "1.10",
    "12:30",
    "2024-02-30",
    "00",
    "-",
    "1,5",
    "3.14",
    "12",
    "1/2",
    "%",
)
_TYPES: dict[str, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "time": pa.time64("us"),
    "decimal": pa.decimal128(18, 2),
}


@dataclass(frozen=True)
class RandomTable:
    """Columns of Python values, None for NULL. ``kinds`` are those of ``_TYPES``, and texts."""

    names: list[str]
    kinds: list[str]
    columns: list[list[Any]]

    @classmethod
    def make(cls, chance: random.Random, kinds: Sequence[str]) -> RandomTable:
        width, count = chance.randint(1, 7), chance.choice([1, 2, 3, 5, 10, 30, 30])
        chosen = [chance.choice(kinds) for _ in range(width)]
        names = [
            chance.choice([f"c{at}", f"column {at}", f"Größe_{at}", f"{kind}_{at}", f"x.{at}"])
            for at, kind in enumerate(chosen)
        ]
        columns = []
        for kind in chosen:
            share = chance.choice([0, 0, 0.1, 0.6])
            make = _maker(chance, kind)
            columns.append([None if chance.random() < share else make() for _ in range(count)])
        return cls(names, chosen, columns)

    @property
    def rows(self) -> list[list[Any]]:
        return [list(row) for row in zip(*self.columns, strict=True)]

    def arrow(self) -> pa.Table:
        types = [_TYPES.get(kind, pa.string()) for kind in self.kinds]
        return pa.table(
            {name: pa.array(column, type) for name, column, type in zip(self.names, self.columns, types, strict=True)}
        )


def _maker(chance: random.Random, kind: str) -> Callable[[], Any]:
    size = chance.choice([9, 9999, 2**40, 2**62])
    clean = chance.choice(_WORDS)
    return {
        "int": lambda: chance.randint(-size, size),
        "float": lambda: chance.choice(
            [round(chance.uniform(-1000, 1000), 2), chance.random(), chance.uniform(-1e9, 1e9), 1.5]
        ),
        "bool": lambda: chance.random() < 0.5,
        "date": lambda: dt.date(1990, 1, 1) + dt.timedelta(days=chance.randint(0, 15_000)),
        "timestamp": lambda: dt.datetime(1990, 1, 1) + dt.timedelta(seconds=chance.randint(0, 10**9)),
        "time": lambda: dt.time(chance.randint(0, 23), chance.randint(0, 59), chance.randint(0, 59)),
        "decimal": lambda: Decimal(chance.randint(-(10**7), 10**7)).scaleb(-2),
        "word": lambda: chance.choice(_WORDS),
        "same": lambda: clean,
        "mess": lambda: "".join(chance.choices(_MESS, k=chance.randint(1, 8))),
        "code": lambda: chance.choice(_CODES),
        "numeral": lambda: str(chance.randint(0, 10**chance.randint(1, 6))).zfill(chance.choice([1, 1, 4])),
    }[kind]  # fmt: skip


KINDS = ("int", "int", "float", "bool", "date", "timestamp", "word", "word", "same", "mess", "code", "numeral")


@dataclass(frozen=True)
class WrittenTable:
    """A file, and what is in it.

    Args:
        times: patterns that dates and times were written in, as text.
        nulls: what stands for NULL.
        digits: how many its writer gives a float.
        zone: of times that were written without one, and have an offset in the file.
    """

    data: bytes
    name: str
    names: list[str]
    rows: list[list[Any]]
    header: bool = True
    how: dict[str, Any] = field(default_factory=dict)
    nulls: tuple[str, ...] = ("",)
    digits: int = 17
    zone: str = "UTC"


# -- judging


@dataclass(frozen=True)
class Judgement:
    verdict: Verdict
    why: str
    found: Inference | None = None


def judge(written: WrittenTable) -> Judgement:
    """Infers a file and reads it back."""
    file = io.BytesIO(written.data)
    file.name = written.name
    try:
        found = dolmen.infer(file)
        source = SourceFile(
            lambda: io.BytesIO(written.data), found.file_format, written.name, ReadOptions(dialect=found.dialect)
        )
        table = read(source, found.schema).read_all()
    except InputError as error:
        return Judgement("refused", str(error))
    problem = _difference(written, table, found.dialect)
    if problem is None:
        return Judgement("equal", found.summary, found)
    what, why = problem
    numbers = [field for field in table.schema if pa.types.is_floating(field.type) or pa.types.is_integer(field.type)]
    if not written.header and numbers and written.rows[:1] == [table.column_names]:
        return Judgement("assumed", "words above numbers are a header, as far as the file tells", found)
    said = any(
        re.search(_SAID[what], text)
        for text in (*found.notes, *found.losses, *describe(found.dialect), found.second or "")
    )
    return Judgement("assumed" if said else "wrong", f"{what}: {why}; {found.summary}", found)


_SAID = {
    "columns": r"header|is a row|names|no delimiter|number|member|NULL|lack|in them|pandas|not objects|skipped",
    "rows": r"header|is a row|skipped|comment|footer|in them|lack|quote|no delimiter|pandas|not objects|names",
    "NULL": r"^NULL is|which is NULL|lack",
    "value": r"quotes|escapes|literal|no delimiter|not objects|pandas|times as in|comment|header|separates the fields"
    r"|decimal comma|between thousands",
}
"""The word that the summary line must have if a file is read otherwise than it was written."""


def _difference(written: WrittenTable, table: pa.Table, dialect: Dialect) -> tuple[str, str] | None:
    rows = (
        [list(row.values()) for row in table.to_pylist()] if len(set(table.column_names)) == table.num_columns else []
    )
    if table.num_columns != len(written.names):
        return "columns", f"{table.column_names} for {written.names}"
    expected = written.rows
    if len(rows) != len(expected):
        blank = [row for row in expected if any(value not in (None, "") for value in row)]
        if len(rows) != len(blank):
            return "rows", f"{len(rows)} for {len(expected)}"
        expected = blank  # rows without a value are none in a sheet, nor lines in a file of one column
    if written.header and [name.strip() for name in written.names] != [name.strip() for name in table.column_names]:
        return "columns", f"{table.column_names} for {written.names}"
    for number, (row, wanted) in enumerate(zip(rows, expected, strict=True)):
        for name, value, meant in zip(written.names, row, wanted, strict=True):
            problem = _compare(value, meant, written, dialect)
            if problem is not None:
                return problem, f"{value!r} for {meant!r} in row {number}, column {name!r}"
    return None


def _compare(value: Any, meant: Any, written: WrittenTable, dialect: Dialect) -> str | None:
    if meant is None or meant == "":
        is_same = (
            value is None or value == "" or value in written.nulls or (isinstance(value, float) and math.isnan(value))
        )
        return None if is_same else "value"
    if value is None:
        return "NULL"
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        value = value.astimezone(ZoneInfo(written.zone)).replace(tzinfo=None)
    if isinstance(meant, str):
        return None if value == meant or _gives_back(value, meant, dialect) else "value"
    if isinstance(value, str):
        return None if _gives_back(meant, value, dialect) else "value"
    is_double = written.digits == 15 and type(meant) is int and abs(meant) > 2**53  # numbers of sheets are doubles
    if isinstance(value, float) and (isinstance(meant, float) or is_double):
        tolerance = 0 if written.digits == 17 else 10.0 ** (1 - written.digits)
        return None if math.isclose(value, meant, rel_tol=tolerance) else "value"
    return None if _equal(value, meant) else "value"


def _equal(value: Any, meant: Any) -> bool:
    if isinstance(value, bool) or isinstance(meant, bool):
        return type(value) is type(meant) and value == meant
    if isinstance(value, int | float | Decimal) and isinstance(meant, int | float | Decimal):
        if isinstance(value, float) or isinstance(meant, float):
            return float(value) == float(meant)
        return Decimal(value) == Decimal(meant)
    if isinstance(value, dt.datetime) and type(meant) is dt.date:
        return value == dt.datetime.combine(meant, dt.time())
    if isinstance(value, dt.datetime) and isinstance(meant, dt.datetime):
        return value.replace(tzinfo=None) == meant.replace(tzinfo=None)
    return type(value) is type(meant) and bool(value == meant)


def _gives_back(value: Any, text: str, dialect: Dialect) -> bool:
    """Whether a value has this text, but for what docs/ingest.md says is not kept of it."""
    text = text.strip()
    if isinstance(value, bool):
        words = {"true": True, "false": False, "yes": True, "no": False, "y": True, "n": False}
        for yes, no in dialect.booleans:
            words |= {yes.lower(): True, no.lower(): False}
        return words.get(text.lower()) is value
    if isinstance(value, int | float | Decimal):
        plain = text.replace(dialect.thousands or "\0", "").replace(dialect.decimal, ".")
        for candidate in (plain, text, text.replace(",", ".")):
            try:
                if float(candidate) == value if isinstance(value, float) else Decimal(candidate) == value:
                    return not (isinstance(value, int) and str(value) != candidate.removesuffix(".0"))
            except (ArithmeticError, ValueError):
                continue
        return False
    if isinstance(value, dt.datetime):
        texts = [value.strftime(pattern) for pattern in TIMES] + [
            value.isoformat(),
            value.isoformat(" "),
            str(value.date()),
        ]
        return any(
            text.removesuffix("Z").startswith(one) and not text.removesuffix("Z")[len(one) :].strip(".0")
            for one in texts
        )
    if isinstance(value, dt.date):
        return text in [value.strftime(pattern) for pattern in DATES] + [f"{value} 00:00:00", f"{value}T00:00:00"]
    if isinstance(value, dt.time):
        text = text.removesuffix(".000000000")
        return any(value.strftime(pattern) == text for pattern in (*CLOCKS, "%H:%M")) or value.isoformat() == text
    return str(value) == text


# -- writers


def write_csv(chance: random.Random) -> WrittenTable:
    """By Python's csv."""
    table = RandomTable.make(chance, KINDS)
    delimiter = chance.choice([",", ",", ";", "\t", "|"])
    comma = delimiter != "," and chance.random() < 0.3
    date, clock = chance.choice([DATES[0], DATES[0], *DATES]), chance.choice([CLOCKS[0], CLOCKS[0], *CLOCKS])
    null = chance.choice(["", "", "", "NA", "NULL", r"\N", "n/a"])
    booleans = chance.choice([("true", "false"), ("True", "False"), ("yes", "no"), ("Y", "N")])
    header = chance.random() < 0.8
    options: dict[str, Any] = {
        "delimiter": delimiter,
        "quotechar": chance.choice(['"', '"', '"', "'"]),
        "quoting": chance.choice([csv.QUOTE_MINIMAL, csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
        "lineterminator": chance.choice(["\n", "\n", "\r\n", "\r"]),
    }
    if null != r"\N" and chance.random() < 0.2:
        options |= {"doublequote": False, "escapechar": "\\"}
    if options["lineterminator"] == "\r":  # csv quotes no line feed then
        columns = [
            [each.replace("\n", "/") if isinstance(each, str) else each for each in one] for one in table.columns
        ]
        table = RandomTable(table.names, table.kinds, columns)
    encoding = chance.choice(["utf-8", "utf-8", "utf-8-sig", "utf-16", "cp1252", "latin-1"])

    def cell(value: Any) -> Any:
        if value is None:
            return null
        if isinstance(value, bool):
            return booleans[not value]
        if isinstance(value, dt.datetime):
            return value.strftime(f"{date} {clock}")
        if isinstance(value, dt.date):
            return value.strftime(date)
        return str(value).replace(".", ",") if isinstance(value, float) and comma else value

    sink = io.StringIO()
    if chance.random() < 0.1:
        sink.write(chance.choice(["Report of sales\n\n", "# made by a program\n", "sep=" + delimiter + "\n"]))
    writer = csv.writer(sink, **options)
    if header:
        writer.writerow(table.names)
    writer.writerows([cell(value) for value in row] for row in table.rows)
    data = sink.getvalue().encode(encoding, "replace")
    rows = [
        [each.encode(encoding, "replace").decode(encoding) if isinstance(each, str) else each for each in row]
        for row in table.rows
    ]
    names = [name.encode(encoding, "replace").decode(encoding) for name in table.names]
    name = chance.choice(["a.csv", "a.csv", "a.txt.csv", "a.tsv"])
    how = options | {"encoding": encoding, "date": date + clock, "null": null, "comma": comma}
    return WrittenTable(data, name, names, rows, header, how, ("", null))


def _file(name: str, write: Callable[[Path], object]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / name)
        return (Path(folder) / name).read_bytes()


def write_pandas(chance: random.Random) -> WrittenTable:
    """By pandas: CSV, JSON and workbooks."""
    kind = chance.choice(["csv", "csv", "json", "xlsx"])
    kinds = [each for each in KINDS if kind != "xlsx" or each != "mess"]
    table = RandomTable.make(chance, kinds)
    has_nulls = chance.random() < 0.5
    frame = table.arrow().to_pandas(types_mapper=pd.ArrowDtype) if has_nulls else table.arrow().to_pandas()
    index = chance.random() < 0.3
    names, rows = table.names, table.rows if has_nulls else _as_floats(table.rows)
    if kind == "csv":
        options: dict[str, Any] = {
            "sep": chance.choice([",", ",", ";", "\t", "|"]),
            "na_rep": chance.choice(["", "", "NA", "NULL", "NaN"]),
            "index": index,
            "header": chance.random() < 0.8,
            "quoting": chance.choice([csv.QUOTE_MINIMAL, csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
            "encoding": chance.choice(["utf-8", "utf-8", "utf-8-sig"]),
            "lineterminator": chance.choice(["\n", "\r\n"]),
        }
        if options["sep"] != "," and chance.random() < 0.5:
            options["decimal"] = ","
        if chance.random() < 0.5:
            options["date_format"] = chance.choice(TIMES)
        if index:
            names, rows = ["column_1", *names], [[number, *row] for number, row in enumerate(rows)]
        name = "a.csv" + chance.choice(["", "", "", ".gz", ".bz2", ".zip"])
        data = _file(name, lambda path: frame.to_csv(path, **options))
        return WrittenTable(data, name, names, rows, options["header"], options, ("", options["na_rep"]))
    if kind == "json":
        orient = chance.choice(["records", "records", "records", "split", "index", "columns", "values", "table"])
        json_options: dict[str, Any] = {"orient": orient, "date_format": "iso"}
        if orient == "records":
            json_options["lines"] = chance.random() < 0.5
        if orient != "values":
            json_options["indent"] = chance.choice([None, None, 2]) if not json_options.get("lines") else None
        if orient == "table":
            names, rows = ["index", *names], [[number, *row] for number, row in enumerate(rows)]
        data = _file("a.json", lambda path: frame.to_json(path, **json_options))
        return WrittenTable(data, "a.json", names, _rounded(rows), orient != "values", json_options, digits=15)
    options = {
        "engine": chance.choice(["openpyxl", "xlsxwriter", "odf"]),
        "index": index,
        "header": chance.random() < 0.85,
        "startrow": chance.choice([0, 0, 0, 3]),
        "startcol": chance.choice([0, 0, 2]),
        "sheet_name": "Data",
    }
    if index:
        names, rows = ["", *names], [[number, *row] for number, row in enumerate(rows)]
        names[0] = f"column_{options['startcol'] + 1}"
    name = "a.ods" if options["engine"] == "odf" else "a.xlsx"
    data = _file(name, lambda path: frame.to_excel(path, **options))
    return WrittenTable(data, name, names, rows, options["header"], options, digits=15)


def _as_floats(rows: list[list[Any]]) -> list[list[Any]]:
    """As a frame of numpy's types has them: integers are floats in a column that also has NULL."""
    columns = [[each for each in column if each is not None] for column in zip(*rows, strict=True)]
    are_floats = [len(values) < len(rows) and all(type(each) is int for each in values) for values in columns]
    return [
        [float(each) if is_float and each is not None else each for each, is_float in zip(row, are_floats, strict=True)]
        for row in rows
    ]


def _rounded(rows: list[list[Any]]) -> list[list[Any]]:
    """As pandas writes floats into JSON: with ten decimal places, or large ones with ten digits."""
    return [
        [
            float(f"{each:.9e}" if abs(each) > 1e16 else f"{each:.10f}") if isinstance(each, float) else each
            for each in row
        ]
        for row in rows
    ]


def write_polars(chance: random.Random) -> WrittenTable:
    """By Polars: CSV, JSON, JSON lines, Parquet and workbooks."""
    kind = chance.choice(["csv", "csv", "json", "ndjson", "parquet", "xlsx"])
    kinds = [*KINDS, "time", "decimal"] if kind != "xlsx" else [each for each in KINDS if each != "mess"] + ["time"]
    table = RandomTable.make(chance, kinds)
    frame = pl.from_arrow(table.arrow())
    assert isinstance(frame, pl.DataFrame)
    if kind == "csv":
        separator = chance.choice([",", ",", ";", "\t", "|"])
        options: dict[str, Any] = {
            "separator": separator,
            "include_header": chance.random() < 0.8,
            "include_bom": chance.random() < 0.2,
            "line_terminator": chance.choice(["\n", "\n", "\r\n"]),
            "quote_style": chance.choice(["necessary", "necessary", "always", "non_numeric"]),
            "null_value": chance.choice(["", "", "NULL", "NA"]),
            "decimal_comma": separator != "," and chance.random() < 0.3,
        }
        if chance.random() < 0.4:
            date = chance.choice(DATES)
            options |= {"date_format": date, "datetime_format": f"{date} %H:%M:%S"}
        sink = io.BytesIO()
        frame.write_csv(sink, **options)
        nulls = ("", options["null_value"])
        return WrittenTable(
            sink.getvalue(), "a.csv", table.names, table.rows, options["include_header"], options, nulls
        )
    sink = io.BytesIO()
    if kind == "json":
        frame.write_json(sink)
    elif kind == "ndjson":
        frame.write_ndjson(sink)
    elif kind == "parquet":
        frame.write_parquet(sink, compression=chance.choice(["zstd", "snappy", "gzip", "uncompressed"]))
    else:
        header = chance.random() < 0.85
        options = {
            "position": chance.choice(["A1", "A1", "C4"]),
            "include_header": header,
            "autofilter": header and chance.random() < 0.5,
            "table_style": chance.choice([None, "Table Style Light 1"]) if header else None,
        }
        frame.write_excel(sink, "Data", **options)
        return WrittenTable(sink.getvalue(), "a.xlsx", table.names, table.rows, header, options, digits=15)
    name = {"json": "a.json", "ndjson": "a.ndjson", "parquet": "a.parquet"}[kind]
    return WrittenTable(sink.getvalue(), name, table.names, table.rows, True, {"kind": kind})


def write_duckdb(chance: random.Random) -> WrittenTable:
    """By DuckDB: COPY as CSV, JSON and Parquet."""
    kind = chance.choice(["csv", "csv", "csv", "json", "parquet"])
    table = RandomTable.make(chance, [*KINDS, "time", "decimal"])
    options: dict[str, Any] = {"FORMAT": kind}
    header, nulls = True, ("",)
    if kind == "csv":
        header = chance.random() < 0.8
        null = chance.choice(["", "", "NULL", r"\N"])
        nulls = ("", null)
        options |= {
            "DELIMITER": chance.choice([",", ",", ";", "\t", "|"]),
            "HEADER": header,
            "QUOTE": chance.choice(['"', '"', "'"]),
            "NULLSTR": null,
        }
        escape = "\\" if null != r"\N" and chance.random() < 0.2 else None
        if escape or options["QUOTE"] != '"':  # its own would be '"', which no field shows that is not quoted
            options["ESCAPE"] = escape or options["QUOTE"]
    if kind != "parquet" and chance.random() < 0.3:
        date = chance.choice(DATES)
        options |= {"DATEFORMAT": date, "TIMESTAMPFORMAT": f"{date} %H:%M:%S"}
    if kind == "json":
        options["ARRAY"] = chance.random() < 0.5
    if kind != "parquet":
        options["COMPRESSION"] = chance.choice(["none", "none", "gzip"])
    ending = ".gz" if options.get("COMPRESSION") == "gzip" else ""
    name = f"a.{kind}{ending}"
    connection = duckdb.connect()
    connection.register("t", table.arrow())
    texts = ", ".join(f"{key} {_sql(value)}" for key, value in options.items())
    if kind == "csv" and chance.random() < 0.2:
        texts += ", FORCE_QUOTE *"
    data = _file(name, lambda path: connection.execute(f"COPY t TO '{path}' ({texts})"))
    return WrittenTable(data, name, table.names, table.rows, header, options, nulls)


def _sql(value: Any) -> str:
    return str(value) if isinstance(value, bool) else "'" + str(value).replace("'", "''") + "'"


def write_workbook(chance: random.Random) -> WrittenTable:
    """By openpyxl, XlsxWriter and odfpy: titles, empty rows and columns, more sheets."""
    kinds = [each for each in KINDS if each != "mess"] + ["time"]
    table = RandomTable.make(chance, kinds)
    header = chance.random() < 0.85
    left, title = chance.choice([0, 0, 1, 3]), chance.choice([None, None, "Sales", "Report of 2024"])
    gap = chance.choice([0, 1, 2]) if title is not None or chance.random() < 0.2 else 0
    engine = chance.choice(["openpyxl", "xlsxwriter", "odf"])
    cells: list[list[Any]] = [[title]] if title is not None else []
    cells += [[]] * gap
    cells += [[None] * left + table.names] if header else []
    cells += [[None] * left + row for row in table.rows]
    notes = chance.random() < 0.2
    sink = io.BytesIO()
    if engine == "openpyxl":
        book = openpyxl.Workbook()
        if chance.random() < 0.3:
            book.epoch = openpyxl.utils.datetime.CALENDAR_MAC_1904
        sheet = book.active
        assert sheet is not None
        for row in cells:
            sheet.append(row)
        if notes:
            book.create_sheet("Notes").append(["by hand"])
        book.save(sink)
    elif engine == "xlsxwriter":
        own = {"date_1904": chance.random() < 0.3, "constant_memory": chance.random() < 0.3}
        pages = xlsxwriter.Workbook(sink, {"in_memory": True, **own})
        formats = {dt.date: "dd.mm.yyyy", dt.datetime: "yyyy-mm-dd hh:mm:ss", dt.time: "hh:mm:ss"}
        shown = {kind: pages.add_format({"num_format": code}) for kind, code in formats.items()}
        page = pages.add_worksheet("Data")
        for row_number, row in enumerate(cells):
            for column, value in enumerate(row):
                if isinstance(value, str):
                    page.write_string(row_number, column, value)
                elif type(value) in shown:
                    page.write_datetime(row_number, column, value, shown[type(value)])
                elif value is not None:
                    page.write(row_number, column, value)
        if notes:
            pages.add_worksheet("Notes").write_string(0, 0, "by hand")
        pages.close()
    else:
        document = OpenDocumentSpreadsheet()
        for name, content in [("Data", cells)] + ([("Notes", [["by hand"]])] if notes else []):
            sheet_of = Table(name=name)
            for row in content:
                made = TableRow()
                for value in row:
                    made.addElement(_ods_cell(value))
                sheet_of.addElement(made)
            document.spreadsheet.addElement(sheet_of)
        document.write(sink)
    rows = table.rows
    how = {"engine": engine, "title": title, "gap": gap, "left": left, "notes": notes}
    return WrittenTable(
        sink.getvalue(), "a.ods" if engine == "odf" else "a.xlsx", table.names, rows, header, how, digits=15
    )


def _ods_cell(value: Any) -> TableCell:
    if value is None:
        return TableCell()
    if isinstance(value, bool):
        return TableCell(valuetype="boolean", booleanvalue=str(value).lower())
    if isinstance(value, int | float):
        return TableCell(valuetype="float", value=repr(value))
    if isinstance(value, dt.date):
        return TableCell(valuetype="date", datevalue=value.isoformat())
    if isinstance(value, dt.time):
        return TableCell(valuetype="time", timevalue=value.strftime("PT%HH%MM%SS"))
    cell = TableCell(valuetype="string")
    cell.addElement(P(text=value))
    return cell


WRITERS: dict[str, Callable[[random.Random], WrittenTable]] = {
    "csv": write_csv,
    "pandas": write_pandas,
    "polars": write_polars,
    "duckdb": write_duckdb,
    "workbook": write_workbook,
}


def write_spark(chance: random.Random, spark: Any, folder: Path) -> WrittenTable:
    """By Spark: CSV, JSON, ORC."""
    kind = chance.choice(["csv", "csv", "json", "orc"])
    kinds = [each for each in KINDS if kind != "orc" or each != "timestamp"]  # ORC has the local time of the JVM
    table = RandomTable.make(chance, [*kinds, "decimal"])
    header, nulls, options = True, ("",), dict[str, Any]()
    if kind == "csv":
        header = chance.random() < 0.8
        null = chance.choice(["", "", "NULL", r"\N"])
        nulls = ("", null, '""')
        options = {
            "sep": chance.choice([",", ",", ";", "\t", "|"]),
            "header": str(header).lower(),
            "nullValue": null,
            "quoteAll": chance.choice(["false", "false", "true"]),
            "escape": chance.choice(["\\", "\\", '"']),
            "lineSep": "\n",
        }
        if chance.random() < 0.2:
            options["compression"] = "gzip"
    if kind != "orc" and chance.random() < 0.3:
        date = chance.choice([("dd.MM.yyyy", "dd.MM.yyyy HH:mm:ss"), ("MM/dd/yyyy", "MM/dd/yyyy HH:mm:ss")])
        options |= {"dateFormat": date[0], "timestampFormat": date[1], "timestampNTZFormat": date[1]}
    if kind == "json":
        options["ignoreNullFields"] = "false"
    path = folder / f"{chance.randrange(2**60)}"
    frame = spark.createDataFrame(table.arrow()).coalesce(1)
    frame.write.format(kind).options(**options).save(str(path))
    (part,) = (each for each in path.iterdir() if each.name.startswith("part-"))
    zone = spark.conf.get("spark.sql.session.timeZone")
    how = options | {"kind": kind}
    return WrittenTable(part.read_bytes(), part.name, table.names, table.rows, header, how, nulls, zone=zone)
