"""Describes errors for logs: kinds, names and numbers, never a value of the data or of a request.

Logs have other readers than the data, and are stored longer: the name of an erased person must not stay there.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from traceback import extract_tb
from typing import Any

from msgspec import Struct

from dolmen.base.runtime import cached_property
from dolmen.errors import (
    AppliedIdError,
    Error,
    InputError,
    LimitError,
    NotFoundError,
    PredicateError,
    RowError,
    SchemaError,
)

HIDDEN = "…"  # replaces each quotation in an error
_UNFORESEEN = "an unforeseen error; 'at' says where"
_MOST_SHOWN = 120
_MOST_FRAMES = 12


class MessageError(InputError):
    """An error in a queue's message. ``template`` is its text, with ``{}`` wherever it quotes the queue's message."""

    def __init__(self, template: str, *quoted: object) -> None:
        self.template, self.quoted = template, quoted
        super().__init__(template.format(*map(_short_repr, quoted)))

    @property
    def text_for_log(self) -> str:
        """The error's text without its quotations."""
        return self.template.format(*[HIDDEN] * len(self.quoted))

    def at(self, part: str) -> MessageError:
        """The same error, about a part of the queue's message."""
        return MessageError(f"{part}: {self.template}", *self.quoted)


def parse_message(text: str, max_characters: int, **hooks: Any) -> Any:
    """Parses the JSON of a queue's message, with more ``hooks`` of ``json.loads``.

    Raises MessageError, also for an object that has a member twice; LimitError.
    """
    if len(text) > max_characters:
        raise LimitError(f"a message of {len(text):,} characters: at most {max_characters:,} are allowed")
    try:
        return json.loads(text, object_pairs_hook=_members, **hooks)
    except RecursionError:
        raise MessageError("lists and objects are nested too deeply") from None
    except json.JSONDecodeError as error:
        raise MessageError(f"not JSON: {error}") from None
    except MessageError:
        raise
    except ValueError:  # Python parses no integer of more than 4,300 digits
        raise MessageError("a number of too many digits") from None


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise MessageError("member {} is in an object twice", first_duplicate([name for name, _ in pairs]))
    return members


def first_duplicate(names: list[str]) -> str | None:
    """The first name that was there before."""
    seen: set[str] = set()
    return next((name for name in names if name in seen or seen.add(name)), None)  # type: ignore[func-returns-value]


class UnforeseenError(InputError):
    """A file that fails on every try with an error of no expected kind. The text of ``cause`` may hold data."""

    def __init__(self, file: str, cause: Exception) -> None:
        super().__init__(
            f"file {file!r} cannot be ingested: {type(cause).__name__}: {cause} (this is a bug: please report it)"
        )
        self.__cause__ = cause


class RequestContent(Struct, frozen=True, dict=True):
    """The parsed JSON of a request, to find quotations of it in a message.

    Any text or number in it may be a value, unless it is among the ``names`` of tables and columns.
    """

    document: Any
    names: frozenset[str] = frozenset()

    def hide(self, text: str) -> str | None:
        """Replaces what may be quoted from the request in an error's text; None if the request is too long to check.

        It hides:

        - texts in quotes, except names, and words close to a name;
        - words that the request has, or that begin one of its words;
        - numbers whose digits before or after the point are in the request;
        - long numbers.
        """
        if self._tokens is None:
            return None
        misspelt = text.startswith("no column ")

        def hide_quote(match: re.Match[str]) -> str:
            inner = match[0][1:-1]
            if inner in self.names or inner in _HARMLESS:
                return match[0]
            if misspelt and difflib.get_close_matches(inner, self.names, 1, _LEAST_SIMILARITY):
                return match[0]
            return HIDDEN

        def hide_word(match: re.Match[str]) -> str:
            return HIDDEN if self._is_quoted(match[0]) else match[0]

        parts: list[str] = []
        end = 0
        for quote in _QUOTE.finditer(text):
            parts += [_WORD.sub(hide_word, text[end : quote.start()]), hide_quote(quote)]
            end = quote.end()
        parts.append(_WORD.sub(hide_word, text[end:]))
        return re.sub(rf"{HIDDEN}(?:[^\w'\"({HIDDEN}]*{HIDDEN})+", HIDDEN, "".join(parts))

    def _is_quoted(self, word: str) -> bool:
        lower = word.lower()
        if lower in _VOCABULARY or word in self.names:
            return False
        if sum(map(str.isdigit, word)) > _MOST_DIGITS:
            return True
        assert self._tokens is not None
        if not self._tokens.isdisjoint((lower, re.sub("[,_]", "", lower), *_TOKEN.findall(lower))):  # 1,234 and 99.99
            return True
        return len(lower) >= _LEAST_WORD_LENGTH and any(
            token.startswith(lower) or (len(token) >= _LEAST_WORD_LENGTH and token in lower) for token in self._tokens
        )

    @cached_property
    def _tokens(self) -> frozenset[str] | None:
        tokens: set[str] = set()
        characters = 0
        for text in _texts(self.document):
            characters += len(text)
            if characters > _MOST_REQUEST_CHARACTERS:
                return None
            tokens.update(word.lower() for word in _TOKEN.findall(text))
        return frozenset(tokens - {name.lower() for name in self.names})


