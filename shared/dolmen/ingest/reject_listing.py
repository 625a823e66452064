"""Lists rejects, reads their reports, opens them, and puts them back into the landing bucket under a new name.

The object ``<copy>.retried.json``, beside the copy and the report, says when a reject was put back, and as which file.
"""

from __future__ import annotations

import codecs
import json
import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator
from io import BufferedReader
from typing import Any, BinaryIO, cast
from urllib.parse import unquote

import msgspec
from msgspec import Struct

from dolmen.base.runtime import Runtime
from dolmen.base.units import MIB, utc
from dolmen.errors import CorruptionError, InputError, NotFoundError, ObjectNotFoundError, StoreUnavailableError
from dolmen.format.dialect import STRICT, Dialect
from dolmen.format.ingest_properties import FORMATS, FileKind
from dolmen.ingest.announcements import retry_name
from dolmen.ingest.formats.delimited.csv_records import Signs
from dolmen.ingest.landing import etag_in, exists
from dolmen.ingest.rejects import ERROR_SUFFIX, ROWS_SUFFIX, commit_once, copy_once, dropped_name, split_name
from dolmen.store import open_store
from dolmen.store.base import ObjectStore, PreconditionFailed, Stored

RETRIED_SUFFIX = ".retried.json"
_DIGEST = re.compile(r"[0-9a-f]{8}")


class RejectEntry(Struct, frozen=True):
    """A reject as a listing shows it; ``rejected_us`` is by the store's clock.

    ``key`` is the copy's. If the drop was not copied, it is the report's without its ending, and ``size`` is None.
    """

    key: str
    size: int | None
    rejected_us: int
    retried: bool

    @property
    def table(self) -> str:
        """The table that it was dropped for; empty for a file outside of any table's directory."""
        return self.key.partition("/")[0] if "/" in self.key else ""


def list_rejects(store: ObjectStore, table: str | None = None, *, retried: bool = False) -> list[RejectEntry]:
    """The rejects, newest first, of all tables or of one; ``retried`` includes those that were put back."""
    copies: dict[str, int] = {}
    reports: dict[str, int] = {}
    put_back: set[str] = set()
    for info in store.list(f"{table}/" if table else ""):
        if info.key.endswith(ERROR_SUFFIX):
            reports[info.key.removesuffix(ERROR_SUFFIX)] = info.last_modified_us
        elif info.key.endswith(RETRIED_SUFFIX):
            put_back.add(info.key.removesuffix(RETRIED_SUFFIX))
        else:
            copies[info.key] = info.size
    entries = [RejectEntry(key, copies.get(key), at, key in put_back) for key, at in reports.items()]
    shown = [entry for entry in entries if retried or not entry.retried]
    return sorted(shown, key=lambda entry: (-entry.rejected_us, entry.key))


def find_reject_key(store: ObjectStore, name: str) -> str:
    """Finds a reject's key by any name in logs and listings: its key or URL, or that of its report, the 8 digits in it,
    or the key or URL of the dropped file. Raises NotFoundError; InputError if there are several.
    """
    copy = name.removesuffix(ERROR_SUFFIX)
    key = copy.removeprefix(f"{store.url}/")
    if not _DIGEST.fullmatch(name) and "://" not in key and exists(store, key + ERROR_SUFFIX):
        return key
    rejects = list_rejects(store, retried=True)
    keys = [reject.key for reject in rejects if name in re.split(r"[-/.]", reject.key)]
    keys = keys or [reject.key for reject in rejects if _ends_with(copy, reject.key)]
    keys = keys or [reject.key for reject in rejects if _ends_with(copy, dropped_name(reject.key))]
    if len(keys) > 1:
        raise InputError(f"{len(keys)} rejects have the name {name!r}: name one of {', '.join(keys)}")
    if not keys:
        raise NotFoundError(f"no reject in {store.url} has the name {name!r}: dolmen rejected ls lists all")
    return keys[0]


def _ends_with(url: str, path: str) -> bool:
    """Whether a URL or key ends with a path."""
    return f"/{unquote(url)}".endswith(f"/{path}") or f"/{url}".endswith(f"/{path}")


def read_report(store: ObjectStore, key: str) -> dict[str, Any]:
    """The report of a reject. Raises NotFoundError if there is none, CorruptionError if it cannot be read."""
    try:
        body = store.get(key + ERROR_SUFFIX).body
    except ObjectNotFoundError:
        raise NotFoundError(f"no reject {key!r} in {store.url}: dolmen rejected ls shows them") from None
    try:
        report = json.loads(body)
    except ValueError as error:
        raise CorruptionError(key + ERROR_SUFFIX, f"not JSON: {error}") from error
    if not isinstance(report, dict):
        raise CorruptionError(key + ERROR_SUFFIX, "not a report")
    return report


