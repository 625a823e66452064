"""Cuts SQL into tokens, as DuckDB's or Spark's own lexer does, so that its pieces go to that engine unchanged.

Spark: ``SqlBaseLexer.g4`` in https://github.com/apache/spark/tree/v4.1.0/sql/api. DuckDB: PostgreSQL's rules,
https://www.postgresql.org/docs/current/sql-syntax-lexical.html.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from msgspec import Struct

from dolmen.errors import InputError, short_repr

T = TypeVar("T")
_SPACE = r"(?P<space> [ \t\r\n\f\u000b\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+ )"
_SIGN = r"(?P<sign> <=> | <> | != | <= | >= | == | :: | => | ->>? | \|\|? | \|> | . )"


class Lexer(Struct, frozen=True):
    """Cuts an engine's SQL into tokens; ``quotes`` are those that may be left open, ``quote`` is the one of names."""

    pattern: re.Pattern[str]
    quotes: frozenset[str]
    quote: str


SPARK = Lexer(
    re.compile(
        rf"""
    {_SPACE}
  | (?P<comment> --(?: \\\n | [^\r\n] )*\r?\n? )
  | (?P<text>    (?i:r)'[^']*' | (?i:r)"[^"]*" | (?: '(?: [^'\\] | \\. | '' )*' ) | (?: "(?: [^"\\] | \\. | "" )*" ) )
  | (?P<quoted>  `(?: [^`] | `` )*` )
  | (?P<number>  (?: \d+\.?\d* | \.\d+ )(?: [eE][+-]?\d+ )?(?: [lLsSyYfFdD](?!\w) | (?i:bd)(?!\w) )?(?!\w) )
  | (?P<word>    \w+ )
  | {_SIGN}
    """,
        re.VERBOSE | re.DOTALL,
    ),
    frozenset("'\"`"),
    "`",
)
DUCKDB = Lexer(
    re.compile(
        rf"""
    {_SPACE}
  | (?P<comment> --[^\r\n]* )
  | (?P<text>    (?i:e)'(?: [^'\\] | \\. | '' )*' | (?i:[xb])?'(?: [^'] | '' )*'
               | \$(?P<tag>(?: [^\W\d]\w* )?)\$.*?\$(?P=tag)\$ )
  | (?P<quoted>  "(?: [^"] | "" )*" )
  | (?P<number>  (?: \d[\d_]*\.?[\d_]* | \.\d[\d_]* )(?: [eE][+-]?\d+ )? )
  | (?P<parameter> \$\w+ | \? )
  | (?P<word>    [^\W\d]\w* )
  | {_SIGN}
    """,
        re.VERBOSE | re.DOTALL,
    ),
    frozenset("'\"$"),
    '"',
)
_OPEN, _CLOSED = {"(": ")", "[": "]", "{": "}"}, {")", "]", "}"}


class Token(NamedTuple):
    """A token."""

    kind: str  # "word", "quoted" (a name in quotes), "text" (a literal in quotes), "number", "parameter" or "sign"
    text: str
    start: int
    end: int
    depth: int  # the number of parentheses and brackets that are open around it

    @property
    def upper(self) -> str:
        """A keyword, in capitals; "" for a name in quotes, or a literal."""
        return self.text.upper() if self.kind in ("word", "sign") else ""

    @property
    def name(self) -> str | None:
        if self.kind == "quoted":
            return self.text[1:-1].replace(self.text[0] * 2, self.text[0])
        return self.text if self.kind == "word" else None


def tokenize(sql: str, lexer: Lexer) -> list[Token]:
    """The tokens of a text, without comments and spaces. Raises InputError."""
    found: list[Token] = []
    expected: list[str] = []
    at = 0
    while at < len(sql):
        if sql.startswith("/*", at) and (lexer is DUCKDB or not sql.startswith("/*+", at)):
            at = _comment_end(sql, at)
            continue
        match = lexer.pattern.match(sql, at)
        assert match is not None, "the last alternative takes any character"
        kind, text = match.lastgroup or "", match[0]
        if text in lexer.quotes:
            raise InputError(f"the quote {text} at character {at} is left open: {_near(sql, at)}")
        if text in _CLOSED and (not expected or expected.pop() != text):
            raise InputError(f"{text} at character {at} has no opening bracket: {_near(sql, at)}")
        if kind not in ("space", "comment"):
            found.append(Token(kind, text, at, match.end(), len(expected)))
        if text in _OPEN:
            expected.append(_OPEN[text])
        at = match.end()
    if expected:
        raise InputError(f"{expected[-1]} is missing at the end of {short_repr(sql)}")
    return found


def _comment_end(sql: str, start: int) -> int:
    """The end of a comment in ``/* */``, which may contain others."""
    depth, at = 0, start
    for match in re.compile(r"/\*|\*/").finditer(sql, start):
        depth += 1 if match[0] == "/*" else -1
        at = match.end()
        if depth == 0:
            return at
    raise InputError(f"the comment at character {start} is left open: {_near(sql, start)}")


def replace_spans(sql: str, spans: Iterable[tuple[int, int, str]]) -> str:
    """The text with some spans replaced. Each is its first character, its end and the new text, in ascending order."""
    parts, end = list[str](), 0
    for start, stop, piece in spans:
        parts += [sql[end:start], piece]
        end = stop
    return "".join([*parts, sql[end:]])


