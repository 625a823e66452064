"""A second reader of delimited text, one character after the other: the grammar of a dialect, and no faster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dolmen.format.dialect import Dialect


@dataclass(frozen=True)
class Record:
    """One record: the values of its fields, with their text in the file if unquoted, or the offset of what is wrong."""

    start: int
    fields: list[tuple[str, str | None]]
    problem: int | None


class NeverClosed(Exception):  # noqa: N818 - an answer, not an error
    """A quote is open at the end."""


def read_delimited(
    text: str, dialect: Dialect, delimiter: str, width: int
) -> tuple[list[list[str | None]], list[tuple[int, int]]]:
    """The good rows of a text without a header, and the row and line of each bad one."""
    rows, bad, number = list[list[str | None]](), list[tuple[int, int]](), 0
    for record in _records(text, dialect, delimiter):
        if width > 1 and record.fields == [("", "")] and record.problem is None:
            continue
        number += 1
        count = len(record.fields)
        if record.problem is None and (count == width or (count < width and dialect.ragged == "fill")):
            cells = [None if raw is not None and raw in dialect.nulls else value for value, raw in record.fields]
            rows.append([*cells, *[None] * (width - count)])
        else:
            bad.append((number, _line_of(text, record.start if record.problem is None else record.problem)))
    return rows, bad


def _line_end(text: str, at: int) -> int:
    if text.startswith("\r\n", at):
        return 2
    return 1 if at < len(text) and text[at] in "\r\n" else 0


def _spaces(text: str, at: int) -> int:
    return len(text[at:]) - len(text[at:].lstrip(" "))


def _line_of(text: str, offset: int) -> int:
    before = text[:offset]
    return 1 + before.count("\n") + before.count("\r") - before.count("\r\n")


def _rest_of_line(text: str, at: int) -> int:
    while at < len(text) and not _line_end(text, at):
        at += 1
    return at + _line_end(text, at)


def _records(text: str, dialect: Dialect, delimiter: str) -> Iterator[Record]:
    escape = None if dialect.escape == dialect.quote else dialect.escape
    at = 0
    while at < len(text):
        if dialect.comment and text.startswith(dialect.comment, at):
            at = _rest_of_line(text, at)
            continue
        start, fields, problem = at, list[tuple[str, str | None]](), None
        while True:
            if dialect.trim:
                spaces = _spaces(text, at)
                if at > start or not (dialect.comment and text.startswith(dialect.comment, at + spaces)):
                    at += spaces
            if at < len(text) and text[at] == dialect.quote:
                value, close = _quoted(text, at, dialect.quote, escape)
                at = close + 1 + (_spaces(text, close + 1) if dialect.trim else 0)
                fields.append((value, None))
                if at < len(text) and text[at] != delimiter and not _line_end(text, at):
                    problem, at = close, _rest_of_line(text, at)
                    break
            else:
                first, value, end = at, "", (0, at)
                while at < len(text) and text[at] != delimiter and not _line_end(text, at):
                    if text[at] == escape:
                        at += 1
                        if at == len(text):
                            problem = at - 1
                            break
                        value += text[at]
                        end = (len(value), at + 1)
                    else:
                        value += text[at]
                        end = (len(value), at + 1) if text[at] != " " or not dialect.trim else end
                    at += 1
                fields.append((value[: end[0]], text[first : end[1]]))
            if problem is not None or at == len(text) or text[at] != delimiter:
                at += _line_end(text, at)
                break
            at += 1
        yield Record(start, fields, problem)


def _quoted(text: str, at: int, quote: str, escape: str | None) -> tuple[str, int]:
    """The value of a quoted field, and the offset of its closing quote."""
    value = ""
    while (at := at + 1) < len(text):
        if text[at] == escape or (text[at] == quote and text[at + 1 : at + 2] == quote):
            at += 1
            if at == len(text):
                break
        elif text[at] == quote:
            return value, at
        value += text[at]
    raise NeverClosed
