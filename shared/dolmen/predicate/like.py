"""LIKE patterns: parsed once, then matched by the cheapest kernel, or used to prune by their prefix."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
from msgspec import Struct

from dolmen.base import pc
from dolmen.base.runtime import cached_property
from dolmen.errors import PredicateError, short_repr
from dolmen.format.types import one_array

_MOST_IN_REGEX = 10_000  # the most pieces of a pattern that becomes a regular expression: RE2 takes about 50,000


class Pattern(Struct, frozen=True, dict=True):
    """A pattern's pieces: texts (str), and wildcards as True for ``%`` and False for ``_``."""

    pieces: tuple[str | bool, ...]

    @property
    def prefix(self) -> str:
        """The beginning of every match."""
        return self.pieces[0] if self.pieces and isinstance(self.pieces[0], str) else ""

    @cached_property
    def after_prefix(self) -> str | None:
        """The least text greater than all texts that begin with the prefix; None if there is none."""
        prefix = self.prefix
        for end in range(len(prefix), 0, -1):
            code = ord(prefix[end - 1]) + 1
            if code <= 0x10FFFF:
                return prefix[: end - 1] + chr(0xE000 if code == 0xD800 else code)  # skips surrogates
        return None

    @property
    def is_text(self) -> bool:
        """Whether the pattern has no wildcard, so that it only matches its prefix."""
        return self.pieces in ((), (self.prefix,))

    @property
    def is_prefix(self) -> bool:
        """Whether the pattern matches every text that begins with its prefix."""
        return self.pieces in ((True,), (self.prefix, True))

    @property
    def runs(self) -> tuple[tuple[str | bool, ...], ...]:
        """The texts and ``_`` between one ``%`` and the next."""
        runs: list[list[str | bool]] = [[]]
        for piece in self.pieces:
            if piece is True:
                runs.append([])
            else:
                runs[-1].append(piece)
        return tuple(map(tuple, runs))


@lru_cache(256)
def pattern(text: str, escape: str | None) -> Pattern:
    """Parses a pattern. Raises PredicateError if it ends with its escape character."""
    pieces: list[str | bool] = []
    literal: list[str] = []
    characters = iter(text)
    for character in characters:
        if character == escape:
            following = next(characters, None)
            if following is None:
                raise PredicateError(f"the LIKE pattern {short_repr(text)} ends with its escape character: double it")
            character = following
        elif character in "%_":
            if literal:
                pieces.append("".join(literal))
                literal = []
            if not (character == "%" and pieces and pieces[-1] is True):
                pieces.append(character == "%")
            continue
        literal.append(character)
    if literal:
        pieces.append("".join(literal))
    return Pattern(tuple(pieces))


def match(array: Any, text: str, escape: str | None, ignore_case: bool) -> Any:
    """Which strings match; NULL for NULL."""
    if ignore_case:
        array = lower(array)
        text = pc.utf8_lower(pa.scalar(text)).as_py()
    parts = pattern(text, escape)
    pieces = parts.pieces
    if parts.is_text:
        return pc.equal(array, pa.scalar(parts.prefix, array.type))
    if parts.is_prefix:
        return pc.starts_with(array, parts.prefix)
    if len(pieces) == 2 and pieces[0] is True and isinstance(pieces[1], str):
        return pc.ends_with(array, pieces[1])
    if len(pieces) == 3 and pieces[0] is pieces[2] is True and isinstance(pieces[1], str):
        return pc.match_substring(array, pieces[1])
    if len(pieces) > _MOST_IN_REGEX:
        return _match_long(array, parts)
    expression = "".join(re.escape(p) if isinstance(p, str) else ".*" if p else "." for p in pieces)
    return pc.match_substring_regex(array, rf"(?s)\A(?:{expression})\z")


def lower(array: Any) -> Any:
    """Strings in lower case, character by character; bytes that are not UTF-8 count as U+FFFD."""
    return pc.utf8_lower(repair_utf8(array))


def repair_utf8(array: Any) -> Any:
    """The strings with U+FFFD for each byte that is not UTF-8."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        texts = one_array(array).cast(pa.binary()).to_pylist()  # only for damaged data
        return pa.array([None if text is None else text.decode(errors="replace") for text in texts], array.type)
    return array


def _match_long(array: Any, parts: Pattern) -> Any:
    """Matches a pattern that is too long for RE2: the few texts that are long enough, one by one."""
    array = one_array(array)
    least = sum(len(piece.encode()) if isinstance(piece, str) else not piece for piece in parts.pieces)
    found = pc.greater_equal(pc.binary_length(array), least)
    mask = found.fill_null(False)
    texts = array.filter(mask).cast(pa.binary()).to_pylist()
    runs = parts.runs
    sources = ["".join(re.escape(piece) if isinstance(piece, str) else "." for piece in run) for run in runs]
    compiled = {source: re.compile(source, re.DOTALL) for source in set(sources)}
    expressions = [compiled[source] for source in sources]
    last = sum(len(piece) if isinstance(piece, str) else 1 for piece in runs[-1])
    matched = [_matches(text.decode(errors="replace"), expressions, last) for text in texts]
    return pc.replace_with_mask(found, mask, pa.array(matched, pa.bool_()))


def _matches(text: str, runs: Sequence[re.Pattern[str]], last: int) -> bool:
    """Whether each run between two ``%`` matches at its first position, and the last, of this length, at the end."""
    first, *others = runs
    if not others:
        return first.fullmatch(text) is not None
    begin = first.match(text)
    if begin is None:
        return False
    at = begin.end()
    for run in others[:-1]:
        next_one = run.search(text, at)
        if next_one is None:
            return False
        at = next_one.end()
    return len(text) - at >= last and others[-1].fullmatch(text, len(text) - last) is not None