def read_reports(store: ObjectStore, keys: Iterable[str], runtime: Runtime) -> Iterator[dict[str, Any]]:
    """Reads several reports, in order; a report that cannot be read is empty."""

    def read_or_empty(key: str) -> dict[str, Any]:
        try:
            return read_report(store, key)
        except (NotFoundError, CorruptionError):
            return {}

    return runtime.map(read_or_empty, keys)


def open_reject(store: ObjectStore, key: str, report: dict[str, Any], runtime: Runtime) -> BinaryIO:
    """Opens a rejected file: the copy or, if there is none, the drop itself."""
    if report.get("copy", key) is not None:
        return store.open_input(key)
    root, file, version, etag = (report.get(name) for name in ("landing", "file", "version", "etag"))
    if not (isinstance(root, str) and isinstance(file, str) and (version or etag)):
        raise CorruptionError(key + ERROR_SUFFIX, "it names neither a copy nor the file's location")
    landing = open_store(root, runtime)
    if version:
        return landing.open_input(file, version=str(version))
    return landing.open_input(file, etag=etag_in(landing, str(etag)))


def read_bad_rows(store: ObjectStore, key: str) -> Iterator[dict[str, Any]]:
    """The rows in a ``.rows.jsonl``, with ``text`` as bytes."""
    with BufferedReader(cast(Any, store.open_input(key)), MIB) as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
                yield {**row, "text": text_of(row)}
            except (ValueError, TypeError) as error:
                raise CorruptionError(key, f"line {number} is not a row: {error}") from error


def text_of(members: dict[str, Any]) -> bytes | None:
    """The bytes of a text in a report or a row."""
    if (encoded := members.get("text_base64")) is not None:
        return b64decode(encoded)
    text = members.get("text")
    return None if text is None else str(text).encode("utf-8", "surrogatepass")


class Retry(Struct, frozen=True):
    """A reject that was put back as the file at ``url``, whole or with a number of ``rows``.

    ``unwritten`` rows are not in it: they have no text, or an unclosed quote.
    """

    key: str
    url: str
    rows: int | None
    unwritten: int


def read_retries(store: ObjectStore, key: str) -> list[dict[str, str]]:
    """Reads when a reject was put back, and as which URLs. Raises CorruptionError: the note cannot be read."""
    try:
        body = store.get(key + RETRIED_SUFFIX).body
    except ObjectNotFoundError:
        return []
    try:
        return msgspec.json.decode(body, type=list[dict[str, str]])
    except msgspec.DecodeError as error:
        raise CorruptionError(key + RETRIED_SUFFIX, f"not a list of retries: {error}") from error


def note_retry(store: ObjectStore, retry: Retry, retries: list[dict[str, str]], runtime: Runtime) -> None:
    """Notes that a reject was put back. Raises StoreUnavailableError: it was put back, but could not be noted."""
    at = utc(runtime.clock_us()).isoformat()
    body = json.dumps([*retries, {"at": at, "as": retry.url}], indent=2).encode() + b"\n"
    key = retry.key + RETRIED_SUFFIX
    outcome = store.put(key, body) if not retries else store.put(key, body, if_match=store.head(key).etag)
    if not isinstance(outcome, (Stored, PreconditionFailed)):  # refused: another process noted the same
        raise StoreUnavailableError(f"{retry.url} is there, but {store.url}/{key} could not be written: {outcome}")


def retry(
    store: ObjectStore,
    key: str,
    runtime: Runtime,
    *,
    landing: str | None = None,
    table: str | None = None,
    force: bool = False,
) -> Retry:
    """Puts a reject back: the whole file, or a file of its bad rows, under their header if they have one.

    Args:
        store: where rejects are.
        landing: the URL below which files are dropped; None takes it from the report.
        table: put it back for this table, instead of its own.
        force: put it back even if that was done before.

    Raises:
        InputError: it was put back before, or was dropped for no table, or nothing of it can be put back.
        NotFoundError: there is no such reject.
        ObjectNotFoundError, ObjectChangedError: it was not copied, and the drop was deleted or overwritten.
        CorruptionError: its report, its rows or the note of earlier retries cannot be read.
    """
    report, past = read_report(store, key), read_retries(store, key)
    if past and not force:
        raise InputError(f"{key} was put back {past[-1].get('at')} as {past[-1].get('as')}: --force does it again")
    url, file = str(report.get("source", "")), str(report.get("file", ""))
    root = landing or report.get("landing")
    if not root and file and url.endswith(file):
        root = url.removesuffix(file).rstrip("/")
    if not root:
        raise InputError(f"the report of {key} does not say where it was dropped: give --landing")
    target = open_store(root, runtime)
    name = _name(key, report, len(past) + 1, table)
    rows, unwritten = None, 0
    if key.endswith(ROWS_SUFFIX):
        rows, unwritten = _write_rows(store, key, report, target, name)
    elif not exists(target, name):
        with open_reject(store, key, report, runtime) as source:
            copy_once(source, target, name)
    done = Retry(key, f"{target.url}/{name}", rows, unwritten)
    note_retry(store, done, past, runtime)
    return done


