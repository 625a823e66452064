"""Limits on the size of a predicate. Most are checked before anything is built.

They bound the cost of parsing, storing and evaluating a predicate: no text within them takes more than a few seconds to
parse, and no stored predicate exhausts a reader's stack or memory.
"""

from __future__ import annotations

from dolmen.base.arguments import short_repr
from dolmen.errors import LimitError, PredicateError

MAX_TEXT = 1_000_000
"""Characters of a predicate's text."""
MAX_TOKENS = 100_000
"""Names, literals and signs in a predicate's text: about twice as many as an IN has members."""
MAX_WORDS = 25_000
"""Operators, keywords and opening parentheses among them, which take longest to parse."""
MAX_OPERATORS = 5_000
"""``+ - * / // % ::`` and dots between two sides, without signs."""
MAX_PREFIXES = 20
"""Consecutive NOTs and signs."""
MAX_NESTING = 20
"""Levels of nested parentheses, which sqlglot can parse within Python's stack from any caller."""
MAX_CONDITIONS = 10_000
"""Conditions joined by AND and OR. An IN is one condition, whatever its number of members."""
MAX_MEMBERS = 1_000_000
"""Members of an IN, and keys of a delete."""
MAX_PATTERN = 10_000
"""Characters of a LIKE pattern."""
MAX_NUMBER = 400
"""Characters of a number, a time or an interval, and the exponent of a number: far beyond what any column holds."""
MAX_DEPTH = 200
"""Levels of a stored predicate's tree. Text cannot make more than half of them."""


def check_count(count: int, most: int, what: str, instead: str) -> None:
    """Raises LimitError if ``count`` is more than ``most``.

    Args:
        what: what is counted, in the plural, for the message.
        instead: what the caller can do instead.
    """
    if count > most:
        raise LimitError(f"{count:,} {what} in a predicate: at most {most:,} are allowed; {instead}")


def check_characters(text: str) -> str:
    """Returns ``text`` if it can be stored. Raises PredicateError for halves of surrogate pairs."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise PredicateError(f"{short_repr(text)} is not text: it has half of a surrogate pair") from None
    return text


def check_number(text: str) -> str:
    """Returns the text of a number, time or interval, stripped. Raises PredicateError if it is too long."""
    text = text.strip()
    if len(text) > MAX_NUMBER:
        raise PredicateError(
            f"{short_repr(text)} has {len(text):,} characters: a number, time or interval has at most {MAX_NUMBER}"
        )
    if not text.isascii():
        raise PredicateError(f"{short_repr(text)}: a number, time or interval is written in ASCII")
    return text
