"""The dialect of a file: what its bytes mean beyond the format. A table's properties hold it (``ingest_quote``, ...).

Each format looks at its own settings and ignores the others. docs/ingest.md describes them for users; the readers of
``dolmen.ingest.formats`` follow them strictly, and ``dolmen.ingest.inference`` finds them for a file.

A pattern of times such as ``%d/%m/%Y %H:%M:%S`` is made of:

======================  ==================================================================================
``%Y`` ``%y``           the year in four digits; in two, 69 to 99 being of the last century
``%m`` ``%b`` ``%B``    the month in one or two digits; its English name, cut to three letters or in full
``%d``                  the day, one or two digits
``%H`` ``%I`` ``%p``    the hour, one or two digits; of twelve, with AM or PM
``%M`` ``%S`` ``%f``    minute and second, one or two digits; the second's decimal places, one to six
``%z``                  the UTC offset: ``Z``, ``+0200`` or ``+02:00``
``%%``                  a percent sign
======================  ==================================================================================

Anything else is literal, and white space matches any of it. Numbers next to digits have all of theirs: ``%Y%m%d`` is
eight digits, because ``2025115`` would be two dates.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from msgspec import Struct

from dolmen.errors import InputError, short_repr
from dolmen.format.properties import Property, by_name, parse_choice, parse_flag, parse_words, value_of

Encoding = Literal[
    "utf-8", "utf-16", "utf-16le", "utf-16be", "utf-32", "utf-32le", "utf-32be", "windows-1252", "latin-1"
]
Ragged = Literal["reject", "fill"]
ColumnNames = Literal["strict", "number"]
Decimal = Literal[".", ","]

MAX_LENGTH = 200  # characters of a pattern
UNIT_DIGITS = {"epoch_s": 6, "epoch_ms": 3, "epoch_us": 0}
"""Names of formats that are numbers since the epoch, with the decimal places of the unit that microseconds have."""
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

_TIME_FORMATS = "iso, epoch_s, epoch_ms, epoch_us, or a pattern as in %d/%m/%Y %H:%M:%S"
_TWO_DIGITS = {"m", "d", "H", "M", "S", "I"}
_BEGINS_WITH_DIGITS = re.compile("%[YymdHIMSf]|[0-9]")
_ENDS_WITH_DIGITS = re.compile("(%[YymdHIMSf]|[0-9])$")


class TimePattern(Struct, frozen=True):
    """A parsed pattern."""

    regex: str  # matches text of this pattern, with a group for each directive
    directives: frozenset[str]  # those in the pattern, without their percent signs


def parse_time_pattern(text: str) -> TimePattern:
    """Parses a pattern. Raises InputError unless its directives make a date, a time of day, or both."""
    what = f"time format {short_repr(text)}"
    if len(text) > MAX_LENGTH:
        raise InputError(f"{what} has {len(text):,} characters: at most {MAX_LENGTH} are allowed")
    directives: list[str] = []
    regex: list[str] = []
    pieces = re.findall(r"%.?|\s+|[^%\s]+", text, re.DOTALL)
    for piece, before, after in zip(pieces, ["", *pieces], [*pieces[1:], ""], strict=False):
        directive = piece[1:]
        if piece == "%%":
            regex.append("%")
        elif not piece.startswith("%"):
            regex.append(r"\s+" if piece.isspace() else re.escape(piece))
        elif directive not in _DIRECTIVES:
            listed = ", ".join(f"%{each}" for each in _DIRECTIVES)
            raise InputError(f"{what}: {piece} is unknown; there are {listed} and %%")
        elif directive in directives:
            raise InputError(f"{what}: {piece} is there twice")
        else:
            directives.append(directive)
            regex.append(_DIRECTIVES[directive])
            if directive in _TWO_DIGITS and (_ENDS_WITH_DIGITS.search(before) or _BEGINS_WITH_DIGITS.match(after)):
                regex[-1] = regex[-1].replace("{1,2}", "{2}").replace("0?", "0")
    used = frozenset(directives)
    years, months, hours = used & set("Yy"), used & set("mbB"), used & set("HI")
    has_date = len(years) == len(months) == 1 and "d" in used
    has_time = len(hours) == 1 and "M" in used and ("I" in used) == ("p" in used)
    if not used:
        raise InputError(f"{what}: {_TIME_FORMATS}")
    if not has_date and used & set("YymbBdz"):
        raise InputError(f"{what}: a date has a year, a month and a day, each once")
    if not (has_time and ("f" not in used or "S" in used)) and used & set("HIpMSfz"):
        raise InputError(f"{what}: a time of day has %H, or %I and %p, then %M, and %S if it has %f")
    return TimePattern(f"^{''.join(regex)}$", used)


class Dialect(Struct, frozen=True):
    """How the values of a file are written. The defaults are what the strict readers take."""

    encoding: Encoding = "utf-8"  # of text. A byte order mark is skipped, and none contradicts it.
    # what separates the fields of CSV and TSV, one ASCII character; None: comma or tab, by the format
    delimiter: str | None = None
    # the character around fields of CSV that hold delimiters or line ends; None: no field is quoted, and every
    # character means itself
    quote: str | None = '"'
    # the character after which a character of CSV means itself; None: quotes in quoted fields are doubled
    escape: str | None = None
    # lines of CSV that begin with this text, outside quoted fields, are skipped; None: no line is
    comment: str | None = None
    skip_lines: int = 0  # how many lines of CSV, or rows of a sheet, come before the header, or the first record
    # whether the first record of CSV, or the first row of a sheet, names the columns. Without it, the fields of a
    # record are the table's columns in their order.
    header: bool = True
    # ``number``: a column without a name in the header is ``column_3`` by its position, and a name that is there
    # already gets a number (``name_2``); ``strict``: both are refused
    names: ColumnNames = "strict"
    # ``fill``: the fields that a record of CSV lacks at its end are NULL; ``reject``: it is a bad row
    ragged: Ragged = "reject"
    # whether spaces at the ends of a field of CSV, and around its quotes, are not part of it
    trim: bool = False
    # unquoted fields of CSV that are NULL. A blank field is NULL except in columns of strings.
    nulls: tuple[str, ...] = ("",)
    decimal: Decimal = "."  # the decimal mark of numbers in CSV
    thousands: str | None = None  # what may stand between groups of three digits in numbers of CSV; None: nothing
    # pairs of texts of CSV that are true and false, in any case; ``true`` and ``false`` always are
    booleans: tuple[tuple[str, str], ...] = ()
    # how times are written in text, beside ISO 8601, which is always understood: ``epoch_s``, ``epoch_ms`` or
    # ``epoch_us`` alone, or patterns; the first that fits is taken
    timestamp_formats: tuple[str, ...] = ()
    # where rows of JSON are: ``lines``: one object in each line; ``values``: objects one after the other or in arrays,
    # however they are laid out; else the path of names to a list of objects, as in ``detail.items``, in each object of
    # the file
    json_rows: str = "lines"
    sheet: str | None = None  # the sheet of a workbook; None: its only one that has rows

    @classmethod
    def of(cls, properties: Mapping[str, Any]) -> Dialect:
        """The dialect that a table's properties set. Raises InputError for a value that can't be read."""
        values = {name: value_of(each, properties) for name, each in DIALECT_ATTRIBUTES.items()}
        dialect = cls(**values)
        dialect.check()
        return dialect

    def properties(self) -> dict[str, Any]:
        """The properties that make it: those that differ from the defaults, as ``of`` reads them."""
        return {
            property.name: _as_property(getattr(self, attribute))
            for attribute, property in DIALECT_ATTRIBUTES.items()
            if getattr(self, attribute) != getattr(STRICT, attribute)
        }

    def check(self) -> None:
        """Raises InputError for settings that contradict each other."""
        signs = {"delimiter": self.delimiter, "quote": self.quote, "escape": self.escape}
        if self.comment is not None:
            signs["comment"] = self.comment[0]
        if self.quote is None and self.escape is None:  # then no number can hold a delimiter
            signs |= {"decimal": self.decimal, "thousands": self.thousands}
        found: dict[str, str] = {}
        for name, sign in signs.items():
            if sign is None:
                continue
            if self.delimiter is None and sign in (",", "\t") and name in ("quote", "escape", "comment"):
                what = f"{_setting(name)}: {sign!r} separates fields of CSV or TSV unless another sign does"
                raise InputError(f"{what}: set {_setting('delimiter')}, too")
            if sign in found and {found[sign], name} != {"quote", "escape"}:
                raise InputError(f"{_setting(found[sign])} and {_setting(name)} cannot both be {sign!r}")
            found.setdefault(sign, name)
        if self.trim and " " in (self.delimiter, self.quote, self.escape):
            raise InputError(f"{_setting('trim')} cannot be true while another setting gives a space a meaning")
        if self.thousands == self.decimal:
            raise InputError(f"{_setting('decimal')} and {_setting('thousands')} cannot both be {self.decimal!r}")
        for pair in self.booleans:
            if pair[0].lower() == "false" or pair[1].lower() == "true":
                raise InputError(f"{_setting('booleans')}: {'/'.join(pair)!r}: true is always true, and false is false")
            if both := sorted({*pair} & {*self.nulls}):
                raise InputError(f"{_setting('booleans')} and {_setting('nulls')} cannot both have {both[0]!r}")


STRICT = Dialect()  # the dialect of tables whose properties set nothing else


def _as_property(value: Any) -> Any:
    """A setting as a property holds it."""
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return ["/".join(each) if isinstance(each, tuple) else each for each in value]
    return "tab" if value == "\t" else "space" if value == " " else value


MAX_TEXT = 200  # characters of a text that is NULL, of a path and of a field's name
MAX_NULLS, MAX_PATTERNS, MAX_BOOLEANS = 100, 10, 10
MAX_COMMENT, MAX_SKIPPED = 8, 1_000_000
THOUSANDS = (",", ".", "'", "_", " ", "\N{NO-BREAK SPACE}", "\N{NARROW NO-BREAK SPACE}")


def _parse_sign(what: str, *, may_be_none: bool = True, taken: str = "\r\n\0") -> Callable[[Any], str | None]:
    def parse(value: Any) -> str | None:
        if may_be_none and value == "none":
            return None
        if value in ("tab", "\t"):
            return "\t"
        if value == "space":
            return " "
        if not isinstance(value, str) or len(value) != 1 or not value.isascii() or value in taken:
            no = "no line end" if '"' not in taken else "no quote or line end"
            raise InputError(f"{value!r} is not {what}: one ASCII character, but {no}, or 'tab'")
        return value

    return parse


def _refuse_letter(what: str, more: str = "") -> Callable[[str | None], None]:
    def refuse(value: str | None) -> None:
        if value is not None and (value.isalnum() or value in more):
            raise InputError(f"{value!r} is not {what}: values are written with it")

    return refuse


def _parse_comment(value: Any) -> str | None:
    if value == "none":
        return None
    if not isinstance(value, str) or not 0 < len(value) <= MAX_COMMENT or not value.isascii() or value != value.strip():
        raise InputError(
            f"{short_repr(value)} cannot begin a comment: give at most {MAX_COMMENT} ASCII characters, no white space"
        )
    return value


def _parse_skip_lines(value: Any) -> int:
    if not re.fullmatch(r"[0-9]{1,7}", str(value), re.ASCII) or int(value) > MAX_SKIPPED:
        raise InputError(f"{short_repr(value)} is not a number of lines from 0 to {MAX_SKIPPED:,}")
    return int(value)


def _parse_thousands(value: Any) -> str | None:
    if value == "none":
        return None
    found = " " if value == "space" else str(value)
    if found not in THOUSANDS:
        raise InputError(f"{short_repr(value)} is not one of: none, space, {' '.join(THOUSANDS[:4])}")
    return found


def _parse_booleans(value: Any) -> tuple[tuple[str, str], ...]:
    pairs = [tuple(text.strip() for text in word.split("/")) for word in parse_words(value) if word]
    for pair in pairs:
        if len(pair) != 2 or not all(0 < len(text) <= MAX_TEXT for text in pair) or pair[0].lower() == pair[1].lower():
            raise InputError(f"{short_repr('/'.join(pair))} is not a pair of texts for true and false, as in yes/no")
    texts = [text.lower() for pair in pairs for text in pair]
    if len(pairs) > MAX_BOOLEANS or len(set(texts)) < len(texts):
        raise InputError(f"at most {MAX_BOOLEANS} pairs, and each text once")
    return tuple((pair[0], pair[1]) for pair in pairs)


def _refuse_nulls(value: tuple[str, ...]) -> None:
    if len(value) > MAX_NULLS:
        raise InputError(f"{len(value):,} texts: at most {MAX_NULLS} stand for NULL")
    for text in value:
        if len(text) > MAX_TEXT or any(each in text for each in '"\r\n\0'):
            raise InputError(
                f"{short_repr(text)} cannot stand for NULL: at most {MAX_TEXT} characters, no quote, no line end"
            )


def _parse_timestamp_formats(value: Any) -> tuple[str, ...]:
    """Reads one format, or several as a list or as its JSON."""
    several = value
    if isinstance(value, str):
        several = [value]
        if value.startswith("["):
            try:
                several = json.loads(value)
            except ValueError:
                raise InputError(f"{short_repr(value)} is not a JSON list of time formats") from None
    if not isinstance(several, list) or not several or not all(isinstance(each, str) for each in several):
        raise InputError(f"{short_repr(value)}: {_TIME_FORMATS}")
    if several == ["iso"]:
        return ()
    for each in several:
        if "%" not in each and (len(several) > 1 or each not in UNIT_DIGITS):
            raise InputError(f"{each!r}: {_TIME_FORMATS}")
    return tuple(several)


def _refuse_timestamp_formats(value: tuple[str, ...]) -> None:
    if len(value) > MAX_PATTERNS:
        raise InputError(f"{len(value):,} time formats: at most {MAX_PATTERNS} are tried")
    for each in value:
        if each not in UNIT_DIGITS:
            parse_time_pattern(each)


def _parse_json_rows(value: Any) -> str:
    """Reads ``lines``, ``values`` or a path; ``$.a.b[*]`` is ``a.b``, and ``$.values`` a path, not a shape."""
    path = re.sub(r"^\$\.?|\[\*\]$", "", value) if isinstance(value, str) else ""
    if not 0 < len(path) <= MAX_TEXT or not re.fullmatch(r"[^.\s\[\]$]+(\.[^.\s\[\]$]+)*", path):
        raise InputError(
            f"{short_repr(value)} is neither lines, nor values, nor a path to a list of objects, such as detail.items"
        )
    return f"$.{path}" if path in ("lines", "values") and value != path else path


def _parse_sheet(value: Any) -> str | None:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT:
        raise InputError(f"{short_repr(value)} is not the name of a sheet")
    return value


DIALECT_PROPERTIES = by_name(
    Property("ingest_encoding", "utf-8", parse_choice(*get_args(Encoding)), "the encoding of text"),
    Property(
        "ingest_delimiter",
        None,
        _parse_sign("a delimiter", may_be_none=False, taken='"\r\n\0'),
        "the delimiter of fields of CSV: one character, or tab",
        check_new=_refuse_letter("a delimiter", "+-.\\"),
    ),
    Property(
        "ingest_quote",
        '"',
        _parse_sign("a quote"),
        "the character around fields of CSV; none: every character is literal",
        check_new=_refuse_letter("a quote"),
    ),
    Property(
        "ingest_escape",
        "none",
        _parse_sign("an escape"),
        "the character of CSV that makes the next one literal; none: quotes are doubled",
        check_new=_refuse_letter("an escape"),
    ),
    Property("ingest_comment", "none", _parse_comment, "lines of CSV that begin with this text are skipped"),
    Property("ingest_skip_lines", 0, _parse_skip_lines, "lines of CSV, or rows of a sheet, before the header"),
    Property(
        "ingest_header", "true", parse_flag, "false: CSV without a header; the fields are the columns in order", bool
    ),
    Property(
        "ingest_names",
        "strict",
        parse_choice(*get_args(ColumnNames)),
        "number: names that a header lacks or repeats become column_3, name_2; strict: such a file is rejected",
    ),
    Property(
        "ingest_ragged",
        "reject",
        parse_choice(*get_args(Ragged)),
        "fill: the fields that a row of CSV lacks at its end are NULL; reject: it is a bad row",
    ),
    Property(
        "ingest_trim",
        "false",
        parse_flag,
        "true: spaces at the ends of a field of CSV, and around its quotes, are not part of it",
        bool,
    ),
    Property(
        "ingest_nulls",
        "",
        parse_words,
        "unquoted texts of CSV that are NULL, with commas; an empty one counts",
        list,
        _refuse_nulls,
    ),
    Property("ingest_decimal", ".", parse_choice(*get_args(Decimal)), "the decimal mark of numbers in CSV"),
    Property("ingest_thousands", "none", _parse_thousands, "what may separate groups of three digits in CSV"),
    Property(
        "ingest_booleans", "", _parse_booleans, "more texts of CSV that are true and false, as in yes/no,y/n", list
    ),
    Property(
        "ingest_timestamp_format",
        "iso",
        _parse_timestamp_formats,
        "of times in text: iso, epoch_s, epoch_ms, epoch_us, a pattern as in %d/%m/%Y %H:%M:%S, or a list of patterns",
        list,
        _refuse_timestamp_formats,
        attribute="timestamp_formats",
    ),
    Property(
        "ingest_json_rows",
        "lines",
        _parse_json_rows,
        "where rows of JSON are: lines, values (in arrays, or one after the other), or a path such as detail.items",
    ),
    Property("ingest_sheet", None, _parse_sheet, "the sheet of a workbook; by default the only one that has rows"),
)
DIALECT_ATTRIBUTES = {each.attribute or each.name.removeprefix("ingest_"): each for each in DIALECT_PROPERTIES.values()}
"""The properties of a dialect, by the attribute of ``Dialect`` that they set."""


def parse_attributes(given: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of ``Dialect`` from values as their properties take them; None is ``none``.

    Raises InputError for an unknown name, a value that can't be read, or some that contradict each other.
    """
    known: dict[str, Any] = {}
    for name, value in given.items():
        if name not in DIALECT_ATTRIBUTES:
            raise InputError(f"{name}={short_repr(value)} is unknown: there are {', '.join(DIALECT_ATTRIBUTES)}")
        each = DIALECT_ATTRIBUTES[name]
        try:
            known[name] = value_of(each, {each.name: "none" if value is None else value})
            if each.check_new is not None:
                each.check_new(known[name])
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
    Dialect(**known).check()
    return known


