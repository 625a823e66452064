"""One sheet of a workbook (.xlsx, .xlsm, .ods): its first row names the columns, and each other row is one.

- The sheet is that of the dialect, or else the only visible one with rows. ``skip_lines`` rows come before the header.
- Rows without a value are skipped. A column without a name is ignored if it has no values, else an error.
- A cell is what the sheet says. A number is a double: 12.0 fits an integer column, 12.5 does not; in a decimal column
  it has the 15 digits that Excel shows. Dates and times of day are cells of these formats; times have milliseconds.
- Text is read as in a CSV cell; ``nulls`` lists the texts that are NULL. A cell that is not text is never read as text.
- An error such as ``#N/A`` is this text. A formula has its saved value; without one, its row is bad.
- In a string column, numbers have their shortest notation, and times are ISO 8601.
- Errors name the row of the sheet as the line, and count rows like all formats.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa
from msgspec import Struct, field
from pyarrow import types as t

from dolmen.base import pc
from dolmen.base.units import MIB
from dolmen.errors import InputError, RowError, RowProblem, SchemaError, short_repr
from dolmen.format.dialect import Dialect
from dolmen.format.schema import NUMBER_THEM, no_common_column, number_names, own_names, same_names, same_names_problem
from dolmen.ingest.formats.cells import TimeFormat, parse_text
from dolmen.ingest.formats.column_limits import check_columns
from dolmen.ingest.formats.json.json_values import unparsed_cast
from dolmen.ingest.formats.sheets.sheet_cells import (
    BOOL,
    DATE,
    DATETIME,
    EMPTY,
    ERROR,
    NOT_CALCULATED,
    NUMBER,
    TEXT,
    TIME,
    CellBlock,
    CellColumn,
    SheetRemarks,
    Workbook,
    column_letters,
    days_of,
    moments_of,
    times_of,
)
from dolmen.ingest.formats.source_file import OnBadRow, ReadOptions, SourceFile, good_rows
from dolmen.ingest.formats.text_blocks import COMPOUND, ZIP
from dolmen.ingest.formats.zip_archive import ZipArchive, too_many_bytes
from dolmen.rows.write.casts import Cast, FindCast, Misfit
from dolmen.rows.write.conform import conform_batch, plan_conform

_ENCRYPTED_PACKAGE = "EncryptedPackage".encode("utf-16-le")
_MAX_EXACT_INTEGER = 2**53
_NUMBERED = re.compile("column_([1-9][0-9]{0,4})(?:_[0-9]+)?$")
_CELL_BYTES = 8
_NO_VALUE = "a formula whose value was never saved: let Excel or LibreOffice calculate it, and save the file"


def read(source: SourceFile, schema: pa.Schema, on_bad_row: OnBadRow | None = None) -> Iterator[pa.RecordBatch]:
    """The rows as batches of ``schema``. Raises as ``formats.read`` does."""
    with _open_sheet(source, schema.names) as sheet:
        converter = _SheetConverter(sheet, schema, source.options, on_bad_row)
        for block, row in sheet.numbered_blocks():
            batch = converter.convert(block, row)
            if batch.num_rows:
                yield batch


def infer(source: SourceFile) -> pa.Schema:
    """The types that hold every cell of the sheet. Raises as ``read`` does."""
    _, shapes = observe_columns(source, SheetShape)
    return pa.schema([(name, shape.arrow_type) for name, shape in shapes.items()])


def survey(source: SourceFile, skip_bad_rows: bool) -> pa.Schema:
    """The types that hold every cell; null for a column without any. None without a header."""
    if not source.options.dialect.header:
        return pa.schema([])
    _, shapes = observe_columns(source, SheetShape, skip_bad_rows=skip_bad_rows)
    return pa.schema([(name, shape.arrow_type if shape.kinds else pa.null()) for name, shape in shapes.items()])


def observe_columns(
    source: SourceFile, make: Callable[[], Shape], *, skip_bad_rows: bool = False
) -> tuple[Sheet, dict[str, Shape]]:
    """The sheet, which has been read to its end, and the shapes of its columns. Raises as ``read`` does."""
    shapes: dict[str, Shape] = {}
    with _open_sheet(source, None) as sheet:
        for name in sheet.names.values():
            shapes[name] = make()
        for block, row in sheet.numbered_blocks():
            sheet.add_columns(block)
            if not skip_bad_rows:
                sheet.check_names(block, row)
            for number, name in sheet.names.items():
                if number not in block.columns:
                    continue
                cells = without_nulls(block.columns[number], source.options.dialect)
                index = int(np.argmax(cells.kinds == NOT_CALCULATED))
                if cells.kinds[index] == NOT_CALCULATED and not skip_bad_rows:
                    raise sheet.row_error(_NO_VALUE, block, row, index, number)
                if name not in shapes:
                    shapes[name] = make()
                shapes[name].add(cells)
    if not shapes and not skip_bad_rows:
        raise InputError(f"file {source.name!r}: its sheet has no columns")
    order = {name: number for number, name in sheet.names.items()}
    return sheet, dict(sorted(shapes.items(), key=lambda item: order[item[0]]))


class SheetShape(Struct):
    """The kinds of a column's cells."""

    kinds: set[int] = field(default_factory=set)
    is_whole: bool = True

    def add(self, cells: CellColumn) -> None:
        self.kinds |= set(np.unique(cells.kinds).tolist()) - {EMPTY, NOT_CALCULATED}
        if self.is_whole and NUMBER in self.kinds:
            numbers = cells.numbers[cells.kinds == NUMBER]
            self.is_whole = bool(((numbers == np.rint(numbers)) & (np.abs(numbers) <= _MAX_EXACT_INTEGER)).all())

    @property
    def arrow_type(self) -> pa.DataType:
        if self.kinds == {NUMBER}:
            return pa.int64() if self.is_whole else pa.float64()
        if self.kinds == {DATE, DATETIME}:
            return pa.timestamp("us")
        return _TYPES.get(next(iter(self.kinds)), pa.string()) if len(self.kinds) == 1 else pa.string()


