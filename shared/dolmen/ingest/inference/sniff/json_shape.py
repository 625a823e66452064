"""Finds where the rows of a JSON file are: in its lines, its values, or a list in an object around them.

An object that holds a list of objects may be the row itself (an order with its items) or an envelope around rows
(``{"Records": [...]}``). A guess would lose the other members, so an object is an envelope only if its shape says so:

- its list has a name that envelopes use, and it is the file's only object, or its other members say nothing about the
  list's items (counts, pages, links);
- or the list is all that it has, or nearly all of it;
- or the file's only object has this one list beside scalars, and it has more text or more items than these:
  ``{"exported": ..., "users": [...]}``.

Events of EventBridge, images of Debezium and the like are rows, whatever lists they hold.
"""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from dolmen.base.records import replace
from dolmen.errors import short_repr
from dolmen.format.dialect import Dialect
from dolmen.ingest.formats.source_file import VALUE_COLUMN
from dolmen.ingest.inference.candidate import Candidate


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SURE_NAMES = _words("records rows data results features value")
_NAMES = _SURE_NAMES | _words(
    """
    row result items item values entries entry elements documents docs hits events logevents messages findings
    configurationitems list objects children nodes edges tasks
    """
)
"""Names of lists of rows, in lower case."""
_ABOUT = _words(
    """
    count total totalcount total_count totalresults numfound num_results scannedcount size limit offset start skip
    page pages per_page page_size pagesize page_count pageinfo page_info pagination paging next previous prev cursor
    next_cursor nexttoken next_token has_more hasmore continuationtoken istruncated marker links _links link self
    meta metadata header headers responseheader status statuscode success ok error errors message version
    schema_version schemaversion invocationschemaversion fileversion configsnapshotid apiversion generated timestamp
    took timed_out _shards max_score kind etag type crs bbox copyright attribution help schema fields columns
    @odata.context @odata.nextlink @odata.count odata.metadata responsemetadata consumedcapacity lastevaluatedkey
    invocationid deliverystreamarn sourcekinesisstreamarn applicationarn streamarn region eventsource eventsourcearn
    job window shardid state isfinalinvokeforwindow iswindowterminatedearly
    """
)
"""Names of members that describe a list, in lower case."""
_MAX_PATH = 3
_MOST, _HALF = 0.9, 0.5  # parts of an object's text: nearly all of it, and half
_FEWEST_ROWS = 10
_STRUCTURE = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\Z)|[\[\]{}]', re.DOTALL)
_SPACES = " \t\r\n,\x1e\ufeff"
_PATH_NAME = re.compile(r"[^.\s\[\]$]+")


class _Sample(Struct, frozen=True):
    """The values at the top of a sample, the last of which may be cut off."""

    values: list[Any]  # parsed
    in_lines: bool  # whether each is an object on a line of its own


class _Rows(Struct, frozen=True):
    """A list of objects in an object, and the part of the object's text that it is."""

    path: tuple[str, ...]
    count: int
    part: float

    @property
    def name(self) -> str:
        """The path as ``json_rows`` takes it."""
        name = ".".join(self.path)
        return f"$.{name}" if name in ("lines", "values") else name

    @property
    def has_usual_name(self) -> bool:
        return self.path[-1].lower() in _NAMES


def sniff_json(sample: bytes, *, whole: bool, known: Mapping[str, Any]) -> list[Candidate]:
    """The ways to read a sample as JSON, best first; none if it is not JSON.

    Args:
        sample: UTF-8 text from the beginning of the file.
        whole: whether it is the whole file.
        known: attributes of the dialect that the user has set.
    """
    found = _parse(sample, whole)
    if found is None:
        return []
    dialect = Dialect(**known)
    if "json_rows" in known:
        return [Candidate("jsonl", dialect)]
    plain = "lines" if found.in_lines else "values"
    tops = [each for value in found.values for each in (value if isinstance(value, list) else [value])]
    if others := [each for each in tops if not isinstance(each, dict)]:
        if len(others) < len(tops):
            notes = [f"some values are objects, and others are not: {short_repr(others[0])}"]
        else:
            notes = [f"the values are not objects: they are in a column {VALUE_COLUMN!r}"]
        return [Candidate("jsonl", replace(dialect, json_rows="values"), tuple(notes))]
    own = Candidate("jsonl", replace(dialect, json_rows=plain), tuple(_note_columns(tops)))
    choices = [] if any(isinstance(value, list) for value in found.values) else _choose_paths(found.values)
    in_objects = [_at_path(dialect, rows, found.values) for rows in choices]
    if choices and _is_envelope(choices, found.values):
        return [*in_objects, own]
    if choices:
        names = ", ".join(repr(rows.name) for rows in choices)
        own = replace(own, notes=(*own.notes, f"each object is a row; its lists of objects ({names}) stay in it"))
    return [own, *in_objects]


