"""Parses numbers, Booleans and times of CSV in notations that ``cells`` does not know.

Numbers with another decimal mark, or with groups of digits, are rewritten and then parsed as any other: `1.234,5` with
decimal mark `,` and groups separated by `.` is `1234.5`. A text with a mark must be such a number: with the decimal
mark `,`, `1.5` is refused even if `.` separates groups, because `5` is not a group of three digits. So is a number with
groups that begins with a zero (`0.123`) or lacks a separator (`1234.567`).
"""

from __future__ import annotations

import re
from functools import cache, partial

import pyarrow as pa
from msgspec import Struct
from pyarrow import types as t

from dolmen.base import pc
from dolmen.format.dialect import Decimal, Dialect
from dolmen.format.types import type_of
from dolmen.ingest.formats.cells import Parse, TimeFormat, parse_text
from dolmen.rows.write.casts import Misfit, short_value

_EXPONENT = "(?:[eE][+-]?[0-9]+)?"


class NumberNotation(Struct, frozen=True):
    """The decimal mark, and what may separate groups of three digits; None: nothing."""

    decimal: Decimal = "."
    thousands: str | None = None

    def __str__(self) -> str:
        groups = "nothing separates" if self.thousands is None else f"{self.thousands!r} separates"
        return f"the decimal mark is {self.decimal!r}, and {groups} groups of three digits"

    @property
    def marks(self) -> list[str]:
        """Characters that only numbers contain, in this notation or in a wrong one."""
        return list(dict.fromkeys([".", ",", self.thousands or "."]))

    @property
    def regex(self) -> str:
        """Matches the numbers, except infinity and NaN."""
        point = re.escape(self.decimal)
        whole = "[0-9]+" if self.thousands is None else f"(?:[0-9]+|{self.groups})"
        return f"^[+-]?(?:{whole}(?:{point}[0-9]*)?|{point}[0-9]+){_EXPONENT}$"

    @property
    def groups(self) -> str:
        """Matches the groups of a number that has several."""
        return f"[1-9][0-9]{{0,2}}(?:{re.escape(self.thousands or '')}[0-9]{{3}})+"

    def rewrite(self, text: pa.Array) -> pa.Array:
        """Trimmed text with each number as ``cells`` reads it; NULL stays NULL. Raises Misfit for other marks."""
        there = [mark for mark in self.marks if pc.any(pc.match_substring(text, mark)).as_py()]
        if not there:
            return text
        if not set(there) <= {self.decimal, self.thousands}:
            raise Misfit(str(self))
        if self.thousands in there:
            matches = pc.match_substring_regex(text, self.regex)
            others = text.filter(pc.invert(matches))
            if pc.any(pc.match_substring_regex(others, f"[{re.escape(''.join(self.marks))}]")).as_py():
                raise Misfit(str(self))
            text = pc.replace_substring(text, self.thousands, "")
        return pc.replace_substring(text, self.decimal, ".") if self.decimal != "." else text

    def parse(self, text: pa.Array, target: pa.DataType) -> pa.Array:
        """Trimmed text as values of a type of numbers. Raises Misfit, with a reason if there is only one text."""
        found = short_value(text[0].as_py()) if len(text) == 1 else ""
        try:
            plain = self.rewrite(text)
        except Misfit as misfit:
            raise Misfit(f"{found} is not a valid {target}: {misfit}" if found else "") from None
        try:
            return parse_text(plain, target)
        except Misfit as misfit:
            reason = str(misfit).replace(short_value(plain[0].as_py()), found, 1) if found else ""
            raise Misfit(reason) from None


PLAIN_NUMBERS = NumberNotation()


class CellNotation(Struct, frozen=True):
    """A dialect's rules for the values in cells of CSV."""

    numbers: NumberNotation | None = None  # how numbers are written; None: as in ``cells``
    # pairs of texts that are true and false, in lower case, beside ``true`` and ``false``
    booleans: tuple[tuple[str, str], ...] = ()
    times: TimeFormat | None = None  # how times are written; None: ISO 8601 alone

    @staticmethod
    @cache
    def of(dialect: Dialect) -> CellNotation:
        numbers = NumberNotation(dialect.decimal, dialect.thousands)
        booleans = tuple((true.lower(), false.lower()) for true, false in dialect.booleans)
        times = TimeFormat.of(dialect.timestamp_formats)
        return CellNotation(None if numbers == PLAIN_NUMBERS else numbers, booleans, times)

    def parser(self, target: pa.DataType) -> Parse | None:
        """A function from trimmed text to numbers or Booleans of ``target``; None if ``cells`` parses it."""
        if self.numbers is not None and _is_number(target):
            return partial(self.numbers.parse, target=target)
        return self.parse_booleans if self.booleans and t.is_boolean(target) else None

    def may_be_native(self, target: pa.DataType) -> bool:
        """Whether a parser that knows nothing of this notation but the decimal mark misreads no value."""
        if _is_number(target):
            return self.numbers is None or self.numbers.thousands is None
        return not (self.booleans and t.is_boolean(target))

    @property
    def decimal(self) -> Decimal:
        return "." if self.numbers is None else self.numbers.decimal

    def are_booleans(self, text: pa.Array) -> bool:
        """Whether all text is one of the pairs', or ``true`` or ``false``."""
        words = [word for pair in self.booleans for word in pair]
        return bool(pc.all(pc.is_in(pc.utf8_lower(text), pa.array([*words, "true", "false"]))).as_py())

    def parse_booleans(self, text: pa.Array) -> pa.Array:
        """Trimmed text as Booleans. Raises Misfit, with a reason if there is only one text."""
        words = [word for pair in self.booleans for word in pair]
        known = pc.index_in(pc.utf8_lower(text), pa.array(words, pa.string()))
        if known.null_count < len(known):
            values = pc.take(pa.array([True, False] * len(self.booleans)), known)
            text = pc.if_else(pc.is_valid(known), pa.scalar(None, pa.string()), text)
            return pc.coalesce(values, parse_text(text, pa.bool_()))
        return parse_text(text, pa.bool_())


def _is_number(target: pa.DataType) -> bool:
    column_type = type_of(target)
    return column_type is not None and column_type.text in ("integer", "float", "decimal")