Shape = TypeVar("Shape", bound=SheetShape)
_TYPES = {BOOL: pa.bool_(), DATE: pa.date32(), DATETIME: pa.timestamp("us"), TIME: pa.time64("us")}


class Sheet(Struct):
    """A sheet whose header has been read."""

    # file, name: of the workbook and of the sheet
    file: str
    name: str
    names: dict[int, str]  # the columns by their 0-based numbers
    header_row: int | None  # the number of the row with the names; None without a header
    blocks: Iterator[CellBlock]
    remarks: SheetRemarks
    others: str  # what becomes of a column that ``names`` lacks: it is an error, is ignored, or gets a name
    max_columns: int
    max_bytes: int

    def numbered_blocks(self) -> Iterator[tuple[CellBlock, int]]:
        """Blocks of rows, each with the 1-based number of its first row."""
        row, remaining = 1, self.max_bytes
        for block in self.blocks:
            size = sum(_CELL_BYTES * len(each.kinds) + each.texts.nbytes for each in block.columns.values())
            remaining -= size
            if remaining < 0:
                raise too_many_bytes(self.file, self.max_bytes)
            yield block, row
            row += len(block.rows)

    def add_columns(self, block: CellBlock) -> None:
        """Names the columns of a block that the header does not, if that is allowed."""
        if self.others != "name":
            return
        new = [number for number, each in block.columns.items() if number not in self.names and each.kinds.any()]
        check_columns(len(self.names) + len(new), self.max_columns, self.file)
        taken = {name.lower() for name in self.names.values()} if new else set()
        for number in new:
            name, repeated = f"column_{number + 1}", 1
            while name in taken:
                repeated += 1
                name = f"column_{number + 1}_{repeated}"
            self.names[number] = name

    def check_names(self, block: CellBlock, row: int) -> None:
        """Raises RowError for the first row with a value in a column without a name."""
        if self.others == "ignore":
            return
        unknown = {number: each.kinds for number, each in block.columns.items() if number not in self.names}
        found = [(int(np.argmax(kinds != EMPTY)), number) for number, kinds in unknown.items() if kinds.any()]
        if found:
            index, number = min(found)
            where = "the table has no such column" if self.header_row is None else f"row {self.header_row} has no name"
            hint = "" if self.header_row is None else ": name it, or let names be numbered (ingest_names: number)"
            reason = f"a value in column {number + 1}, for which {where}{hint}"
            raise self.row_error(reason, block, row, index, number, problem="no name" if hint else None)

    def row_error(
        self, reason: str, block: CellBlock, row: int, index: int, number: int, problem: RowProblem | None = None
    ) -> RowError:
        """The error about a cell in a block whose first row is ``row``."""
        line = int(block.rows[index])
        return RowError(
            f"cell {column_letters(number)}{line} of sheet {self.name!r}: {reason}",
            file=self.file,
            line=line,
            row=row + index,
            column=self.names.get(number),
            problem=problem,
        )


