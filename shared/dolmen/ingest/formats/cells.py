"""Parses cells: text of CSV and JSON strings as values of a declared type (docs/ingest.md, Values in text).

Arrow's parsers accept text that the rules do not: ``nan(1)``, an hour without minutes, the year 0. It is refused here.
Arrow's casts and parsers of decimals overflow without an error, so they only get text that cannot overflow.

If times have other formats (``TimeFormat``), text that is no such number, or matches none of the patterns, is read as
ISO 8601. If text matches several patterns, the first of them reads it or refuses it: otherwise the notation would
depend on the value. With a unit, timestamps may have decimal places down to microseconds. A pattern
with date and time of day applies to timestamps; one without time of day to dates, and to timestamps (at midnight); one
without a date to times of day. All other columns hold ISO 8601.
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from collections.abc import Callable
from decimal import Decimal
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from msgspec import Struct
from pyarrow import types as t

from dolmen.base import pc
from dolmen.base.units import DAY_US
from dolmen.format.dialect import MONTHS, UNIT_DIGITS, TimePattern, parse_time_pattern
from dolmen.format.types import TextKind, text_bytes, type_of
from dolmen.rows.write.casts import Cast, Misfit, short_value

_MOST_DIGITS = 38
_MAX_EXPONENT, _EXPONENT_DIGITS = 1000, 8
_PLAIN = r"^(?P<sign>[+-]?)0*(?P<whole>[0-9]*)\.?(?P<part>[0-9]*?)0*$"
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)$"
_WITH_EXPONENT = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][+-]?[0-9]+$"
_MARK_BYTES = 48
_SMALL_NUMBER = re.compile(rb"(?:^|[^0-9A-Za-z-])[-+]?[0-9.]+[eE]-$")
_STRING_OR_SMALL = re.compile(rb'"(?:[^"\\]|\\.)*"|(-?)((?:0|[1-9][0-9]*)(?:\.[0-9]+)?)[eE]-([0-9]+)')
_LOWER_CASE = 0x20
_BASE64 = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_FEWEST_ALIGNED = 64  # below, the fields of times are as fast as columns of bytes
_NUMBERS = frozenset("YymdHMSf")
_FULL_DIGITS = {"Y": 4} | dict.fromkeys("ymdHMS", 2)
_LAST_CENTURY = 69
_ISO = b"0000-00-00T00:00:00.000000"
_BEGINS = {"Y": 0, "y": 2, "m": 5, "d": 8, "H": 11, "M": 14, "S": 17, "f": 20}
_SURE_DIGITS = 15  # every double holds this many significant decimal digits


def native_decimal(target: pa.DataType) -> pa.DataType | None:
    """A decimal type to ask a parser for instead of ``target``, so that it cannot overflow; None: ask for text."""
    digits = min(target.precision, _MOST_DIGITS - target.scale)
    return pa.decimal128(digits, target.scale) if digits > 0 else None


def may_be_tiny(data: bytes) -> bool:
    """Whether there is a number with a negative exponent anywhere, which parsers might take for zero."""
    array = np.frombuffer(data, np.uint8)
    marks = np.flatnonzero((array[1:] == ord("-")) & (array[:-1] | _LOWER_CASE == ord("e"))) + 2
    return any(_SMALL_NUMBER.search(data[max(0, mark - _MARK_BYTES) : mark]) for mark in marks.tolist())


def write_out_tiny(lines: bytes) -> bytes:
    """Writes out the numbers in JSON with negative exponents, which parsers might take for zero."""
    return _STRING_OR_SMALL.sub(_write_out, lines)


def _write_out(match: re.Match[bytes]) -> bytes:
    if match[0].startswith(b'"'):
        return match[0]
    sign, mantissa, exponent = match[1], match[2], match[3].lstrip(b"0")
    if not mantissa.strip(b"0."):
        return sign + b"0"
    too_small = len(exponent) > _EXPONENT_DIGITS or int(exponent or b"0") > _MAX_EXPONENT
    number = Decimal((b"1e-%d" % _MAX_EXPONENT if too_small else mantissa + b"e-" + (exponent or b"0")).decode())
    return sign + format(number, "f").encode()


def parse_decimal(text: pa.Array, target: pa.DataType) -> pa.Array:
    """Trimmed text as decimals; NULL stays NULL. Raises Misfit."""
    if pc.all(pc.match_substring_regex(text, _NUMBER)).as_py() is False:
        text = _write_out_exponents(text)
    parts = pc.extract_regex(text, _PLAIN)
    sign, whole, part = (pc.struct_field(parts, name) for name in ("sign", "whole", "part"))
    if (pc.max(pc.binary_length(part)).as_py() or 0) > target.scale:
        raise Misfit("it needs rounding")
    if (pc.max(pc.binary_length(whole)).as_py() or 0) > max(target.precision - target.scale, 0):
        raise Misfit("too many digits")
    digits = pc.binary_join_element_wise(sign, "0", whole, pc.utf8_rpad(part, target.scale, "0"), "")
    unscaled = digits.cast(pa.decimal128(_MOST_DIGITS, 0)).cast(pa.decimal128(target.precision, 0))
    return pa.Array.from_buffers(target, len(unscaled), unscaled.buffers(), offset=unscaled.offset)


def changes_digits(text: pa.Array, floats: pa.Array) -> bool:
    """Whether a double, in its shortest notation, has other digits than the text that it was parsed from."""
    doubtful = pc.greater(pc.binary_length(text), _SURE_DIGITS)
    if may_have(text, b"eE"):
        doubtful = pc.or_(doubtful, pc.match_substring(text, "e", ignore_case=True))
    text, shortest = text.filter(doubtful), floats.filter(doubtful).cast(pa.string())
    others = pc.not_equal(text, shortest)  # few: most are written in their shortest notation
    text, shortest = text.filter(others), shortest.filter(others)
    return pc.all(pc.equal(_significant_digits(text), _significant_digits(shortest))).as_py() is False


def _significant_digits(text: pa.Array) -> pa.Array:
    """The digits of numbers, without leading and trailing zeros."""
    return pc.ascii_trim(pc.replace_substring_regex(text, r"^-|\.|[eE].*$", ""), "0")


def _write_out_exponents(text: pa.Array) -> pa.Array:
    """Writes out numbers with exponents, which are few. Raises Misfit for other text, and too large exponents."""
    scientific = pc.match_substring_regex(text, _WITH_EXPONENT)
    plain = pc.match_substring_regex(text, _NUMBER)
    if pc.all(pc.or_(scientific, plain)).as_py() is False:
        raise Misfit("not a number")
    written = []
    for number in text.filter(scientific).to_pylist():
        exponent = number.lower().partition("e")[2]
        if len(exponent) > _EXPONENT_DIGITS or abs(int(exponent)) > _MAX_EXPONENT:
            raise Misfit("too large an exponent")
        written.append(format(Decimal(number), "f"))
    return pc.replace_with_mask(text, pc.fill_null(scientific, False), pa.array(written, pa.string()))


Parse: TypeAlias = Callable[[pa.Array], pa.Array]
_EXACT_INTEGER = pa.decimal128(38, 0)
_HOUR_ALONE = "[T ][0-9]{2}([Z+-]|$)"
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
"""The first day of year 1 and the last of 9999, in days since 1970: the range of Python, and of ISO 8601."""


def join_strings(strings: pa.Array) -> pa.Buffer:
    """The bytes of all strings, one after the other; none is NULL."""
    return pa.py_buffer(text_bytes(strings)[0])


def may_have(text: pa.Array, signs: bytes) -> bool:
    """Whether one of these ASCII characters may be in some text: far cheaper than to look into each."""
    data = join_strings(text).to_pybytes()
    return any(data.find(sign) >= 0 for sign in signs)


def _may_lack_minutes(text: pa.Array) -> bool:
    """Whether the byte after the hour, in some text that is longer than a date, is no colon."""
    data, bounds = text_bytes(text)
    starts = bounds[:-1][np.diff(bounds) > len("2025-01-31")]
    after = data.take(starts + len("2025-01-31T13"), mode="clip")
    return bool((after != ord(":")).any())


def text_cast(target: pa.DataType, *, empty_is_null: bool, parse: Parse | None = None) -> Cast:
    """The cast from strings to ``target``, which is not string itself.

    Args:
        empty_is_null: whether blank text is NULL. In a binary column, an empty cell in quotes is not NULL: it has zero
            bytes.
        parse: turns trimmed text into values of ``target``, or raises ``Misfit``; None: ``parse_text`` does.
    """

    def cast(array: pa.Array) -> pa.Array:
        text = pc.ascii_trim_whitespace(array)
        if empty_is_null:
            blank = pc.equal(text, "")
            if t.is_binary(target):
                blank = pc.and_(blank, pc.not_equal(array, ""))
            text = pc.if_else(blank, pa.scalar(None, pa.string()), text)
        return parse(text) if parse else parse_text(text, target)

    return cast


def precision_check(target: pa.DataType) -> Cast | None:
    """The check of values that pyarrow parsed to ``target``: its CSV and JSON parsers accept 1000 as decimal(5, 2)."""
    if not t.is_decimal(target):
        return None
    wide = pa.decimal128(38, target.scale)

    def check(values: pa.Array) -> pa.Array:
        try:
            return values.cast(wide).cast(target)
        except pa.ArrowInvalid:
            raise Misfit("too many digits") from None

    return check


def parse_text(text: pa.Array, target: pa.DataType) -> pa.Array:
    """Trimmed text as values of a type without children; NULL stays NULL.

    Raises Misfit if some text is not a value of this type, with a reason if there is only one text.
    """
    column_type = type_of(target)
    assert column_type is not None, target
    assert column_type.text is not None, target
    try:
        return PARSERS[column_type.text](text, target)
    except (pa.ArrowInvalid, Misfit):
        raise Misfit(_explain_misfit(text[0].as_py(), target) if len(text) == 1 else "") from None


def _parse_time(text: pa.Array, target: pa.DataType) -> pa.Array:
    moments = _cast_timestamp(pc.binary_join_element_wise("1970-01-01", text, "T"), pa.timestamp("us"))
    return moments.cast(target)


def _parse_integer(text: pa.Array, target: pa.DataType) -> pa.Array:
    if may_have(text, b"xX") and pc.any(pc.match_substring(text, "x", ignore_case=True)).as_py():
        raise Misfit("hexadecimal")  # Arrow would take 0x1F for 31
    try:
        return text.cast(target)
    except pa.ArrowInvalid:
        return parse_decimal(text, _EXACT_INTEGER).cast(target)


def _parse_float(text: pa.Array, target: pa.DataType) -> pa.Array:
    if may_have(text, b"(") and pc.any(pc.match_substring(text, "(")).as_py():
        raise Misfit("NaN with a payload")  # Arrow would take nan(1) for NaN
    values = text.cast(target)
    infinite = text.filter(pc.is_inf(values))
    if pc.all(pc.match_substring(infinite, "inf", ignore_case=True)).as_py() is False:
        raise Misfit("overflow")  # Arrow would take 1e400 for infinity
    return values


def check_years(values: pa.Array) -> pa.Array:
    """Returns dates or timestamps unchanged. Raises Misfit unless all lie within the years 1 to 9999, UTC."""
    unit = pa.int32() if t.is_date(values.type) else pa.int64()
    ends = pc.min_max(values.view(unit)).as_py()
    scale = 1 if t.is_date(values.type) else DAY_US
    if ends["min"] is not None and (ends["min"] < FIRST_DAY * scale or ends["max"] >= (LAST_DAY + 1) * scale):
        raise Misfit("not within the years 1 to 9999")
    return values


def _cast_timestamp(text: pa.Array, target: pa.DataType) -> pa.Array:
    if _may_lack_minutes(text) and pc.any(pc.match_substring_regex(text, _HOUR_ALONE)).as_py():
        raise Misfit("an hour without minutes")  # Arrow would take 01 for 01:00
    try:
        return text.cast(target)
    except pa.ArrowInvalid:
        return pc.replace_substring_regex(text, r"(\.\d{6})0+", r"\1").cast(target)


PARSERS: dict[TextKind, Callable[[pa.Array, pa.DataType], pa.Array]] = {
    "string": lambda text, target: text.cast(target),
    "bool": lambda text, target: text.cast(target),
    "integer": _parse_integer,
    "float": _parse_float,
    "decimal": parse_decimal,
    "date": lambda text, target: check_years(text.cast(target)),
    "time": _parse_time,
    "timestamp": lambda text, target: check_years(_cast_timestamp(text, target)),
    "base64": lambda text, target: _decode_base64(text).cast(target),
}
"""How trimmed text is parsed, by the kind of its grammar (``ColumnType.text``). JSON: see ``json_values``."""


def _explain_misfit(text: str, target: pa.DataType) -> str:
    reason = f"{short_value(text)} is not a valid {target}"
    if t.is_timestamp(target):
        other = pa.timestamp("us", None if target.tz else "UTC")
        try:
            _cast_timestamp(pa.array([text]), other)
        except pa.ArrowInvalid:
            return reason
        return f"{reason}: it has no UTC offset" if target.tz else f"{reason}: it has a UTC offset"
    if t.is_integer(target) or t.is_decimal(target):
        try:
            pa.array([text]).cast(pa.float64())
        except pa.ArrowInvalid:
            return reason
        return f"{reason}: it does not fit without loss"
    return reason


def _decode_base64(text: pa.Array) -> pa.Array:
    """Binary values of base64 strings (RFC 4648, section 4, padded). Raises Misfit."""
    if pc.all(pc.match_substring_regex(text, _BASE64)).as_py() is False:
        raise Misfit("not base64")
    return pa.array([None if value is None else a2b_base64(value) for value in text.to_pylist()], pa.binary())


_SECONDS = pa.decimal128(32, 6)  # seconds to the microsecond, with more digits than any year needs

NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"


class TimeFormat(Struct, frozen=True):
    """The formats of times beside ISO 8601: ``digits`` since the epoch (``UNIT_DIGITS``), or as in ``patterns``."""

    name: str
    digits: int | None = None
    patterns: tuple[TimePattern, ...] = ()

    @staticmethod
    @cache
    def of(names: tuple[str, ...]) -> TimeFormat | None:
        """The formats of these names; None for ISO 8601 alone. Raises InputError for any other name."""
        if not names:
            return None
        if len(names) == 1 and names[0] in UNIT_DIGITS:
            return TimeFormat(names[0], UNIT_DIGITS[names[0]])
        return TimeFormat(" or ".join(names), None, tuple(map(parse_time_pattern, names)))

    @property
    def zoned(self) -> TimeFormat | None:
        """Those of its patterns that have a UTC offset; None if there is none."""
        patterns = tuple(each for each in self.patterns if "z" in each.directives)
        return TimeFormat(self.name, None, patterns) if patterns else None

    def parser(self, target: pa.DataType) -> Parse | None:
        """A function from trimmed text to values of ``target``; None if these formats are not for that type."""
        if self.digits is not None:
            numbers: Callable[[pa.Array], pa.Array] = partial(_parse_numbers, digits=self.digits, target=target)
            return partial(self._parse, [(NUMBER, numbers)], target) if t.is_temporal(target) else None
        patterns = [each for each in self.patterns if _applies(each, target)]
        return partial(self._parse_patterns, patterns, target) if patterns else None

    def parser_type(self, target: pa.DataType) -> pa.DataType | None:
        """The number type to ask a parser for instead of ``target``; None if values are no numbers."""
        if self.digits is None or not t.is_temporal(target):
            return None
        return _SECONDS if t.is_timestamp(target) and self.digits == _SECONDS.scale else pa.int64()

    def number_cast(self, source: pa.DataType, target: pa.DataType) -> Cast | None:
        """The cast from numbers to ``target``; None if ``source`` is not a number or ``target`` not a time."""
        if self.digits is None or not t.is_temporal(target) or not (t.is_integer(source) or t.is_decimal(source)):
            return None
        return partial(_cast_numbers, digits=self.digits, target=target)

    def _parse_patterns(self, patterns: list[TimePattern], target: pa.DataType, text: pa.Array) -> pa.Array:
        if (parsed := parse_aligned(text, patterns[0], target)) is not None:
            return parsed
        ways: list[tuple[str, Parse]] = [
            (each.regex, partial(parse_matches, pattern=each, target=target)) for each in patterns
        ]
        return self._parse(ways, target, text)

    def _parse(self, ways: list[tuple[str, Parse]], target: pa.DataType, text: pa.Array) -> pa.Array:
        """Parses text by the first of the ways whose regular expression it matches, else as ISO 8601."""
        nothing = pa.scalar(None, pa.string())
        parsed: list[pa.Array] = []
        for regex, parse in ways:
            matches = pc.match_substring_regex(text, regex)
            if pc.all(matches).as_py():
                return pc.coalesce(*parsed, parse(text))
            if pc.any(matches).as_py():
                parsed.append(parse(pc.if_else(matches, text, nothing)))
                text = pc.if_else(matches, nothing, text)
        return pc.coalesce(*parsed, self._iso(text, target))

    def _iso(self, text: pa.Array, target: pa.DataType) -> pa.Array:
        try:
            return parse_text(text, target)
        except Misfit as misfit:
            raise Misfit(f"{misfit}, nor does it match {self.name}" if str(misfit) else "") from None


def _applies(pattern: TimePattern, target: pa.DataType) -> bool:
    if t.is_timestamp(target):
        return "d" in pattern.directives
    if t.is_date(target):
        return not pattern.directives & set("HI")
    return bool(t.is_time(target)) and "d" not in pattern.directives


def parse_aligned(text: pa.Array, pattern: TimePattern, target: pa.DataType) -> pa.Array | None:
    """Parses text if all of it matches a pattern with all digits in the same columns; None if it does not."""
    if text.null_count and len(text) > text.null_count:
        parsed = parse_aligned(text.drop_null(), pattern, target)
        is_valid = pc.is_valid(text)
        indices = pc.subtract(pc.cumulative_sum(is_valid.cast(pa.int64())), 1)
        return None if parsed is None else parsed.take(pc.if_else(is_valid, indices, None))
    has_date, has_clock = "d" in pattern.directives, bool(pattern.directives & set("HI"))
    zone = "Z" if t.is_timestamp(target) and target.tz else ""
    clock = not t.is_date(target) and (has_clock or bool(zone))
    iso = _write_as_iso(text, pattern, date=has_date, clock=clock, end=zone)
    try:
        return None if iso is None else parse_text(iso, target)
    except Misfit:
        return None


def _write_as_iso(text: pa.Array, pattern: TimePattern, *, date: bool, clock: bool, end: str) -> pa.Array | None:
    """Rewrites text of a pattern as ISO 8601; None if not all of it has one layout. Does not check the digits.

    If the result is valid, all of the text matches the pattern: the digits of each field are in the same columns.

    Args:
        date, clock: whether the date, and the time of day, is wanted.
        end: follows each time.
    """
    if len(text) < _FEWEST_ALIGNED or text.null_count or pattern.directives - _NUMBERS:
        return None
    data, bounds = text_bytes(text)
    width = int(bounds[1] - bounds[0])
    first = re.fullmatch(pattern.regex, text[0].as_py())
    if first is None or (np.diff(bounds) != width).any() or len(first[0].encode()) != len(first[0]):
        return None
    spans = {name: first.span(name) for name in pattern.directives}
    if any(end - begin != _FULL_DIGITS.get(name, end - begin) for name, (begin, end) in spans.items()):
        return None
    rows = data.reshape(len(text), width)
    digits = {column for span in spans.values() for column in range(*span)}
    if any((rows[:, column] != rows[0, column]).any() for column in set(range(width)) - digits):
        return None  # another layout of as many characters
    begin, stop = 0 if date else 11, 26 if "f" in spans else 19
    template = _ISO[begin : stop if clock else 10] + end.encode()
    written = np.empty((len(text), len(template)), np.uint8)
    written[:] = np.frombuffer(template, np.uint8)
    for name, (start, end_) in spans.items():
        at = _BEGINS[name] - begin
        if 0 <= at < len(template) - len(end):
            written[:, at : at + end_ - start] = rows[:, start:end_]
    if date and "y" in spans:
        tens, ones = (rows[:, column].astype(np.int16) - ord("0") for column in range(*spans["y"]))
        is_last = tens * 10 + ones >= _LAST_CENTURY
        written[:, 0], written[:, 1] = np.where(is_last, ord("1"), ord("2")), np.where(is_last, ord("9"), ord("0"))
    ends = np.arange(0, len(template) * (len(text) + 1), len(template), dtype=np.int32)
    return pa.StringArray.from_buffers(len(text), pa.py_buffer(ends), pa.py_buffer(written))


def parse_matches(text: pa.Array, pattern: TimePattern, target: pa.DataType) -> pa.Array:
    """Parses text that matches the regular expression of a pattern; NULL stays NULL. Raises Misfit."""
    if (parsed := parse_aligned(text, pattern, target)) is not None:
        return parsed
    fields = pc.extract_regex(text, pattern.regex)
    part = {name: pc.struct_field(fields, name) for name in pattern.directives}
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
        why = ": it has a UTC offset" if "z" in pattern.directives and not getattr(target, "tz", None) else ""
        raise Misfit(f"{short_value(text[0].as_py())} is not a valid {target}{why}" if len(text) == 1 else "") from None


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
    if t.is_date(target):
        digits, low, high = 0, FIRST_DAY, LAST_DAY
    elif t.is_time(target):
        low, high = 0, DAY_US - 1
    else:
        low, high = FIRST_DAY * DAY_US, (LAST_DAY + 1) * DAY_US - 1
    try:
        if t.is_decimal(numbers.type):
            exact = numbers.cast(pa.decimal128(32, digits))  # keeps every decimal place that matters
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