_FLAGS = {"header": "--no-header", "nulls": "--null", "booleans": "--boolean", "timestamp_formats": "--time-format"}


def flag_of(attribute: str) -> str:
    """The option of the command line that sets an attribute of ``Dialect``."""
    return _FLAGS.get(attribute, f"--{attribute.replace('_', '-')}")


def _setting(attribute: str) -> str:
    """The property and the option that set an attribute of ``Dialect``."""
    return f"{DIALECT_ATTRIBUTES[attribute].name} ({flag_of(attribute)})"


def as_options(properties: Mapping[str, Any]) -> str:
    """Options of the command line that say the same as properties of a dialect."""
    options: list[str] = []
    for attribute, each in DIALECT_ATTRIBUTES.items():
        if each.name not in properties:
            continue
        value = properties[each.name]
        if attribute == "header":
            options.append("--header" if value in (True, "true") else "--no-header")
        else:
            texts = [str(text) for text in (value if isinstance(value, list) else [value]) if text != ""]
            options += [f"{flag_of(attribute)} {_quote(text)}" for text in texts]
    return " ".join(options)


def _quote(text: str) -> str:
    """The text for a shell; control characters as bash and zsh take them."""
    return f"$'{text.encode('unicode_escape').decode()}'" if text < " " else shlex.quote(text)
