"""Decides how the values of a CSV file are written, from what all of its columns prove.

One dialect holds for the whole file. What a column does not prove, or what contradicts another column, stays text, and
a note says so:

- **Numbers** of all columns have one decimal mark and one separator of groups. `1,5` proves that the comma is the
  decimal mark, `1,234,567` that it separates groups; `1,234` proves nothing, and follows the other columns. If columns
  contradict each other, those with a decimal point are numbers, and the others stay text. Without any proof `1.234` has
  a decimal point.
- **Booleans**: both texts of a pair, and nothing else.
- **Times**: each column proves its own pattern (see ``time_evidence``).
- **NULL**: a text such as `NA` is NULL if without it columns would not have their types, and no column has it as a
  value: else the columns that need it stay text. A column with nothing else has no value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from msgspec import Struct

from dolmen.base.records import replace
from dolmen.errors import short_repr
from dolmen.format.dialect import MAX_PATTERNS, THOUSANDS, Decimal, Dialect
from dolmen.ingest.formats.cell_notation import NumberNotation
from dolmen.ingest.formats.infer import TextShape
from dolmen.ingest.inference.column_evidence import NAN_TEXTS, PAIRS, ColumnEvidence
from dolmen.ingest.inference.time_evidence import TimeReading

__all__ = ["ColumnEvidence", "Values", "decide"]

_SURE = frozenset({"bool", "date", "timestamp", "zoned"})
_SIGNS_OF_BOTH = frozenset({".", ","})


class Values(Struct, frozen=True):
    """The notation of a file's values, and the types of its columns."""

    dialect: Dialect  # with what the columns prove
    schema: pa.Schema  # the types of the columns in this dialect
    # columns that stay text although they look like something else, and assumptions: a sentence each, for people
    notes: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()  # the content of the file that columns of these types do not hold


def decide(columns: Mapping[str, ColumnEvidence], dialect: Dialect, known: Mapping[str, Any]) -> Values:
    """Chooses how the values of a file are written.

    Args:
        columns: the evidence of each column, by its name, in the order of the file.
        dialect: in which the cells were found. What ``known`` does not name in it is decided here.
        known: attributes of the dialect that the user set.
    """
    texts: dict[str, str] = {}
    while True:
        choice = _Choice(columns, dialect, known, texts)
        contradictions = _null_contradictions(choice)
        if not contradictions:
            return choice.values()
        texts |= contradictions