def _name(key: str, report: dict[str, Any], time: int, table: str | None) -> str:
    """The name below the landing URL: always the same for the same retry."""
    if key.endswith(ROWS_SUFFIX):
        stem, ending = key.removesuffix(ROWS_SUFFIX), f".{_kind(report)}"
    else:
        stem, ending = split_name(key)
    folder, slash, path = stem.partition("/")
    if table is None and not slash:
        raise InputError(f"{key} was not dropped for a table: name one with --to-table")
    dropped_us = report.get("dropped_us")
    if not isinstance(dropped_us, int) or not 0 <= dropped_us < 10**18:
        dropped_us = None
    return retry_name(f"{table or folder}/{path if slash else folder}", ending, time, dropped_us)


def _kind(report: dict[str, Any]) -> FileKind:
    format = FORMATS.get(cast(FileKind, report.get("format")))
    return format.kind if format and format.delimiter else "jsonl"  # rows of other formats are JSON


def _dialect(report: dict[str, Any]) -> Dialect:
    """The dialect in which rows were read, and will be read again."""
    properties = report.get("dialect")
    return Dialect.of(properties) if isinstance(properties, dict) else STRICT


def _encoder(dialect: Dialect) -> Callable[[bytes], bytes]:
    """Encodes lines of UTF-8, one after the other, as a file of the dialect has them."""
    if dialect.encoding == "utf-8":
        return lambda line: line
    encoder = codecs.getincrementalencoder("cp1252" if dialect.encoding == "windows-1252" else dialect.encoding)()
    return lambda line: encoder.encode(line.decode())


def _json_around(dialect: Dialect) -> tuple[bytes, bytes]:
    """The text before and after a row of JSON in an object that has it at the dialect's path."""
    if dialect.json_rows in ("lines", "values"):
        return b"", b""
    names = dialect.json_rows.removeprefix("$.").split(".")
    return "".join(f"{{{json.dumps(name)}:" for name in names).encode() + b"[", b"]" + b"}" * len(names)


def _write_rows(
    store: ObjectStore, key: str, report: dict[str, Any], target: ObjectStore, name: str
) -> tuple[int, int]:
    """Writes a file of the rows; returns how many are in it, and how many are not."""
    kind, header, dialect = _kind(report), report.get("header"), _dialect(report)
    delimiter = FORMATS[kind].delimiter
    signs = None if delimiter is None else Signs.of(dialect, dialect.delimiter or delimiter)
    encode, (before, after) = _encoder(dialect), _json_around(dialect)
    unwritten = rows = 0

    def lines() -> Iterator[bytes]:
        nonlocal unwritten, rows
        if signs is not None and dialect.skip_lines:
            yield encode(b"\n" * dialect.skip_lines)
        if isinstance(header, dict) and (text := text_of(header)) is not None:
            yield encode(text + b"\n")
        for row in read_bad_rows(store, key):
            text = row["text"]
            try:
                if text is None or (signs is not None and not signs.ends_with_line(text)):
                    unwritten += 1  # an open quote would swallow the rows after it
                    continue
                line = encode(before + text + after + b"\n")
            except UnicodeError:  # a row of JSON that the encoding does not have
                unwritten += 1
                continue
            rows += 1
            yield line

    exists_already = exists(target, name)
    with target.open_output(name) as output:
        for line in lines():
            output.write(line)
        if not rows:
            copy = report.get("copy_of_file")
            where = f"look at {copy}, the whole file" if copy else "correct them, and drop them as a file of their own"
            raise InputError(f"none of the {unwritten} rows of {key} can be put back unchanged: {where}")
        if not exists_already:
            commit_once(output, target, name)
    return rows, unwritten
