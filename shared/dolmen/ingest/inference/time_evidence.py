"""Finds the patterns in which the cells of a column are dates, timestamps or times of day, other than ISO 8601.

The first cell shows which patterns are possible; each cell may rule some out. A pattern is out if a month or a day is
out of range in it: so `31/01/2025` proves that the day comes first. If only one pattern remains, and all cells are
values in it, the column is proven. A cell that would be a day of a month that has none (`31/04/2025`) proves nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

import pyarrow as pa

from dolmen.base import pc
from dolmen.format.dialect import TimePattern, parse_time_pattern
from dolmen.ingest.formats.cells import parse_aligned, parse_matches, parse_text
from dolmen.rows.write.casts import Misfit

NAIVE, ZONED, TIME = pa.timestamp("us"), pa.timestamp("us", tz="UTC"), pa.time64("us")
_NAMES = (
    "January|February|March|April|May|June|July|August|September|October|November|December"
    "|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
)
_FORM = re.compile(
    rf"""(?ix)
    (?:
        (?P<numbers> (?P<first>[0-9]{{4}}|[0-9]{{1,2}}) (?P<sign>[./-])
            [0-9]{{1,2}} (?P=sign) (?P<last>[0-9]{{4}}|[0-9]{{1,2}}) )
      | (?P<day_first> [0-9]{{1,2}} (?P<sign2>[-/.\ ]) (?:{_NAMES}) (?P=sign2) (?P<year2>[0-9]{{4}}|[0-9]{{2}}) )
      | (?P<name_first> (?:{_NAMES}) \ [0-9]{{1,2}} (?P<comma>,?) \ [0-9]{{4}} )
      | (?P<year_first> [0-9]{{4}} (?P<sign3>[-/.\ ]) (?:{_NAMES}) (?P=sign3) [0-9]{{1,2}} )
      | (?P<compact> [0-9]{{8}} (?=T[0-9]{{6}}) )
    )?
    (?P<joint> ,?\ |T|: )?
    (?:
        (?: (?P<hour>[0-9]{{1,2}}) : [0-9]{{2}} | (?P<hours>[0-9]{{4}}) )
        (?P<seconds> :?[0-9]{{2}} (?P<fraction>\.[0-9]{{1,6}})? )?
        (?P<half> (?P<space>\ ?) [AP]M )?
        (?P<zone> (?P<gap>\ ?) (?P<offset> UTC|GMT|Z|[+-][0-9]{{2}}:?[0-9]{{2}} ) )?
    )?
    """
)  # fmt: skip
_CLOCK = "^[0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,6})?)?$"  # times of day that are ISO 8601
_ISO_MOMENT = "^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]+)?)?(Z|[+-][0-9]{2}(:?[0-9]{2})?)?$"
ISO_DATE = "%Y-%m-%d"
_SAMPLE_ROWS = 1000


@dataclass(slots=True)
class TimeReading:
    """A pattern that all cells of a column match, with months and days in range; "" for times of day in ISO 8601."""

    pattern: str
    target: pa.DataType  # the type of its values
    holds: bool = True  # whether all cells are values

    @property
    def parsed(self) -> TimePattern:
        return _parse_pattern(self.pattern)

    @property
    def regex(self) -> str:
        """Matches text of the pattern, its minutes and seconds with two digits, and single spaces.

        With the year first, periods separate months and days of two digits: `2025.1.2` is a version.
        """
        if not self.pattern:
            return _CLOCK
        names = "mdMS" if self.pattern.startswith("%Y.") else "MS"
        return re.sub(rf"(\(\?P<[{names}]>\[0-9\])\{{1,2\}}", r"\1{2}", self.parsed.regex).replace(r"\s+", " ")


_parse_pattern = cache(parse_time_pattern)


class TimeEvidence:
    """The patterns of times that the cells of one column leave possible."""

    def __init__(self) -> None:
        self._readings: list[TimeReading] | None = None
        self._kinds: set[str] = set()

    @property
    def is_out(self) -> bool:
        return self._readings == []

    def observe_iso(self, kind: str) -> None:
        """Adds cells that are all of a kind by ``infer``: they are in ISO 8601, or no times."""
        self._kinds.add(kind)
        if self._kinds != {"date"}:
            self._readings = []

    def observe(self, text: pa.Array) -> None:
        """Adds cells: trimmed, none blank."""
        if self._readings is None:
            self._readings = possible_readings(text[0].as_py())
        if not self._readings:
            return
        if len(text) > _SAMPLE_ROWS and len(pc.unique(text[:_SAMPLE_ROWS])) < _SAMPLE_ROWS // 2:
            text = pc.unique(text)
        self._readings = [reading for reading in self._readings if _check(reading, text)]

    @property
    def readings(self) -> list[TimeReading]:
        """The patterns that remain. None, if all cells are ISO 8601."""
        if not self._readings:
            return []
        return [one for one in self._readings if not self._kinds or one.pattern == ISO_DATE]


def possible_readings(text: str) -> list[TimeReading]:
    """The patterns that a cell may be written in."""
    if re.fullmatch(_CLOCK[1:-1], text):
        return [TimeReading("", TIME)]
    form = _FORM.fullmatch(text)
    if not form:
        return []
    dates, clock = _dates(form), _clock(form)
    if clock is None or (form["joint"] is not None) != (bool(dates) and clock != ""):
        return []
    if not dates:
        return [TimeReading(clock, TIME)] if form["half"] and not form["zone"] else []
    target = pa.date32() if not clock else ZONED if form["zone"] else NAIVE
    return [TimeReading(date + (form["joint"] or "") + clock, target) for date in dates]


def _dates(form: re.Match[str]) -> list[str]:
    """The patterns of the date in a cell; none if there is no date."""
    if form["compact"]:
        return ["%Y%m%d"]
    if form["numbers"]:
        sign, first, last = form["sign"], form["first"], form["last"]
        if len(first) > 2:
            return [sign.join(("%Y", "%m", "%d"))] if len(last) <= 2 else []
        if len(last) > 2:
            return [sign.join(order) for order in (("%d", "%m", "%Y"), ("%m", "%d", "%Y"))]
        return [sign.join(order) for order in (("%d", "%m", "%y"), ("%m", "%d", "%y"), ("%y", "%m", "%d"))]
    if form["day_first"]:
        year, sign = "%y" if len(form["year2"]) == 2 else "%Y", form["sign2"]
        return [sign.join(("%d", month, year)) for month in ("%b", "%B")]
    if form["name_first"]:
        return [f"{month} %d{form['comma']} %Y" for month in ("%b", "%B")]
    if form["year_first"]:
        return [form["sign3"].join(("%Y", month, "%d")) for month in ("%b", "%B")]
    return []


def _clock(form: re.Match[str]) -> str | None:
    """The pattern of the time of day in a cell; "" if there is none, None if it is none of those known."""
    if not (form["hour"] or form["hours"]):
        return "" if not form["seconds"] else None
    if form["hours"]:
        if not form["compact"] or not form["seconds"] or form["half"]:
            return None
        clock = "%H%M%S"
    else:
        clock = ("%I" if form["half"] else "%H") + ":%M" + (":%S" if form["seconds"] else "")
        if form["compact"] or (form["seconds"] and not form["seconds"].startswith(":")):
            return None
    clock += ".%f" if form["fraction"] else ""
    if form["half"]:
        clock += form["space"] + "%p"
    if form["zone"]:
        offset = form["offset"]
        clock += form["gap"] + ("%z" if offset == "Z" or offset[0] in "+-" else offset)
    return clock


def _check(reading: TimeReading, text: pa.Array) -> bool:
    """Whether cells do not rule a pattern out; notes in it whether all of them are values."""
    if not re.fullmatch(reading.regex, text[0].as_py()):
        return False
    is_aligned = bool(reading.pattern) and parse_aligned(text, reading.parsed, reading.target) is not None
    if not is_aligned and pc.all(pc.match_substring_regex(text, reading.regex)).as_py() is False:
        return False
    may_be_iso = reading.pattern.startswith(ISO_DATE) and reading.target != pa.date32()
    if may_be_iso and pc.any(pc.match_substring_regex(text, _ISO_MOMENT)).as_py():
        return False  # as if a block had only such
    if is_aligned:
        return True
    try:
        if reading.pattern:
            parse_matches(text, reading.parsed, reading.target)
        else:
            parse_text(text, reading.target)
    except Misfit:
        reading.holds = False
        return not reading.pattern or _is_in_range(reading, text)
    return True


def _is_in_range(reading: TimeReading, text: pa.Array) -> bool:
    """Whether all months and days are in range under a pattern, even if there is no such day."""
    fields = pc.extract_regex(text, reading.parsed.regex)
    for name, last in (("m", 12), ("d", 31)):
        if name in reading.parsed.directives:
            ends = pc.min_max(pc.struct_field(fields, name).cast(pa.int8()))
            if ends["min"].as_py() < 1 or ends["max"].as_py() > last:
                return False
    return True
