"""Patterns that say how times are written in text, such as ``%d/%m/%Y %H:%M:%S``. Pure.

======================  ==================================================================================
``%Y`` ``%y``           the year in four digits; in two, 69 to 99 being of the last century
``%m`` ``%b`` ``%B``    the month in one or two digits; its English name, cut to three letters or in full
``%d``                  the day, one or two digits
``%H`` ``%I`` ``%p``    the hour, one or two digits; of twelve, with AM or PM
``%M`` ``%S`` ``%f``    minute and second, one or two digits; the second's decimal places, one to six
``%z``                  the UTC offset: ``Z``, ``+0200`` or ``+02:00``
``%%``                  a percent sign
======================  ==================================================================================

Anything else stands for itself, and white space for any of it. Numbers next to digits have all of theirs: ``%Y%m%d`` is
eight digits, because ``2025115`` would be two dates.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dolmen.base.arguments import short_repr
from dolmen.errors import InputError

MAX_LENGTH = 200
"""Characters of a pattern."""

UNIT_DIGITS = {"epoch_s": 6, "epoch_ms": 3, "epoch_us": 0}
"""Names of formats that are numbers since the epoch: how many decimal places of the unit reach down to microseconds."""

MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_LONG_MONTHS = "january|february|march|april|may|june|july|august|september|october|november|december"
_DIRECTIVES = {
    "Y": r"(?P<Y>[0-9]{4})",
    "y": r"(?P<y>[0-9]{2})",
    "m": r"(?P<m>[0-9]{1,2})",
    "b": rf"(?P<b>(?i:{'|'.join(MONTHS)}))",
    "B": rf"(?P<B>(?i:{_LONG_MONTHS}))",
    "d": r"(?P<d>[0-9]{1,2})",
    "H": r"(?P<H>[0-9]{1,2})",
    "I": r"(?P<I>0?[1-9]|1[0-2])",
    "p": r"(?P<p>(?i:AM|PM))",
    "M": r"(?P<M>[0-9]{1,2})",
    "S": r"(?P<S>[0-9]{1,2})",
    "f": r"(?P<f>[0-9]{1,6})",
    "z": r"(?P<z>Z|[+-][0-9]{2}:?[0-9]{2})",
}
_TWO_DIGITS = {"m", "d", "H", "M", "S", "I"}
_BEGINS_WITH_DIGITS = re.compile("%[YymdHIMSf]|[0-9]")
_ENDS_WITH_DIGITS = re.compile("(%[YymdHIMSf]|[0-9])$")


@dataclass(frozen=True, slots=True)
class TimePattern:
    """A pattern that was understood.

    Args:
        regex: matches text of this pattern, with a group for each directive.
        directives: those in the pattern, without their percent signs.
    """

    regex: str
    directives: frozenset[str]


def parse_time_pattern(text: str) -> TimePattern:
    """The pattern that ``text`` says. Raises InputError when it makes no date, no time of day, and not both."""
    if len(text) > MAX_LENGTH:
        raise InputError(
            f"time format {short_repr(text)} has {len(text):,} characters: at most {MAX_LENGTH} are allowed"
        )
    directives: list[str] = []
    made: list[str] = []
    pieces = re.findall(r"%.?|\s+|[^%\s]+", text, re.DOTALL)
    for piece, before, after in zip(pieces, ["", *pieces], [*pieces[1:], ""], strict=False):
        if piece == "%%":
            made.append("%")
        elif not piece.startswith("%"):
            made.append(r"\s+" if piece.isspace() else re.escape(piece))
        elif piece[1:] not in _DIRECTIVES:
            known = ", ".join(f"%{directive}" for directive in _DIRECTIVES)
            raise InputError(f"time format {short_repr(text)}: {piece} is unknown; there are {known} and %%")
        elif piece[1:] in directives:
            raise InputError(f"time format {short_repr(text)}: {piece} is there twice")
        else:
            directives.append(piece[1:])
            made.append(_DIRECTIVES[piece[1:]])
            if piece[1:] in _TWO_DIGITS and (_ENDS_WITH_DIGITS.search(before) or _BEGINS_WITH_DIGITS.match(after)):
                made[-1] = made[-1].replace("{1,2}", "{2}").replace("0?", "0")
    there = frozenset(directives)
    _check(text, there)
    return TimePattern(f"^{''.join(made)}$", there)


def _check(text: str, there: frozenset[str]) -> None:
    """Raises InputError unless the directives make a date, a time of day, or both."""
    years, months, hours = there & set("Yy"), there & set("mbB"), there & set("HI")
    dated = len(years) == len(months) == 1 and "d" in there
    timed = len(hours) == 1 and "M" in there and ("I" in there) == ("p" in there) and ("f" not in there or "S" in there)
    if not there:
        raise InputError(
            f"time format {short_repr(text)}: iso, epoch_s, epoch_ms, epoch_us, or a pattern as in %d/%m/%Y %H:%M:%S"
        )
    if (not dated and (years or months or "d" in there)) or (not dated and "z" in there):
        raise InputError(f"time format {short_repr(text)}: a date has a year, a month and a day, each once")
    if not timed and there & set("HIpMSfz"):
        raise InputError(
            f"time format {short_repr(text)}: a time of day has %H, or %I and %p, then %M, and %S if it has %f"
        )