class _Choice:
    """The types of the columns and their dialect, if the columns ``texts`` stay text (by name: the note that says why).

    ``types`` has the columns that are not text.
    """

    def __init__(
        self,
        columns: Mapping[str, ColumnEvidence],
        dialect: Dialect,
        known: Mapping[str, Any],
        texts: Mapping[str, str],
    ) -> None:
        self.columns, self.dialect, self.known = columns, dialect, known
        self.notes: dict[str, str] = dict(texts)
        self.types: dict[str, pa.DataType] = {}
        self.numbers: set[str] = set()
        open_columns = {name: one for name, one in columns.items() if name not in texts and not one.is_empty}
        self.types |= {name: one.shape.arrow_type for name, one in open_columns.items() if one.shape.kind in _SURE}
        open_columns = {name: one for name, one in open_columns.items() if name not in self.types}
        self._notation = self._choose_notation(open_columns)
        self._booleans = self._choose_booleans(open_columns)
        self._patterns = self._choose_patterns(open_columns)

    @property
    def nulls(self) -> set[str]:
        """The texts that columns need to be NULL."""
        return {text for name in self.types for text in self.null_texts(name)}

    def null_texts(self, name: str) -> set[str]:
        """The texts that a column needs to be NULL."""
        return self.columns[name].nulls - (NAN_TEXTS if name in self.numbers else set())

    def values(self) -> Values:
        dialect = replace(
            self.dialect,
            decimal=self._notation.decimal,
            thousands=self._notation.thousands,
            booleans=self.dialect.booleans + self._booleans,
            timestamp_formats=self.dialect.timestamp_formats + self._patterns,
            nulls=(*self.dialect.nulls, *sorted(self.nulls - set(self.dialect.nulls))),
        )
        schema = pa.schema([(name, self.types.get(name, pa.string())) for name in self.columns])
        notes = [self.notes[name] for name in self.columns if name in self.notes]
        for name, column in self.columns.items():
            if column.is_empty and column.nulls & self.nulls:
                notes.append(f"column {short_repr(name)} has nothing but {_words(column.nulls)}, which is NULL")
        return Values(dialect, schema, tuple(notes))

    def _stay_text(self, name: str, why: str) -> None:
        self.notes[name] = f"column {short_repr(name)} stays text: {why}"

    # -- numbers

    def _choose_notation(self, columns: Mapping[str, ColumnEvidence]) -> NumberNotation:
        """Chooses how numbers are written, and sets the types of their columns."""
        plain = NumberNotation(self.dialect.decimal, self.dialect.thousands)
        usable = {name: ways for name, one in columns.items() if (ways := self._usable_notations(one))}
        marked = {name: ways for name, ways in usable.items() if plain not in ways}
        decimal, is_proven = self._choose_decimal(columns, usable)
        if not is_proven:  # a sign that seems to group digits might be the decimal mark
            marked = {
                name: [one for one in ways if one.thousands not in _SIGNS_OF_BOTH] for name, ways in marked.items()
            }
        votes: dict[str, int] = {}
        for ways in marked.values():
            separators = {one.thousands for one in ways if one.decimal == decimal}
            for separator in separators if None not in separators else ():
                if separator is not None:
                    votes[separator] = votes.get(separator, 0) + 1
        thousands = max(votes, key=lambda one: (votes[one], -THOUSANDS.index(one)), default=plain.thousands)
        notation = NumberNotation(decimal, None if thousands == decimal else thousands)
        is_known = thousands in votes or "thousands" in self.known
        for name, one in columns.items():
            is_doubtful = not is_proven and name in marked and notation not in marked[name]
            if not is_doubtful and (kind := self._type(one, notation, is_known=is_known)) is not None:
                self.types[name] = kind
                self.numbers.add(name)
        for name, one in columns.items():
            if name not in self.types:
                self._note_numbers(name, one, usable.get(name, []), decimal, is_proven)
        return notation

    def _usable_notations(self, column: ColumnEvidence) -> list[NumberNotation]:
        """The notations in which all cells of a column are sure to be numbers of one type."""
        return [one for one in self._possible_notations(column) if self._type(column, one, is_known=False) is not None]

    def _possible_notations(self, column: ColumnEvidence) -> list[NumberNotation]:
        return [
            notation
            for notation in column.numbers.readings
            if ("decimal" not in self.known or notation.decimal == self.dialect.decimal)
            and ("thousands" not in self.known or notation.thousands == self.dialect.thousands)
        ]

    @staticmethod
    def _type(column: ColumnEvidence, notation: NumberNotation, *, is_known: bool) -> pa.DataType | None:
        """The type of a column as numbers; None if a cell is not a number, or groups of digits may be codes."""
        shape = column.numbers.shape(notation)
        if shape is None or not column.numbers.is_proven(notation, is_known=is_known):
            return None
        kind = (shape.join(TextShape("special")) if column.nulls & NAN_TEXTS else shape).arrow_type
        return None if pa.types.is_string(kind) else kind

    def _choose_decimal(
        self, columns: Mapping[str, ColumnEvidence], usable: Mapping[str, list[NumberNotation]]
    ) -> tuple[Decimal, bool]:
        """The decimal mark, and whether a column proves it, or the user gave it."""
        proofs = set()
        for name in usable:
            marks = {one.decimal for one in self._possible_notations(columns[name])}
            proofs |= marks if len(marks) == 1 else set()
        if "decimal" in self.known or len(proofs) != 1:
            return self.dialect.decimal, "decimal" in self.known or bool(proofs)
        return proofs.pop(), True

    def _note_numbers(
        self, name: str, column: ColumnEvidence, ways: list[NumberNotation], decimal: Decimal, is_proven: bool
    ) -> None:
        if not ways:
            if any(
                one.grouped and not column.numbers.is_proven(way, is_known=False)
                for way, one in column.numbers.readings.items()
            ):
                self._stay_text(name, "its digits are in groups of three, but so are those of codes")
            return
        marks = {one.decimal for one in self._possible_notations(column)}
        if len(marks) > 1 and (
            not is_proven or decimal not in marks or _SIGNS_OF_BOTH & {one.thousands for one in ways}
        ):
            self._stay_text(name, "'.' or ',' in it may be the decimal mark, or separate groups of three digits")
        elif decimal not in marks:
            other = marks.pop()
            self._stay_text(name, f"{other!r} is the decimal mark in it, but {decimal!r} in other columns")
        else:
            signs = {one.thousands for one in ways if one.decimal == decimal} - {None}
            self._stay_text(
                name, f"{_words(map(str, signs))} separates groups of digits in it, but not in other columns"
            )

    # -- Booleans

    def _choose_booleans(self, columns: Mapping[str, ColumnEvidence]) -> tuple[tuple[str, str], ...]:
        found = []
        own_pairs = {(true.lower(), false.lower()) for true, false in self.dialect.booleans}
        for pair in PAIRS:
            names = [name for name, one in columns.items() if name not in self.types and one.words == set(pair)]
            if names and (pair in own_pairs or "booleans" not in self.known):
                self.types |= dict.fromkeys(names, pa.bool_())
                found += [pair] if pair not in own_pairs else []
        return tuple(found)

    # -- times

    def _choose_patterns(self, columns: Mapping[str, ColumnEvidence]) -> tuple[str, ...]:
        found: dict[str, list[str]] = {}
        proven: dict[str, TimeReading] = {}
        for name, column in columns.items():
            readings = [] if name in self.types else self._time_readings(column)
            if len(readings) == 1:
                proven[name] = readings[0]
                found.setdefault(readings[0].pattern, []).append(name)
            elif readings:
                ways = " or ".join(one.pattern for one in readings)
                self._stay_text(name, f"it may be written as in {ways}: no value proves which")
        known = self.dialect.timestamp_formats
        taken: list[str] = []
        for pattern, names in found.items():
            others = [one for one in (*found, *known) if one != pattern and _looks_like(one) == _looks_like(pattern)]
            is_new = bool(pattern) and pattern not in known
            if others:
                why = f"it is written as in {pattern}, but another column as in {others[0]}"
            elif is_new and len(known) + len(taken) == MAX_PATTERNS:
                why = f"it is written as in {pattern}, but a table has at most {MAX_PATTERNS} time formats"
            else:
                taken += [pattern] if is_new else []
                for name in names:
                    self.types[name] = proven[name].target
                    if not pattern:
                        self.notes[name] = f"column {short_repr(name)}: hours and minutes are times of day"
                    if "%y" in pattern:
                        self.notes[name] = f"column {short_repr(name)}: two-digit years are those of 1969 to 2068"
                continue
            for name in names:
                self._stay_text(name, why)
        return tuple(taken)

    def _time_readings(self, column: ColumnEvidence) -> list[TimeReading]:
        """The patterns that a column may be written in; none if some cell is no value."""
        readings = column.times.readings
        if "timestamp_formats" in self.known:
            readings = [one for one in readings if one.pattern in ("", *self.dialect.timestamp_formats)]
        there = {one.pattern for one in readings}
        readings = [one for one in readings if "%B" not in one.pattern or one.pattern.replace("%B", "%b") not in there]
        return readings if all(one.holds for one in readings) else []


def _looks_like(pattern: str) -> str:
    """The same for patterns that the same text may match, as another day."""
    return re.sub("%[dmy]", "%d", pattern)


def _words(texts: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(texts)))


def _null_contradictions(choice: _Choice) -> dict[str, str]:
    """The columns that stay text because a text is NULL in them that is a value elsewhere, each with a note."""
    holders: dict[str, str] = {}
    for name, column in choice.columns.items():
        values = (
            column.nulls if name not in choice.types and not column.is_empty else column.nulls - choice.null_texts(name)
        )
        for text in values:
            holders.setdefault(text, name)
    contradictions: dict[str, str] = {}
    for name, kind in choice.types.items():
        for text in sorted(choice.null_texts(name)):
            why = ""
            if text in choice.dialect.nulls:
                why = f"{text!r} is in quotes, and so not NULL"
            elif "nulls" in choice.known:
                why = f"{text!r} is not given as NULL"
            elif text in holders:
                why = f"column {short_repr(holders[text])} has {text!r} as a value"
            if why:
                contradictions.setdefault(
                    name, f"column {short_repr(name)} stays text: it would be {kind} with {text!r} as NULL, but {why}"
                )
    return contradictions