def requalify(text: str, names: Mapping[str, str], *, strict: bool = False) -> str:
    """An expression of DuckDB with each ``table.column``, in any case, replaced by the text that ``names`` has for it.

    With ``strict``, raises InputError for other columns of these tables.
    """
    by_name = {name.lower(): new for name, new in names.items()}
    tables = {name.partition(".")[0] for name in by_name}
    tokens, spans = tokenize(text, DUCKDB), []
    for index, (token, point, column) in enumerate(zip(tokens, tokens[1:], tokens[2:], strict=False)):
        before = "".join(each.text for each in tokens[max(index - 2, 0) : index]).lower()
        in_main = before == "main."
        if token.name is None or column.name is None or point.text != "." or (before[-1:] == "." and not in_main):
            continue
        table = token.name.lower()
        if (new := by_name.get(f"{table}.{column.name.lower()}")) is not None:
            spans.append((tokens[index - 2 * in_main].start, column.end, new))
        elif strict and table in tables and f"{table}.{table}" not in by_name:
            own = ", ".join(name.partition(".")[2] for name in names if name.lower().startswith(f"{table}."))
            raise InputError(
                f"{token.text}.{column.text}: {token.name} has no column {column.name!r}; there are: {own}"
            )
    return replace_spans(text, spans)


def _near(sql: str, at: int) -> str:
    return short_repr(sql[at : at + 40])


class SqlReader:
    """Reads the tokens of one statement, one after the other. Each method raises InputError where it finds others."""

    def __init__(self, sql: str, tokens: Sequence[Token], lexer: Lexer = SPARK) -> None:
        self.sql, self.lexer, self.tokens, self._at = sql, lexer, tokens, 0

    @property
    def text(self) -> str:
        """The text of the statement."""
        return self.sql[self.tokens[0].start :]

    @property
    def is_done(self) -> bool:
        return self._at >= len(self.tokens)

    def peek(self, ahead: int = 0) -> Token | None:
        index = self._at + ahead
        return self.tokens[index] if index < len(self.tokens) else None

    def word(self, ahead: int = 0) -> str:
        """The next token as a keyword; "" at the end, and for other tokens."""
        token = self.peek(ahead)
        return "" if token is None else token.upper

    def take(self, *words: str) -> bool:
        """Goes past these keywords if all of them come next."""
        if not self._comes_next(words):
            return False
        self._at += len(words)
        return True

    def _comes_next(self, words: Sequence[str]) -> bool:
        return all(self.word(ahead) == word for ahead, word in enumerate(words))

    def expect(self, *words: str) -> None:
        if not self.take(*words):
            raise self.error(f"{' '.join(words)} is expected")

    def next(self) -> Token:
        token = self.peek()
        if token is None:
            raise self.error("more is expected")
        self._at += 1
        return token

    def name(self) -> str:
        token = self.peek()
        if token is None or token.name is None:
            raise self.error("a name is expected")
        self._at += 1
        return token.name

    def until(self, *words: str) -> str:
        """The text up to the first of these (``ON CONFLICT``) outside of parentheses and CASE, or to the end."""
        first = self.peek()
        ends = [word.split() for word in words]
        firsts = {end[0] for end in ends}
        cases = 0
        while (token := self.peek()) is not None and first is not None and token.depth >= first.depth:
            if token.depth == first.depth and token.kind != "number" and not self._is_part():
                if cases == 0 and token.upper in firsts and any(map(self._comes_next, ends)):
                    break
                if token.upper == "CASE":
                    cases += 1
                elif token.upper == "END" and cases:
                    cases -= 1
            self._at += 1
        return self.since(first)

    def group(self) -> list[Token]:
        """Goes past a pair of parentheses, and returns the tokens in it."""
        self.expect("(")
        start = self._at
        depth = self.tokens[start - 1].depth
        while self.tokens[self._at].depth > depth:
            self._at += 1
        self._at += 1
        return list(self.tokens[start : self._at - 1])

    def items(self, read: Callable[[SqlReader], T]) -> list[T]:
        """Reads items that are separated by commas, in a pair of parentheses."""
        inner = SqlReader(self.sql, self.group(), self.lexer)
        found = [read(inner)]
        while inner.take(","):
            found.append(read(inner))
        if not inner.is_done:
            raise inner.error("a comma is expected")
        return found

    def rest(self) -> str:
        first, self._at = self.peek(), len(self.tokens)
        return self.since(first)

    def since(self, first: Token | None) -> str:
        """The text from a token to the last one that was read."""
        last = self.tokens[self._at - 1] if self._at else None
        if first is None or last is None or last.end <= first.start:
            raise self.error("an expression is expected")
        return self.sql[first.start : last.end]

    def error(self, reason: str) -> InputError:
        token = self.peek()
        where = "at its end" if token is None else f"at character {token.start}, {_near(self.sql, token.start)}"
        return InputError(f"can't read the statement {where}: {reason}")

    def _is_part(self) -> bool:
        """Whether the token is a part of a name, as in ``t.case``."""
        before = self.tokens[self._at - 1].text if self._at else ""
        return before == "." or self.word(1) == "."