@contextmanager
def _open_sheet(source: SourceFile, table: Sequence[str] | None) -> Iterator[Sheet]:
    """Opens the sheet and reads its header; ``table`` has the table's columns, None infers them."""
    with open_workbook(source) as book:
        yield _sheet(book, _choose(book, source), source, table)


@contextmanager
def open_workbook(source: SourceFile) -> Iterator[Workbook]:
    """Opens a workbook. Raises InputError for another file, and for damage."""
    with source.seekable() as file, source.report_damage("workbook"):
        yield _open_book(file, source)


def _open_book(file, source: SourceFile) -> Workbook:  # type: ignore[no-untyped-def]
    from dolmen.ingest.formats.sheets.ods import Ods
    from dolmen.ingest.formats.sheets.xlsx import Xlsx

    name = source.name
    start = file.read(len(COMPOUND))
    if start == COMPOUND:
        tail = b""
        while data := file.read(MIB):
            if _ENCRYPTED_PACKAGE in tail + data:
                raise InputError(f"file {name!r} is encrypted with a password: save it without one")
            tail = data[-len(_ENCRYPTED_PACKAGE) :]
        raise InputError(f"file {name!r} is a workbook of Excel 97-2003 (.xls): save it as .xlsx")
    if not start.startswith(ZIP):
        raise InputError(f"file {name!r} is not a workbook: neither .xlsx nor .ods")
    archive = ZipArchive(file, name, source.options.max_bytes)
    archive.check_size()
    return Ods(archive, name) if "content.xml" in archive.members else Xlsx(archive, name)


def _choose(book: Workbook, source: SourceFile) -> str:
    """The name of the sheet that is meant. Raises InputError."""
    own, names = source.options.dialect.sheet, [sheet.name for sheet in book.sheets]
    what = f"file {source.name!r}"
    if own is not None:
        if own not in names:
            raise InputError(f"{what} has no sheet {short_repr(own)}; there are: {_listed(names)}")
        return own
    if not names:
        raise InputError(f"{what} is a workbook without a sheet of cells")
    full = sheets_with_rows(book)
    if len(full) > 1:
        raise InputError(
            f"{what} has several sheets with rows: {_listed(full)}; say which one (--sheet, or the setting "
            "ingest_sheet)"
        )
    return full[0] if full else names[0]


def sheets_with_rows(book: Workbook) -> list[str]:
    """The visible sheets in which a cell has a value, or the hidden ones if no visible one has any."""
    for is_visible in (True, False):
        full = [sheet.name for sheet in book.sheets if sheet.is_visible is is_visible and book.has_rows(sheet.name)]
        if full:
            return full
    return []


