"""Cuts a statement into tokens as Spark's own lexer does, so that its parts can be handed to Spark as they stand.

Nothing is understood here of expressions: a part of a statement is a piece of its author's text, which Spark evaluates.
The rules are those of Spark's grammar, ``SqlBaseLexer.g4``: https://github.com/apache/spark/tree/v4.1.0/sql/api
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dolmen.base.arguments import short_repr
from dolmen.errors import InputError

_TOKEN = re.compile(
    r"""
    (?P<space>   [ \t\r\n\f\u000b\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+ )
  | (?P<comment> --(?: \\\n | [^\r\n] )*\r?\n? )
  | (?P<text>    (?i:r)'[^']*' | (?i:r)"[^"]*" | (?: '(?: [^'\\] | \\. | '' )*' ) | (?: "(?: [^"\\] | \\. | "" )*" ) )
  | (?P<quoted>  `(?: [^`] | `` )*` )
  | (?P<number>  (?: \d+\.?\d* | \.\d+ )(?: [eE][+-]?\d+ )?(?: [lLsSyYfFdD](?!\w) | (?i:bd)(?!\w) )?(?!\w) )
  | (?P<word>    \w+ )
  | (?P<sign>    <=> | <> | != | <= | >= | == | :: | => | -> | \|\|? | \|> | . )
    """,
    re.VERBOSE | re.DOTALL,
)
_OPEN, _CLOSED = {"(": ")", "[": "]"}, {")", "]"}


@dataclass(frozen=True)
class Token:
    """A token.

    Args:
        kind: "word", "quoted" (a name in backticks), "text" (a literal in quotes), "number" or "sign".
        text: as it stands in the statement.
        start, end: its first character, and the one after its last.
        depth: the parentheses and brackets that are open around it, of itself not counted.
    """

    kind: str
    text: str
    start: int
    end: int
    depth: int

    @property
    def upper(self) -> str:
        """A keyword, in capitals; "" for what can't be one, as a name in backticks or a literal."""
        return self.text.upper() if self.kind in ("word", "sign") else ""

    @property
    def name(self) -> str | None:
        """The name that it stands for; None if it is no name."""
        if self.kind == "quoted":
            return self.text[1:-1].replace("``", "`")
        return self.text if self.kind == "word" else None


def tokenize(sql: str) -> list[Token]:
    """The tokens of a text, without comments and spaces.

    Raises:
        InputError: a quote, a comment or a parenthesis is left open, or closed without one that is open.
    """
    found: list[Token] = []
    expected: list[str] = []
    at = 0
    while at < len(sql):
        if sql.startswith("/*", at) and not sql.startswith("/*+", at):
            at = _comment_end(sql, at)
            continue
        match = _TOKEN.match(sql, at)
        assert match is not None, "the last alternative takes any character"
        kind, text = match.lastgroup or "", match[0]
        if text in ("'", '"', "`"):
            raise InputError(f"the quote {text} at character {at} is left open: {_near(sql, at)}")
        if text in _CLOSED and (not expected or expected.pop() != text):
            raise InputError(f"{text} at character {at} closes nothing: {_near(sql, at)}")
        if kind not in ("space", "comment"):
            found.append(Token(kind, text, at, match.end(), len(expected)))
        if text in _OPEN:
            expected.append(_OPEN[text])
        at = match.end()
    if expected:
        raise InputError(f"{expected[-1]} is missing at the end of {short_repr(sql)}")
    return found


def _comment_end(sql: str, start: int) -> int:
    """The end of a comment in ``/* */``; others may stand in it."""
    depth, at = 0, start
    while at < len(sql):
        if sql.startswith("/*", at):
            depth, at = depth + 1, at + 2
        elif sql.startswith("*/", at):
            depth, at = depth - 1, at + 2
            if depth == 0:
                return at
        else:
            at += 1
    raise InputError(f"the comment at character {start} is left open: {_near(sql, start)}")


def _near(sql: str, at: int) -> str:
    return short_repr(sql[at : at + 40])


class SqlReader:
    """Goes through the tokens of one statement.

    Args:
        sql: its text.
        tokens: what is to be read of it.
    """

    def __init__(self, sql: str, tokens: Sequence[Token]) -> None:
        self.sql, self._tokens, self._at = sql, tokens, 0

    @property
    def is_done(self) -> bool:
        """Whether nothing is left."""
        return self._at >= len(self._tokens)

    def peek(self, ahead: int = 0) -> Token | None:
        """The next token, or one behind it; None at the end."""
        place = self._at + ahead
        return self._tokens[place] if place < len(self._tokens) else None

    def word(self, ahead: int = 0) -> str:
        """The next token as a keyword; "" at the end, and for what can't be one."""
        token = self.peek(ahead)
        return "" if token is None else token.upper

    def take(self, *words: str) -> bool:
        """Goes past these keywords if they come next, all of them."""
        if not all(self.word(place) == word for place, word in enumerate(words)):
            return False
        self._at += len(words)
        return True

    def expect(self, *words: str) -> None:
        """Goes past these keywords. Raises InputError if something else comes."""
        if not self.take(*words):
            raise self.error(f"{' '.join(words)} is expected")

    def next(self) -> Token:
        """Goes past any token. Raises InputError at the end."""
        token = self.peek()
        if token is None:
            raise self.error("more is expected")
        self._at += 1
        return token

    def name(self) -> str:
        """Goes past a name. Raises InputError if there is none."""
        token = self.peek()
        if token is None or token.name is None:
            raise self.error("a name is expected")
        self._at += 1
        return token.name

    def until(self, *words: str) -> str:
        """Goes to the first of these keywords outside of parentheses and of CASE, or to the end; returns what stands
        before it, as it stands. Raises InputError if nothing does."""
        first = self.peek()
        cases = 0
        while (token := self.peek()) is not None and first is not None:
            if token.depth == first.depth:
                if cases == 0 and token.upper in words and not self._is_part():
                    break
                if token.upper == "CASE" and not self._is_part():
                    cases += 1
                elif token.upper == "END" and cases and not self._is_part():
                    cases -= 1
            elif token.depth < first.depth:
                break
            self._at += 1
        return self.since(first)

    def group(self) -> list[Token]:
        """Goes past a pair of parentheses, and returns the tokens in it. Raises InputError if none comes."""
        self.expect("(")
        start = self._at
        depth = self._tokens[start - 1].depth
        while self._tokens[self._at].depth > depth:
            self._at += 1
        inside = list(self._tokens[start : self._at])
        self._at += 1
        return inside

    def rest(self) -> str:
        """All that is left, as it stands. Raises InputError if nothing is."""
        first, self._at = self.peek(), len(self._tokens)
        return self.since(first)

    def error(self, reason: str) -> InputError:
        """An error about the place that is reached."""
        token = self.peek()
        where = "at its end" if token is None else f"at character {token.start}, {_near(self.sql, token.start)}"
        return InputError(f"can't read the statement {where}: {reason}")

    def _is_part(self) -> bool:
        """Whether the token is a part of a name, as in ``t.case``."""
        before = self._tokens[self._at - 1].text if self._at else ""
        return before == "." or self.word(1) == "."

    def since(self, first: Token | None) -> str:
        """The text from a token to the last one that was read, as it stands. Raises InputError if that is nothing."""
        last = self._tokens[self._at - 1] if self._at else None
        if first is None or last is None or last.end <= first.start:
            raise self.error("an expression is expected")
        return self.sql[first.start : last.end]
