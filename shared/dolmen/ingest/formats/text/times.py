"""How times are written in text where it is not ISO 8601: numbers since the epoch, or a pattern.

ISO 8601 (see ``text``) is always understood beside these: what is no number, or does not match the pattern, is read so.

``epoch_s``, ``epoch_ms``, ``epoch_us``
    Timestamps are numbers of seconds, milliseconds or microseconds since 1970-01-01T00:00:00 UTC (in a column without
    a zone: in no zone), and may have decimal places as far as microseconds reach. Dates are numbers of days since
    then, times of day are numbers of these units since midnight: that is what Debezium writes.

a pattern, such as ``%d/%m/%Y %H:%M:%S`` (format/time_pattern.py)
    Anything else stands for itself, and white space for any of it. A pattern with date and time of day is that of
    timestamps; one without time of day that of dates, and of timestamps, which are their midnights; one without a
    date that of times of day. All other columns hold ISO 8601. Without ``%z``, a column with a zone is in UTC; with it,
    values fit no column without a zone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from dolmen.base.units import DAY_US
from dolmen.format.ingest_properties import MONTHS, UNIT_DIGITS, parse_time_pattern
from dolmen.ingest.formats.text.cells import FIRST_DAY, LAST_DAY, Parse, parse_text
from dolmen.rows.write.casts import Cast, Misfit, short_value

_SECONDS = pa.decimal128(32, 6)
"""Seconds to the microsecond, with more digits than there are years for."""

NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"


@dataclass(frozen=True, slots=True)
class TimeFormat:
    """A time format that was understood.

    Args:
        name: as it was given.
        digits: of numbers since the epoch, see ``UNIT_DIGITS``; None for a pattern.
        pattern: as a regular expression, a group for each directive.
        directives: those in the pattern.
    """

    name: str
    digits: int | None = None
    pattern: str = ""
    directives: frozenset[str] = frozenset()

    @staticmethod
    def of(name: str | None) -> TimeFormat | None:
        """The format of this name; None for ISO 8601 alone. Raises InputError if there is none."""
        return None if name is None or name == "iso" else _time_format(name)

    @property
    def has_zone(self) -> bool:
        """Whether values say their UTC offset."""
        return "z" in self.directives

    def parser(self, target: pa.DataType) -> Parse | None:
        """How trimmed text becomes values of ``target``; None if this format says nothing of that type."""
        if self.digits is not None:
            numbers: Callable[[pa.Array], pa.Array] = partial(_parse_numbers, digits=self.digits, target=target)
            return partial(self._parse, NUMBER, numbers, target) if t.is_temporal(target) else None
        if t.is_timestamp(target):
            applies = "d" in self.directives
        elif t.is_date(target):
            applies = not self.directives & set("HI")
        else:
            applies = t.is_time(target) and "d" not in self.directives
        return partial(self._parse, self.pattern, partial(self._match, target=target), target) if applies else None

    def parser_type(self, target: pa.DataType) -> pa.DataType | None:
        """The type of number to ask a parser for instead of ``target``; None if values are no numbers."""
        if self.digits is None or not t.is_temporal(target):
            return None
        return _SECONDS if t.is_timestamp(target) and self.digits == _SECONDS.scale else pa.int64()

    def number_cast(self, source: pa.DataType, target: pa.DataType) -> Cast | None:
        """The cast from numbers to ``target``; None if ``source`` is no number or ``target`` no time."""
        if self.digits is None or not t.is_temporal(target) or not (t.is_integer(source) or t.is_decimal(source)):
            return None
        return partial(_cast_numbers, digits=self.digits, target=target)

    def _parse(self, pattern: str, parse: Parse, target: pa.DataType, text: pa.Array) -> pa.Array:
        """Text by ``parse`` where it matches ``pattern``, and by ISO 8601 elsewhere."""
        matches = pc.match_substring_regex(text, pattern)
        if pc.all(matches).as_py():
            return parse(text)
        if not pc.any(matches).as_py():
            return self._iso(text, target)
        nothing = pa.scalar(None, pa.string())
        some, others = pc.if_else(matches, text, nothing), pc.if_else(matches, nothing, text)
        return pc.coalesce(parse(some), self._iso(others, target))

    def _iso(self, text: pa.Array, target: pa.DataType) -> pa.Array:
        try:
            return parse_text(text, target)
        except Misfit as misfit:
            raise Misfit(f"{misfit}, nor is it as in {self.name}" if str(misfit) else "") from None

    def _match(self, text: pa.Array, target: pa.DataType) -> pa.Array:
        """Text that matches the pattern."""
        found = pc.extract_regex(text, self.pattern)
        part = {name: pc.struct_field(found, name) for name in self.directives}
        pieces: list[Any] = []
        if "d" in part:
            pieces = [_year(part), "-", _month(part), "-", _two(part["d"])]
        if not t.is_date(target) and (pieces == [] or part.keys() & set("HI")):
            pieces += ["T"] if pieces else []
            pieces += [_hour(part), ":", _two(part["M"]), ":", _two(part["S"]) if "S" in part else "00"]
            pieces += [".", pc.utf8_rpad(part["f"], 6, "0")] if "f" in part else []
            pieces += [part["z"]] if "z" in part else ["Z"] if t.is_timestamp(target) and target.tz else []
        elif t.is_timestamp(target):
            pieces += ["T00:00:00Z"] if target.tz else []
        try:
            return parse_text(pc.binary_join_element_wise(*pieces, ""), target)
        except Misfit:
            why = ": it has a UTC offset" if self.has_zone and not getattr(target, "tz", None) else ""
            raise Misfit(
                f"{short_value(text[0].as_py())} is not a valid {target}{why}" if len(text) == 1 else ""
            ) from None


@cache
def _time_format(name: str) -> TimeFormat:
    if name in UNIT_DIGITS:
        return TimeFormat(name, UNIT_DIGITS[name])
    pattern = parse_time_pattern(name)
    return TimeFormat(name, None, pattern.regex, pattern.directives)


def _parse_numbers(text: pa.Array, digits: int, target: pa.DataType) -> pa.Array:
    try:
        try:
            numbers = text.cast(pa.int64())
        except pa.ArrowInvalid:
            numbers = parse_text(text, _SECONDS)
        return _cast_numbers(numbers, digits, target)
    except (pa.ArrowInvalid, Misfit) as error:
        reason = str(error) if isinstance(error, Misfit) else ""
        if len(text) == 1 and not reason:
            reason = f"{short_value(text[0].as_py())} is not a valid {target}"
        raise Misfit(reason) from None


def _cast_numbers(numbers: pa.Array, digits: int, target: pa.DataType) -> pa.Array:
    """Numbers since the epoch as times."""
    if t.is_date(target):
        digits, low, high = 0, FIRST_DAY, LAST_DAY
    elif t.is_time(target):
        low, high = 0, DAY_US - 1
    else:
        low, high = FIRST_DAY * DAY_US, (LAST_DAY + 1) * DAY_US - 1
    try:
        if t.is_decimal(numbers.type):
            exact = numbers.cast(pa.decimal128(32, digits))  # as many decimal places as count: none is lost
            whole = pa.Array.from_buffers(pa.decimal128(38, 0), len(exact), exact.buffers(), offset=exact.offset)
            values = whole.cast(pa.int64())
        else:
            values = pc.multiply_checked(numbers.cast(pa.int64()), 10**digits)
    except pa.ArrowInvalid:
        raise _misfit(numbers, target, "it does not fit without loss") from None
    within = pc.and_(pc.greater_equal(values, low), pc.less_equal(values, high))
    if pc.all(within).as_py() is False:
        why = "not within a day" if t.is_time(target) else "not within the years 1 to 9999"
        raise _misfit(numbers, target, f"{why}; is it in another unit?")
    return values.cast(pa.int32()).cast(target) if t.is_date(target) else values.cast(target)


def _misfit(numbers: pa.Array, target: pa.DataType, why: str) -> Misfit:
    return Misfit(f"{numbers[0]} is not a valid {target}: {why}" if len(numbers) == 1 else "")


def _two(digits: pa.Array) -> pa.Array:
    return pc.utf8_lpad(digits, 2, "0")


def _year(part: dict[str, pa.Array]) -> pa.Array:
    if "Y" in part:
        return part["Y"]
    last = pc.greater_equal(part["y"], "69")
    return pc.binary_join_element_wise(pc.if_else(last, "19", "20"), part["y"], "")


def _month(part: dict[str, pa.Array]) -> pa.Array:
    if "m" in part:
        return _two(part["m"])
    name = pc.utf8_slice_codeunits(pc.ascii_lower(part.get("b", part.get("B"))), 0, 3)
    number = pc.add(pc.index_in(name, pa.array(MONTHS)), 1)
    return _two(number.cast(pa.string()))


def _hour(part: dict[str, pa.Array]) -> pa.Array:
    if "H" in part:
        return _two(part["H"])
    twelve = part["I"].cast(pa.int8())
    hour = pc.if_else(pc.equal(twelve, 12), pa.scalar(0, pa.int8()), twelve)
    later = pc.equal(pc.ascii_lower(part["p"]), "pm")
    return _two(pc.if_else(later, pc.add(hour, pa.scalar(12, pa.int8())), hour).cast(pa.string()))