def _listed(names: Sequence[str]) -> str:
    return ", ".join(short_repr(name) for name in names[:20]) + (", ..." if len(names) > 20 else "")


def _sheet(book: Workbook, name: str, source: SourceFile, table: Sequence[str] | None) -> Sheet:
    options, dialect = source.options, source.options.dialect
    remarks = SheetRemarks()
    blocks = rows_after(book.blocks(name, remarks), dialect.skip_lines)
    ignore = options.ignore_extra and table is not None
    others = "ignore" if ignore else "name" if table is None and not dialect.header else "refuse"
    if not dialect.header:
        names = dict(zip(_positions(table or ()), table or (), strict=True))
        return Sheet(source.name, name, names, None, blocks, remarks, others, options.max_columns, options.max_bytes)
    first = next(blocks, None)
    if first is None:
        where = f" after its first {dialect.skip_lines:,} rows" if dialect.skip_lines else ""
        raise InputError(f"file {source.name!r}: sheet {name!r} is empty{where}: it needs a row of names")
    header, row = first.slice(0, 1), int(first.rows[0])
    texts = {number: header.columns[number].as_text()[0].as_py() or "" for number in sorted(header.columns)}
    spelled = {number: text for number, text in texts.items() if text.strip()}
    check_columns(len(spelled), options.max_columns, source.name)
    where = f"file {source.name!r}, sheet {name!r}, row {row}"
    if not spelled:
        raise SchemaError(f"{where}: no column has a name")
    if dialect.names == "number":
        names = _number_names(spelled, table)
        others = others if table is not None else "name"
    else:
        names = dict(zip(spelled, own_names(spelled.values(), table or ()), strict=True))
    if ignore:
        names = {number: each for number, each in names.items() if each in (table or ())}
        if not names:
            raise no_common_column(where, table or ())
    if pair := same_names(names.values()):
        raise SchemaError(f"{where}: {same_names_problem(pair)}; {NUMBER_THEM}", column=pair[0])

    def remaining() -> Iterator[CellBlock]:
        if len(first.rows) > 1:
            yield first.slice(1, len(first.rows))
        yield from blocks

    return Sheet(source.name, name, names, row, remaining(), remarks, others, options.max_columns, options.max_bytes)


def _positions(table: Sequence[str]) -> list[int]:
    """The columns of a sheet without a header, for a table's: column_3 is the third, if all have such names."""
    numbers = [int(match[1]) - 1 for name in table if (match := re.fullmatch("column_([1-9][0-9]{0,4})", name))]
    return numbers if len(numbers) == len(table) else list(range(len(table)))


def _number_names(spelled: dict[int, str], table: Sequence[str] | None) -> dict[int, str]:
    """Makes names distinct in any case: one that repeats another gets a number. Of columns without a name, those
    that the table has are ``column_3``, by their position."""
    count = max([*spelled, *(int(match[1]) - 1 for name in table or () if (match := _NUMBERED.match(name)))]) + 1
    every = own_names(number_names([spelled.get(number, "") for number in range(count)]), table or ())
    return {number: name for number, name in enumerate(every) if number in spelled or name in (table or ())}


def rows_after(blocks: Iterator[CellBlock], skipped: int) -> Iterator[CellBlock]:
    for block in blocks:
        start = int(np.searchsorted(block.rows, skipped, side="right"))
        if start < len(block.rows):
            yield block.slice(start, len(block.rows)) if start else block


def without_nulls(cells: CellColumn, dialect: Dialect) -> CellColumn:
    """Cells with no value where their text is one that means NULL."""
    is_null = pc.is_in(cells.texts, pa.array(dialect.nulls, pa.string())).to_numpy(zero_copy_only=False)
    is_null &= (cells.kinds == TEXT) | (cells.kinds == ERROR)
    if not is_null.any():
        return cells
    kinds = cells.kinds.copy()
    kinds[is_null] = EMPTY
    return CellColumn(kinds, cells.numbers, pc.if_else(pa.array(is_null), pa.scalar(None, pa.string()), cells.texts))


