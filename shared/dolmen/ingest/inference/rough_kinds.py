"""Rough kinds of cells: enough to see whether a dialect's columns make sense, and which row names them.

What a column's type is, the whole column decides later (``column_evidence``). Here a text that a person would call a
number or a date is one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

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
TYPED = ("number", "date", "time", "boolean")
"""Kinds that a name of a column is not of."""

_MESS = {"\t": 0.9, "\x01": 0.9, "|": 0.6, ";": 0.5, ",": 0.35, ":": 0.15, "=": 0.1, '"': 0.25}
"""How much a sign in an unquoted cell speaks for its being a delimiter, or a quote."""


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
    """How much a cell makes sense: 1 for a value of a kind, less if it looks like several fields, or half of one."""
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


@dataclass(frozen=True, slots=True)
class ColumnKind:
    """The kind of a column's cells: that of nearly all that are not null; ``text`` if there is none, or it is mixed."""

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
