"""Whether the first record of a table names its columns, from the rough kinds of the cells below it.

What a column's type is, the whole column decides later (``value_decision``). Here a text that a person would call a
number or a date counts as one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from msgspec import Struct

_MONTH = r"(?i:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_DATE = (
    rf"(?:\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}|\d{{1,2}}[-/.]\d{{1,2}}[-/.](?:\d{{4}}|\d{{2}})"
    rf"|\d{{1,2}}[ -]{_MONTH}\.?[ ,-]+\d{{2,4}}|{_MONTH}\.?[ ]\d{{1,2}},?[ ]\d{{4}})"
)
_TIME = r"\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:[ ]?[AaPp]\.?[Mm]\.?)?"
_KINDS = re.compile(
    rf"""
    (?P<null>null|NULL|None|NONE|none|NA|N/A|n/a|\#N/A|nan|NaN|NAN|nil|\\N|-|--|\?|\(null\)|''|)$
  | (?P<number>[-+(]?\ ?[$€£]?\ ?[-+]?(?:\d+(?:[.]\d*)?|[.]\d+|\d{{1,3}}(?:[,'\u00a0\u202f\ ]\d{{3}})+(?:[.]\d+)?)
       (?:[eE][-+]?\d+)?\ ?[%€$]?\)?$)
  | (?P<commanumber>[-+]?(?:\d+|\d{{1,3}}(?:[.\u00a0\u202f\ ]\d{{3}})+),\d+\ ?[%€$]?$
       |[-+]?\d{{1,3}}(?:\.\d{{3}}){{2,}}$)
  | (?P<infinity>[-+]?(?:inf|Inf|INF|infinity|Infinity)$)
  | (?P<date>{_DATE}$)
  | (?P<time>{_TIME}$)
  | (?P<timestamp>{_DATE}(?:[T ]|,\ ){_TIME}(?:,\d{{3}})?\ ?(?:Z|UTC|GMT|[-+]\d{{2}}:?\d{{2}}|[-+]\d{{2}})?$)
  | (?P<boolean>(?i:true|false|yes|no|t|f|y|n)$)
  | (?P<url>[a-z][a-z0-9+.-]{{1,20}}://[^\s"<>]+$)
  | (?P<email>[^\s@,;|"<>()]+@[^\s@,;|"<>()]+\.[A-Za-z]{{2,}}$)
  | (?P<address>\d{{1,3}}(?:\.\d{{1,3}}){{3}}(?:[:/]\d+)?$|[0-9A-Fa-f]{{2}}(?:[:-][0-9A-Fa-f]{{2}}){{5}}$
       |(?=.*::|(?:.*:){{7}})[0-9A-Fa-f:]{{3,39}}$)
  | (?P<json>[\[{{].*[\]}}]$)
  | (?P<word>[\w.+\-]+$)
  | (?P<phrase>[^\s,;|\t\x01:"=][^,;|\t\x01"=]*$)
    """,
    re.VERBOSE,
)
_GROUPS = {"commanumber": "number", "infinity": "number", "timestamp": "date"}
_TEXTS = {"url", "email", "address", "json", "word", "phrase", "text"}
TYPED = ("number", "date", "time", "boolean")  # kinds that the name of a column cannot have

_MESS = {"\t": 0.9, "\x01": 0.9, "|": 0.6, ";": 0.5, ",": 0.35, ":": 0.15, "=": 0.1, '"': 0.25}
"""How strongly a sign in an unquoted cell suggests that it is a delimiter, or a quote."""


@lru_cache(maxsize=65_536)
def kind_of_cell(text: str) -> str:
    """The kind of a cell: ``null``, one of ``TYPED``, or ``text``."""
    found = _found(text)
    return "text" if found in _TEXTS else _GROUPS.get(found, found)


def form_of_text(text: str) -> str:
    """The form of a text: ``url``, ``email``, ``address``, ``json``, ``word``, ``phrase`` or ``text``."""
    return _found(text)


@lru_cache(maxsize=65_536)
def quality_of_cell(text: str, quoted: bool, delimiter: str) -> float:
    """How plausible a cell is: 1 for a value of a kind, less if it looks like several fields, or half of one."""
    found = _found(text)
    if found == "commanumber":
        return 0.3 if delimiter == "," and not quoted else 1.0
    if found not in _TEXTS or found in ("url", "email", "address"):
        return 1.0
    if quoted or found == "word":
        return 0.97
    quality = 0.95
    if found == "phrase" and " " in text:
        tokens = text.split()
        if sum(token[0] in "+-.0123456789" and is_number(token) for token in tokens) > len(tokens) / 2:
            return 0.5
    if found == "json":
        return 0.93
    if found == "text":
        for sign, weight in _MESS.items():
            if sign in text:
                # In sentences, a space follows a comma, a semicolon or a colon.
                is_prose = sign in ",;:" and text.count(sign) == text.count(sign + " ")
                quality -= weight * (0.5 if is_prose else 1)
    if text[0].isspace() or text[-1].isspace():
        quality -= 0.1
    return max(quality, 0.05)


def _found(text: str) -> str:
    text = text.strip()
    if len(text) > 256:
        return "json" if text[0] in "[{" and text[-1] in "]}" else "text"
    match = _KINDS.match(text)
    return "text" if match is None else match.lastgroup or "text"


class ColumnKind(Struct, frozen=True):
    """The kind of a column's cells: that of nearly all that are not null; ``text`` if mixed, or if all are null."""

    kind: str
    share: float
    values: int

    @classmethod
    def of(cls, cells: Sequence[str]) -> ColumnKind:
        kinds = Counter(kind_of_cell(cell) for cell in cells)
        kinds.pop("null", None)
        total = sum(kinds.values())
        if not total:
            return cls("null", 1.0, 0)
        kind, count = kinds.most_common(1)[0]
        if kind == "boolean" and 2 * len({cell.strip().lower() for cell in cells}) > len(cells) + 4:
            kind = "text"
        return cls(kind if count >= 0.9 * total else "text", count / total, total)


def is_number(text: str) -> bool:
    return kind_of_cell(text) == "number"


@lru_cache(maxsize=65_536)
def shape_of(text: str) -> str:
    """Letters, digits and other signs of a text as one of each: ``AB-12`` is ``A-9``."""
    shape = re.sub(r"[0-9]+", "9", text[:64])
    shape = re.sub(r"[^\W\d_]*[^\W\d_A-Z][^\W\d_]*", "a", shape)
    return re.sub(r"[A-Z]+", "A", shape)


_FEWEST_VALUES = 3  # fewer values, or rows, show nothing
_FEWEST_TELLING = 2  # as many values, or years among the names, suffice if their form is unmistakable
_MOST_COLUMNS = 100  # the most columns of a table that are weighed
_YEAR = re.compile("(?:18|19|20)[0-9]{2}")
_FORMS = {"url", "email", "address", "json"}


class HeaderEvidence(Struct, frozen=True):
    """Whether there is a header, and how sure that is.

    ``proven``: the cells show it; ``likely``: most of them do; ``assumed``: nothing speaks for either.
    """

    header: bool
    certainty: Literal["proven", "likely", "assumed"]

    def choices(self, first: str) -> list[tuple[bool, str | None]]:
        """Whether there is a header, with a note if nothing proves it; then the contrary, too.

        Args:
            first: what notes call the first record, as in ``line 1``.
        """
        if self.certainty == "proven":
            return [(self.header, None)]
        if self.certainty == "likely":
            if self.header:
                return [(True, f"{first} is taken for the header, as most columns show (--no-header if it is a row)")]
            return [(False, f"{first} is taken for a row, as most columns show (--header if it is the header)")]
        is_header = (True, f"{first} is assumed to be the header: nothing proves it (--no-header if it is a row)")
        is_row = (False, f"{first} is assumed to be a row: nothing proves that it is the header (--header if it is)")
        return [is_header, is_row] if self.header else [is_row, is_header]


def find_header(first: Sequence[str], rows: Sequence[Sequence[str]]) -> HeaderEvidence:
    """Weighs a first record against the ones below, which have as many cells.

    Without evidence, texts are taken for names if none is empty or repeated (as DuckDB does), and all else for a row.
    """
    names = [cell.strip() for cell in first]
    named = [name.lower() for name in names if name]
    typed = [name for name in names if _kind_of_name(name) in TYPED]
    may_be_names = len(named) == len(names) == len(set(named)) and len(typed) < len(names)
    may_be_names &= all(map(_YEAR.fullmatch, typed))
    if not rows:
        return HeaderEvidence(may_be_names, "assumed")
    yes = no = 0.0
    is_above, is_alike = False, False
    for number in range(0, len(names), max(1, len(names) // _MOST_COLUMNS)):
        name = names[number]
        below = [row[number] for row in rows]
        pro, contra = _weigh(name, below)
        yes, no = yes + pro, no + contra
        kind = ColumnKind.of(below)
        own = kind_of_cell(name)
        is_above |= pro >= 1 and kind.kind in TYPED
        is_alike |= own == kind.kind and own in TYPED
    no += 0.5 * (len(set(named)) < len(named))
    if (years := _are_series(names, rows)) and yes + no:
        yes, no = yes + years, 0.0
    if is_above and not is_alike:  # whatever the columns of text look like
        return HeaderEvidence(True, "proven" if no <= yes / 4 else "likely")
    if not named or yes == no == 0:
        if len(rows) > _FEWEST_VALUES and all(_kind_of_name(cell) not in TYPED for cell in rows[0]):
            under = find_header(first, rows[1:])  # units may be between names and values
            if under.header and under.certainty == "proven":
                return under
        return HeaderEvidence(may_be_names and bool(named), "assumed")
    if yes > no:
        certain = yes >= 1 and no <= yes / 4
        return HeaderEvidence(True, "proven" if certain else "likely")
    if may_be_names and no < 0.5:
        return HeaderEvidence(True, "assumed")
    return HeaderEvidence(False, "proven" if no >= 1 and yes <= no / 4 else "likely")


def _kind_of_name(name: str) -> str:
    """The kind of a cell that may be a name; a letter is one, though it may stand for true or false."""
    return "text" if len(name) == 1 and name.isalpha() else kind_of_cell(name)


def _weigh(name: str, below: list[str]) -> tuple[float, float]:
    """The evidence in a column for, and against, its first cell being its name."""
    kind = ColumnKind.of(below)
    if not name:
        return 0.0, 0.0
    if not kind.values:
        is_value = _kind_of_name(name) in ("number", "date", "time", "null") and not _YEAR.fullmatch(name)
        return 0.0, 0.7 if is_value else 0.0
    own = kind_of_cell(name) if kind.kind == "boolean" else _kind_of_name(name)
    if kind.kind in TYPED:
        if own == kind.kind or own == "null":
            return 0.0, 1.0 if own == kind.kind else 0.5
        if own == "text":
            is_word = any(map(str.isalpha, name))  # as 1/2 is not
            return (1.0 if kind.share > 0.99 and is_word else 0.7), 0.0
        return 0.3, 0.0
    if own in ("number", "date", "time"):
        return 0.0, 0.0 if _YEAR.fullmatch(name) else 0.7
    values = [cell.strip() for cell in below if cell.strip()]
    if name in values:
        return 0.0, 1.0
    forms = {form_of_text(value) for value in values}
    if len(values) >= _FEWEST_TELLING and len(forms) == 1 and forms <= _FORMS:
        return (0.0, 1.0) if form_of_text(name) in forms else (1.0, 0.0)
    if len(values) < _FEWEST_VALUES:
        return 0.0, 0.0
    shapes = {shape_of(value) for value in values}
    if len(shapes) == 1:
        (shape,) = shapes
        same = shape_of(name) == shape
        if shape in ("a", "A"):
            lengths = {len(value) for value in values}
            if len(lengths) == 1 and len(values) > _FEWEST_VALUES:
                return (0.6, 0.0) if len(name) not in lengths else (0.0, 0.1)
            return (0.3, 0.0) if not same else (0.0, 0.0)
        return (0.6, 0.0) if not same else (0.0, 0.6 if any(sign.isdigit() for sign in name) else 0.2)
    return 0.0, 0.0


def _are_series(names: list[str], rows: Sequence[Sequence[str]]) -> float:
    """The evidence for a header in years among the names, in equal steps and above figures that are not years."""
    numbers = [name for name in names if name.isdigit() and len(name) == 4 and name[:2] in ("18", "19", "20")]
    if len(numbers) < _FEWEST_TELLING or any(is_number(name) and name not in numbers for name in names):
        return 0.0
    steps = {int(after) - int(before) for before, after in pairwise(numbers)}
    if len(steps) > 1 or 0 in steps:
        return 0.0
    places = [number for number, name in enumerate(names) if name in numbers]
    for row in rows[:20]:
        cells = [row[place] for place in places]
        if all(cell.isdigit() and len(cell) == 4 for cell in cells):
            return 0.0
    return 2.0