def _note_columns(values: list[dict[str, Any]]) -> Iterator[str]:
    """A note on a file's only object if it is a table by columns, or by numbers of rows, as pandas writes them."""
    members = list(values[0].values()) if len(values) == 1 else []
    count = len(members)
    is_split = count and {"columns", "data"} <= values[0].keys() <= {"columns", "index", "data"}
    if is_split and all(isinstance(each, list) for each in members):
        orient = "split"
    elif count and all(isinstance(each, dict) and each for each in members):
        if list(members[0]) == [str(number) for number in range(len(members[0]))]:
            orient = "columns"
        elif list(values[0]) == [str(number) for number in range(count)]:
            orient = "index"
        else:
            return
    else:
        return
    yield f"the file is one object, so one row: write a table of pandas with orient='records', not {orient!r}"


def _at_path(dialect: Dialect, rows: _Rows, values: list[dict[str, Any]]) -> Candidate:
    left_out = list(dict.fromkeys(name for value in values for name, _ in _members_beside(value, rows.path)))
    losses = () if not left_out else (f"not in the rows: {', '.join(map(repr, left_out))}",)
    return Candidate("jsonl", replace(dialect, json_rows=rows.name), (f"the rows are at {rows.name!r}",), losses)


def _members_beside(value: dict[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """The members of an object that are not on a path, each by its own path."""
    for depth, step in enumerate(path):
        yield from ((".".join((*path[:depth], name)), each) for name, each in value.items() if name != step)
        value = value[step] or {}


def _choose_paths(values: list[dict[str, Any]]) -> list[_Rows]:
    """Paths to lists of objects that all of the objects have, the best first."""
    if _is_with_schema(values):
        return [_Rows(("payload",), 1, 1.0)]
    if any(_is_row(value) for value in values):
        return []
    common = {rows.path: rows for value in reversed(values) for rows in _lists(value)}
    for value in values:
        paths = {rows.path for rows in _lists(value)}
        common = {path: rows for path, rows in common.items() if path in paths or _has_nothing_at(value, path)}
    return sorted(common.values(), key=lambda rows: (len(rows.path), not rows.has_usual_name, -rows.part))


def _has_nothing_at(value: Any, path: tuple[str, ...]) -> bool:
    """Whether a path leads to an empty list or null."""
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return False
        value = value[name]
        if value is None:
            return True
    return isinstance(value, list) and not value


def _is_row(value: dict[str, Any]) -> bool:
    """Whether an object is an event of EventBridge, a change, or a finding of GuardDuty: a row, whatever it holds."""
    return bool(
        {"detail", "detail-type"} <= value.keys()
        or ("op" in value and ({"before", "after"} & value.keys()))
        or {"schemaVersion", "accountId", "service", "resource"} <= value.keys()
        or {"version", "triggerSource"} <= value.keys()
        or {"requestContext", "headers"} <= value.keys()
    )


def _is_with_schema(values: list[dict[str, Any]]) -> bool:
    """Whether each object is a schema of Kafka Connect beside its payload."""
    return all(
        value.keys() == {"schema", "payload"}
        and isinstance(value["schema"], dict | None)
        and isinstance(value["payload"], dict | None)
        for value in values
    ) and any(isinstance(value["schema"], dict) and value["schema"].get("type") == "struct" for value in values)


def _lists(value: dict[str, Any]) -> list[_Rows]:
    """The lists of objects in an object, and in the objects in it."""
    total, found = max(1, len(json.dumps(value))), []
    pending: list[tuple[tuple[str, ...], dict[str, Any]]] = [((), value)]
    while pending:
        path, inner = pending.pop()
        for name, member in inner.items():
            if not _PATH_NAME.fullmatch(name):
                continue
            if isinstance(member, dict) and len(path) < _MAX_PATH - 1:
                pending.append(((*path, name), member))
            elif isinstance(member, list) and member and all(isinstance(each, dict) for each in member):
                found.append(_Rows((*path, name), len(member), len(json.dumps(member)) / total))
    return found


def _is_envelope(choices: list[_Rows], values: list[dict[str, Any]]) -> bool:
    """Whether the objects are envelopes around the rows of the first choice."""
    rows = choices[0]
    if rows.path == ("payload",) and _is_with_schema(values):
        return True
    if sum(each.has_usual_name and len(each.path) == len(rows.path) for each in choices) > 1:
        return False  # two lists that look alike
    members = [each for value in values for each in _members_beside(value, rows.path)]
    beside = {name.rpartition(".")[2].lower() for name, _ in members}
    describes = beside <= _ABOUT
    if len(values) > 1:
        return rows.has_usual_name and describes and len(rows.path) == 1
    if not beside or (rows.has_usual_name and describes):
        return True
    if len(rows.path) == 1 and rows.path[0].lower() in _SURE_NAMES:
        return True
    if len(choices) > 1:
        return False
    others = [value for name, value in members if name.rpartition(".")[2].lower() not in _ABOUT]
    are_scalars = not any(isinstance(value, dict | list) for value in others) and (
        len(rows.path) == 1 or all(map(str.isidentifier, rows.path))  # others are data: topics of Kafka
    )
    if are_scalars:
        return rows.part >= _HALF or rows.count >= max(2, len(others))
    return rows.part >= _MOST and rows.count >= _FEWEST_ROWS


def _parse(sample: bytes, whole: bool) -> _Sample | None:
    """The values of a sample; None if it is not JSON. Texts and numbers need lines of their own: it may be CSV."""
    text = sample.removeprefix(BOM_UTF8)
    if text.lstrip(b" \t\r\n\x1e")[:1] not in (b"{", b"["):
        try:
            scalars = [json.loads(line) for line in text.split(b"\n")[: None if whole else -1] if line.strip()]
        except (ValueError, RecursionError):
            return None
        return _Sample(scalars, False) if scalars else None
    lines = _objects_in_lines(text, whole)
    if lines is not None:
        return _Sample(lines, True)
    if not whole:
        text = _close(text)
    values: list[Any] = []
    decoder, position = json.JSONDecoder(strict=False), 0
    decoded = text.decode(errors="replace")
    while True:
        while position < len(decoded) and decoded[position] in _SPACES:
            position += 1
        if position == len(decoded):
            break
        try:
            value, position = decoder.raw_decode(decoded, position)
        except (ValueError, RecursionError):
            break  # the strict reader says what is wrong, if it gets that far
        values.append(value)
    return _Sample(values, False) if values else None


def _objects_in_lines(text: bytes, whole: bool) -> list[Any] | None:
    """The objects of a sample whose lines hold one each; None if half of them do not. The last may be cut off."""
    lines = [line for line in text.split(b"\n") if line.strip()]
    if not whole and len(lines) > 1:
        lines.pop()
    values: list[Any] = []
    for index, line in enumerate(lines):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            values.append(value)
        elif 2 * len(values) <= index:  # some rows may be bad, but not half of them
            return None
    return values or None


def _close(text: bytes) -> bytes:
    """The text up to the last bracket that closes, and what closes those that are open there."""
    closes: list[int] = []
    end = depth = 0
    for match in _STRUCTURE.finditer(text):
        sign = match[0][0]
        if sign in b"[{":
            closes.append(sign + 2)  # "[" + 2 is "]", "{" + 2 is "}"
        elif sign in b"]}":
            if not closes:
                break
            closes.pop()
            end, depth = match.end(), len(closes)
    return text[:end] + bytes(reversed(closes[:depth]))
