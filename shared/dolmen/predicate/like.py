"""LIKE patterns: taken apart once, then matched by the cheapest kernel, or used for pruning by their prefix."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dolmen.errors import PredicateError


@dataclass(frozen=True)
class Pattern:
    """A pattern's pieces: texts (str), and wildcards as True for ``%`` and False for ``_``."""

    pieces: tuple[str | bool, ...]

    @property
    def prefix(self) -> str:
        """The text that every match begins with."""
        return self.pieces[0] if self.pieces and isinstance(self.pieces[0], str) else ""

    @property
    def is_text(self) -> bool:
        """Whether the pattern has no wildcard: then it only matches its prefix."""
        return self.pieces in ((), (self.prefix,))

    @property
    def is_prefix(self) -> bool:
        """Whether it matches everything that begins with its prefix."""
        return self.pieces in ((True,), (self.prefix, True))


@lru_cache(256)
def pattern(text: str, escape: str | None) -> Pattern:
    """Takes a pattern apart. Raises PredicateError when it ends in its escape character."""
    pieces: list[str | bool] = []
    characters = iter(text)
    for character in characters:
        if character == escape:
            following = next(characters, None)
            if following is None:
                raise PredicateError(f"the LIKE pattern {text!r} ends with its escape character: double it")
            character = following
        elif character in "%_":
            if not (character == "%" and pieces and pieces[-1] is True):
                pieces.append(character == "%")
            continue
        if pieces and isinstance(pieces[-1], str):
            pieces[-1] += character
        else:
            pieces.append(character)
    return Pattern(tuple(pieces))


def match(array: Any, text: str, escape: str | None, ignore_case: bool) -> Any:
    """Which strings match; NULL for NULL."""
    if ignore_case:
        array = pc.utf8_lower(array)
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
    expression = "".join(re.escape(p) if isinstance(p, str) else ".*" if p else "." for p in pieces)
    return pc.match_substring_regex(array, rf"(?s)\A(?:{expression})\z")