class _SheetConverter:
    """Converts blocks of a sheet to batches of a schema; without ``on_bad_row``, the first bad row is an error."""

    def __init__(self, sheet: Sheet, schema: pa.Schema, options: ReadOptions, on_bad_row: OnBadRow | None) -> None:
        self._sheet, self._schema, self._on_bad_row = sheet, schema, on_bad_row
        self._dialect, self._ignore_extra = options.dialect, options.ignore_extra
        self._cells: dict[int, CellColumn] = {}
        positions = pa.schema([(name, pa.int32()) for name in sheet.names.values()])
        find_casts: dict[str, FindCast] = {
            name: partial(self._find_cast, number) for number, name in sheet.names.items()
        }
        try:
            self._plan = plan_conform(
                positions, schema, defaults=options.defaults, find_casts=find_casts, checks=options.checks
            )
        except SchemaError as error:
            raise SchemaError(f"file {sheet.file!r}, sheet {sheet.name!r}: {error}", column=error.column) from None

    def convert(self, block: CellBlock, row: int) -> pa.RecordBatch:
        """The rows of a block, the first of which has this 1-based number."""
        try:
            return self._convert(block, row)
        except RowError:
            if self._on_bad_row is None:
                raise
        good = good_rows(
            len(block.rows),
            row,
            lambda start, stop: self._convert(block.slice(start, stop), row + start),
            lambda index: self._row_text(block.slice(index, index + 1)),
            self._on_bad_row,
        )
        return pa.concat_batches(good) if good else pa.RecordBatch.from_pylist([], self._schema)

    def _convert(self, block: CellBlock, row: int) -> pa.RecordBatch:
        """The rows of a block. Raises RowError for the first that does not fit."""
        try:
            self._sheet.check_names(block, row)
        except RowError as error:
            if error.row and error.row > row:  # a row above may have an earlier problem
                self._convert(block.slice(0, error.row - row), row)
            raise
        self._cells = {number: without_nulls(block.column(number), self._dialect) for number in self._sheet.names}
        positions = pa.array(np.arange(len(block.rows), dtype=np.int32))
        batch = pa.RecordBatch.from_arrays([positions] * len(self._cells), names=list(self._sheet.names.values()))
        try:
            return conform_batch(batch, self._plan, first_row=row)
        except RowError as error:
            index = (error.row or row) - row
            number = next((number for number, name in self._sheet.names.items() if name == error.column), None)
            if number is None:
                raise RowError(error.reason, file=self._sheet.file, row=error.row, column=error.column) from None
            raise self._sheet.row_error(error.reason, block, row, index, number) from None

    def _row_text(self, block: CellBlock) -> bytes:
        """A row as a JSON object of its cells' texts."""
        cells = {
            name: block.columns[number].as_text()[0].as_py()
            for number, name in self._sheet.names.items()
            if number in block.columns
        }
        return json.dumps(cells, ensure_ascii=False).encode(errors="replace")

    def _find_cast(self, number: int, _: pa.DataType, target: pa.DataType) -> Cast | None:
        cast = CellCast.of(target, self._dialect, self._ignore_extra)

        def cast_cells(positions: pa.Array) -> pa.Array:
            cells = self._cells[number]
            if len(positions) < len(cells.kinds):
                start = positions[0].as_py() if len(positions) else 0
                cells = cells.slice(start, start + len(positions))
            return cast(cells)

        return cast_cells