_QUOTE = re.compile(r"""(?<!\w)(?:'(?:[^'\\]|\\.)*(?:'|\Z)|"(?:[^"\\]|\\.)*(?:"|\Z))""", re.DOTALL)
_WORD = re.compile(r"\d[\d.,:_+-]*\d|\w+")
_TOKEN = re.compile(r"\w+")
_LEAST_SIMILARITY = 0.75
_LEAST_WORD_LENGTH = 4
_MOST_DIGITS = 4
_MOST_REQUEST_CHARACTERS = 1 << 16
_HARMLESS = frozenset({"TRUE", "FALSE", "tombstone", "positions"})
_VOCABULARY = frozenset(
    re.findall(
        r"\w+",
        "a an and any are as at be between by cast character column columns compare compared condition date did "
        "digits distinct does end ends error escape expected expecting false find fit for from function group has "
        "have here if in interval into invalid is it its key keys lacks left like likes line long mean missing "
        "more most must no not null number numbers of on or order out parse predicate quote quoted read row rows "
        "select single something stand stands statement string table tables text texts than that the there this "
        "time timestamp to token true type types understood unexpected unknown value values what where with "
        "without write you",
    )
)
"""Words of dolmen's own messages, and keywords of SQL: never taken for values, even if a request has them."""


def _texts(document: Any) -> Iterator[str]:
    """All texts and numbers in a document, names of members too."""
    if isinstance(document, Mapping):
        for name, value in document.items():
            yield str(name)
            yield from _texts(value)
    elif isinstance(document, list | tuple):
        for value in document:
            yield from _texts(value)
    elif document is not None and not isinstance(document, bool):
        try:
            yield str(document)
        except ValueError:  # an integer with thousands of digits
            yield " " * _MOST_REQUEST_CHARACTERS


def reason_for_log(error: BaseException, request: RequestContent | None = None) -> str:
    """Describes an error in one line, without any value. An error about ``request`` is shown without quotations."""
    match error:
        case MessageError():
            return error.text_for_log
        case UnforeseenError():
            return _UNFORESEEN
        case LimitError() | AppliedIdError() | NotFoundError():
            return str(error)  # counts, ids and names
        case InputError():
            position = getattr(error, "position", None)
            prefix = "" if position is None else f"at character {position}: "
            text = request.hide(getattr(error, "reason", str(error))) if request else None
            other = _OF_FILE if request is None else _OF_REQUEST
            return f"{prefix}{text if text is not None else _FALLBACK.get(type(error), other)}"
        case Error():
            return str(error)  # about objects and versions: no caller's data
    return _UNFORESEEN


_OF_FILE = "the file is damaged, has no known ending, or lies outside landing/<table>/"
_OF_REQUEST = "the request is malformed, or does not fit the table"
_FALLBACK: dict[type[BaseException], str] = {
    RowError: "a row is malformed, or a value does not fit its column",
    PredicateError: "the predicate cannot be read, or does not fit the table",
    SchemaError: "a column does not fit the table, is missing, or is one too many",
}
"""Reasons that replace a text which may quote a value."""


def error_fields(error: BaseException, request: RequestContent | None = None) -> dict[str, Any]:
    """The fields of a log record about an error: its kind, the reason, and the position; for a bug, the calls."""
    fields: dict[str, Any] = {"error": type(error).__name__, "reason": reason_for_log(error, request)}
    if isinstance(error, RowError):
        fields |= {"line": error.line, "row": error.row}
    bug = error.__cause__ if isinstance(error, UnforeseenError) else error
    if bug is not None and not isinstance(bug, Error):
        frames = extract_tb(bug.__traceback__)[-_MOST_FRAMES:]
        fields["at"] = [f"{'/'.join(PurePath(one.filename).parts[-2:])}:{one.lineno} {one.name}" for one in frames]
    return {name: value for name, value in fields.items() if value is not None}


def _short_repr(value: object) -> str:
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # too deep, or an integer with thousands of digits
        return type(value).__name__
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