class CellCast(Struct, frozen=True):
    """Casts cells to a type of columns. ``parse_text`` and ``parse_number`` take text, or raise ``Misfit``."""

    target: pa.DataType
    parse_text: Callable[[pa.Array], pa.Array]
    parse_number: Callable[[pa.Array], pa.Array]

    @classmethod
    def of(cls, target: pa.DataType, dialect: Dialect, ignore_extra: bool) -> CellCast:
        """The cast for a column. Raises SchemaError if a cell cannot hold its values."""
        times = TimeFormat.of(dialect.timestamp_formats)
        parse = unparsed_cast(pa.string(), target, times, ignore_extra, empty_is_null=True)
        units = times is not None and times.digits is not None  # numbers of seconds since the epoch, or the like
        return cls(target, parse, parse if units or t.is_nested(target) else partial(_parse_alone, target=target))

    def __call__(self, cells: CellColumn) -> pa.Array:
        """The values; NULL for empty cells. Raises Misfit."""
        kinds = cells.kinds
        if (kinds == NOT_CALCULATED).any():
            raise Misfit(_NO_VALUE)
        if t.is_string(self.target):
            return cells.as_text()
        parts = [
            self._part(cells, mask, group)
            for group, mask in (
                ("text", (kinds == TEXT) | (kinds == ERROR)),
                ("number", kinds == NUMBER),
                ("other", (kinds != EMPTY) & (kinds != TEXT) & (kinds != ERROR) & (kinds != NUMBER)),
            )
            if mask.any()
        ]
        if not parts:
            return pa.nulls(len(kinds), self.target)
        return parts[0] if len(parts) == 1 else pc.coalesce(*parts)

    def _part(self, cells: CellColumn, mask: np.ndarray, group: str) -> pa.Array:
        """The values of one kind of cells, and NULL for the others."""
        absent = None if mask.all() else ~mask
        if group == "number" and (values := self._from_numbers(cells.numbers, absent)) is not None:
            return values
        if group == "other" and (values := self._from_others(cells, mask, absent)) is not None:
            return values
        texts = cells.as_text()
        if group == "number" and t.is_decimal(self.target):
            texts = pa.array([f"{number:.15g}" for number in cells.numbers.tolist()], pa.string())
        if absent is not None:
            texts = pc.if_else(pa.array(mask), texts, pa.scalar(None, pa.string()))
        if group == "text":
            return self.parse_text(texts)
        return self.parse_number(texts) if group == "number" else _parse_alone(texts, self.target)

    def _from_numbers(self, numbers: np.ndarray, absent: np.ndarray | None) -> pa.Array | None:
        """Numbers as floats or integers without a detour through text; None if that is not possible."""
        if not (t.is_floating(self.target) or t.is_integer(self.target)):
            return None
        values = pa.array(numbers, mask=absent)
        if t.is_floating(self.target):
            cast = values.cast(self.target, safe=False)
            return None if pc.any(pc.is_inf(cast)).as_py() else cast
        try:
            return values.cast(self.target)
        except pa.ArrowInvalid:
            return None

    def _from_others(self, cells: CellColumn, mask: np.ndarray, absent: np.ndarray | None) -> pa.Array | None:
        """Booleans and times without a detour through text; None if that is not possible."""
        found: list[int] = np.unique(cells.kinds[mask]).tolist()
        numbers = cells.numbers if absent is None else np.where(mask, cells.numbers, 0)
        make = None
        if t.is_date(self.target) and found == [DATE]:
            make = days_of(numbers)
        elif self.target == pa.timestamp("us") and set(found) <= {DATE, DATETIME}:
            make = moments_of(numbers)
        elif self.target == pa.time64("us") and found == [TIME]:
            make = times_of(numbers)
        elif t.is_boolean(self.target) and found == [BOOL]:
            make = pa.array(numbers != 0)
        if make is None or absent is None:
            return make
        return pc.if_else(pa.array(mask), make, pa.scalar(None, self.target))


def _parse_alone(texts: pa.Array, target: pa.DataType) -> pa.Array:
    if t.is_nested(target):
        raise Misfit(f"not a {target}, which is JSON in a cell of text")
    return parse_text(texts, target)
