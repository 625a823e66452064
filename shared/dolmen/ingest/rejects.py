"""Rejects: files that cannot be read, or bad rows of a file whose other rows are ingested, with a report.

A rejected drop ``landing/<table>/<path>/<name>.csv`` becomes the first two objects under the URL for rejects. If only
its bad rows are rejected, they become the other two. Reports are written last::

    <table>/<path>/<name>-<digest8>.csv               the dropped bytes, unchanged
    <table>/<path>/<name>-<digest8>.csv.error.json    file, line, row, column, reason

    <table>/<path>/<name>-<digest8>.rows.jsonl               a JSON object for each row: row, line, column, reason, text
    <table>/<path>/<name>-<digest8>.rows.jsonl.error.json    how many they are, the first positions

The digest is of the drop, and of the bad rows: when the same event is delivered again, it finds its own reject. Rows
are written BEFORE the commit of the good ones, so that nothing is lost in between. ``text`` is a row's text in the file
(``text_base64`` where bytes are not UTF-8), or a JSON object if the file is not text. If rows have no text, the whole
file is copied too, to ``<name>-<digest8>.rows.csv``.
"""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import SpooledTemporaryFile
from types import TracebackType
from typing import Any, Self

from msgspec import Struct

from dolmen.base.runtime import attempts
from dolmen.base.temporary_files import explaining_full_disk
from dolmen.base.units import MIB, utc
from dolmen.errors import CorruptionError, Error, InputError, ObjectChangedError, RowError, StoreUnavailableError
from dolmen.ingest.announcements import Drop
from dolmen.ingest.formats.delimited.csv_reader import find_blocks, signs_of
from dolmen.ingest.formats.delimited.csv_records import Records
from dolmen.ingest.formats.source_file import BadRow, ByteStream, SourceFile
from dolmen.ingest.landing import Landing, LandingPath, etag_in, exists
from dolmen.store.base import MAX_KEY_BYTES, ObjectOutput, ObjectStore, Unknown

ERROR_SUFFIX = ".error.json"
_COPY_BYTES = MIB
_RESERVED_BYTES = 200  # bytes of a key reserved for the prefix of the rejects, and for suffixes
_UNFIT = re.compile(r"[\\\0]")  # characters that are valid in a key of S3, but not in a directory
_DIGEST_IN_NAME = re.compile(r"-[0-9a-f]{8}(?=\.|$)(?!.*-[0-9a-f]{8}(?:\.|$))")
_ENDING = re.compile(r"(\.[A-Za-z0-9]{1,10})?(\.(gz|zst|bz2|xz|lz4|zip))?$", re.IGNORECASE)


class Reject(Struct, frozen=True):
    """A rejected drop or rows of one. ``key`` is the copy's; without a copy, the report's without its ending."""

    key: str
    url: str


def reject_key(drop: Drop, path: LandingPath) -> str:
    """The key of the copy of a rejected drop."""
    return _add_digest(path, f"{drop.id}#{drop.sequencer or ''}")


def split_name(path: str) -> tuple[str, str]:
    """A path without its ending, and the ending: ``.csv.gz``. Names that begin with a dot have none."""
    folder, slash, name = path.rpartition("/")
    ending = _ENDING.search(name)
    suffix = ending[0] if ending and ending.start() else ""
    return f"{folder}{slash}{name.removesuffix(suffix)}", suffix


def _add_digest(path: LandingPath, identity: str, suffix: str | None = None) -> str:
    digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
    stem, ending = split_name(path.path)
    suffix = ending if suffix is None else suffix
    key = f"{stem}-{digest}{suffix}"
    if len(key.encode()) <= MAX_KEY_BYTES - _RESERVED_BYTES and not _UNFIT.search(key):
        return key
    return f"{_UNFIT.sub('-', path.path.partition('/')[0][:64])}/{digest}{suffix}"


def dropped_name(key: str) -> str:
    """The path of the dropped file below ``landing/``, from the key of its copy."""
    folder, slash, name = key.rpartition("/")
    return f"{folder}{slash}{_DIGEST_IN_NAME.sub('', name, count=1)}"


def find_reject(landing: Landing, drop: Drop, path: LandingPath) -> Reject | None:
    """Finds the reject of this event, if it is complete: one request."""
    store, key = landing.rejects_store(drop), reject_key(drop, path)
    return Reject(key, f"{store.url}/{key}") if exists(store, key + ERROR_SUFFIX) else None


def reject_drop(
    landing: Landing,
    drop: Drop,
    path: LandingPath,
    error: Error,
    database: dict[str, Any],
    *,
    copy: bool = True,
    hint: Mapping[str, Any] | None = None,
) -> Reject:
    """Copies a drop to the rejects, if ``copy``, then writes the report beside it. Idempotent.

    ``hint`` has members of the report that say what the file looks like.
    """
    store, key = landing.rejects_store(drop), reject_key(drop, path)
    try:
        if copy:
            _copy_drop(landing, drop, store, key)
        else:
            _check_unchanged(landing, drop)
    except InputError:  # the file's name cannot be a key: write only the report
        copy = False
    what = {
        "file": path.path,
        "line": getattr(error, "line", None),
        "row": getattr(error, "row", None),
        "column": getattr(error, "column", None),
        "reason": error.reason if isinstance(error, RowError) else str(error),
        "error": type(error).__name__,
        **(hint or {}),
    }
    about = _drop_details(landing, drop, key if copy else None)
    then = "nothing of this file was ingested; correct it, and drop it again"
    if not copy:
        then += "; it could not be copied here, and is still where it was dropped"
    return _write_report(landing, drop, key, {**what, **about, "database": database, "then": then})


def _drop_details(landing: Landing, drop: Drop, key: str | None) -> dict[str, Any]:
    """The details of the drop, and of its copy if there is one, for every report."""
    return {
        "source": drop.source,
        "bytes": drop.size,
        "version": drop.version,
        "etag": drop.etag,
        "landing": landing.root(drop),
        "copy": key,
        "dropped_us": drop.dropped_us,
        "rejected_at": utc(landing.rejects_store(drop).clock.now_us).isoformat(),
    }


def _write_report(landing: Landing, drop: Drop, key: str, report: dict[str, Any]) -> Reject:
    """Creates the report beside a copy, unless an earlier delivery wrote it. Raises StoreUnavailableError."""
    store, text = landing.rejects_store(drop), json.dumps(report, indent=2, ensure_ascii=False)
    for _ in attempts(landing.runtime):
        outcome = store.put(key + ERROR_SUFFIX, text.encode("utf-8", "surrogatepass") + b"\n")
        if not isinstance(outcome, Unknown):
            return Reject(key, f"{store.url}/{key}")
    raise StoreUnavailableError(f"cannot write {store.url}/{key}{ERROR_SUFFIX}: {outcome}")


def _check_unchanged(landing: Landing, drop: Drop) -> None:
    """Raises ObjectNotFoundError, ObjectChangedError: the drop was deleted, or overwritten."""
    store = landing.store(drop)
    info = store.head(drop.key, version=drop.version)
    if drop.version is None and info.etag != etag_in(store, drop.etag):
        raise ObjectChangedError(drop.key)


def _copy_drop(landing: Landing, drop: Drop, store: ObjectStore, key: str) -> None:
    """Copies a dropped file, unless an object of this name exists: it is the same copy, of an earlier delivery."""
    if not exists(store, key):  # an earlier delivery copied it: objects appear whole or not at all
        with landing.open(drop) as source:
            copy_once(source, store, key)


def copy_once(source: ByteStream, store: ObjectStore, key: str) -> None:
    """Copies a file in bounded memory, unless another process makes the same copy meanwhile."""
    with store.open_output(key) as target:
        while chunk := source.read(_COPY_BYTES):
            target.write(chunk)
        commit_once(target, store, key)


def commit_once(output: ObjectOutput, store: ObjectStore, key: str) -> None:
    """Commits an object, unless another process makes the same one meanwhile."""
    try:
        output.commit()
    except CorruptionError:
        if not exists(store, key):
            raise


ROWS_SUFFIX = ".rows.jsonl"
MAX_BYTES = 256 * MIB  # the most bytes of the bad rows of one file, as JSON. A file with more is rejected as a whole.
_MEMORY_BYTES = MIB
_FIRST = 10  # the number of bad rows whose positions the report lists
_HEADER_BYTES = 1 << 16


class Quarantine:
    """Collects the bad rows of one file, at most ``max_rows``. A context manager; many rows go to a temporary file.

    ``setting`` is the name of the setting or option that allows more of them, for the error.
    """

    def __init__(self, name: str, max_rows: int, setting: str = "ingest_max_bad_rows") -> None:
        self._name, self._max_rows, self._setting = name, max_rows, setting
        self._rows = SpooledTemporaryFile[bytes](max_size=_MEMORY_BYTES)
        self._digest = hashlib.sha256()
        self._first: list[dict[str, Any]] = []
        self._bytes = self._without_text = self.count = 0

    def add(self, bad: BadRow) -> None:
        """Adds a row. Raises RowError if there are too many; it names the first."""
        self.count += 1
        position = {"row": bad.row, "line": bad.line, "column": bad.column, "reason": bad.reason}
        if len(self._first) < _FIRST:
            self._first.append(position)
        if self.count > self._max_rows:
            raise self._limit_error(f"more than {self._max_rows:,} rows cannot be read ({self._setting})")
        line = json.dumps({**position, **_text(bad.text)}, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
        self._bytes += len(line)
        if self._bytes > MAX_BYTES:
            raise self._limit_error(f"rows that cannot be read take more than {MAX_BYTES >> 20} MB")
        self._without_text += bad.text is None
        self._digest.update(line)
        with self._full_disk():
            self._rows.write(line)

    def _full_disk(self) -> AbstractContextManager[None]:
        return explaining_full_disk("more rows cannot be read")

    def _rewound(self) -> SpooledTemporaryFile[bytes]:
        with self._full_disk():  # the last rows may still have to be written
            self._rows.seek(0)
        return self._rows

    def keep(
        self,
        landing: Landing,
        drop: Drop,
        path: LandingPath,
        source: SourceFile,
        header: bytes | None,
        database: dict[str, Any],
    ) -> Reject:
        """Writes the rows to the rejects, then the report. Idempotent.

        Args:
            source: the file, as it was read; the report records its dialect, without which its rows can't be read.
            header: the file's header line, for the same reason; None if there is none.
            database: details of the database at that time, for the report.
        """
        store, content = landing.rejects_store(drop), self._digest.hexdigest()
        key = _add_digest(path, f"{drop.id}#{content}", ROWS_SUFFIX)
        file_copy: dict[str, Any] = {}
        if self._without_text:
            copy_key = _add_digest(path, f"{drop.id}#{content}", f".rows{split_name(path.path)[1]}")
            _copy_drop(landing, drop, store, copy_key)
            file_copy = {"rows_without_text": self._without_text, "copy_of_file": copy_key}
        if not exists(store, key):
            copy_once(self._rewound(), store, key)
        then = "all other rows of this file are ingested; correct these, and drop them as a file of their own"
        report = {**self._facts(path.path, source, header), **_drop_details(landing, drop, key), **file_copy}
        report |= {"database": database, "then": then}
        return _write_report(landing, drop, key, report)

    def keep_in(self, path: Path, source: SourceFile, header: bytes | None, database: dict[str, Any]) -> None:
        """Writes the rows to a local file, then the report beside it. Raises InputError if it has other content."""
        rows = self._rewound().read()
        if path.exists() and path.read_bytes() != rows:
            raise InputError(f"{str(path)!r} exists, with other rows: move it, or name another file (--rejects)")
        then = "all other rows of this file are added; correct these, and append them as a file of their own"
        report = {**self._facts(self._name, source, header), "copy": str(path), "database": database, "then": then}
        path.write_bytes(rows)
        text = json.dumps(report, indent=2, ensure_ascii=False)
        path.with_name(path.name + ERROR_SUFFIX).write_bytes(text.encode("utf-8", "surrogatepass") + b"\n")

    def _facts(self, name: str, source: SourceFile, header: bytes | None) -> dict[str, Any]:
        """The members of a report that describe the rows."""
        dialect = source.options.dialect.properties()
        return {
            "file": name,
            **self._first[0],
            "error": "RowError",
            "rows": self.count,
            "first": self._first,
            "format": source.format.kind,
            **({"dialect": dialect} if dialect else {}),
            **({} if header is None else {"header": _text(header)}),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._rows.close()

    def _limit_error(self, reason: str) -> RowError:
        first = self._first[0]
        return RowError(
            f"{reason}; the first: {first['reason']}",
            file=self._name,
            line=first["line"],
            row=first["row"],
            column=first["column"],
        )


def header_of(source: SourceFile) -> bytes | None:
    """The header line of a delimited file, without its line end; None if there is none."""
    if source.format.traits.delimiter is None or not source.options.dialect.header:
        return None
    signs = signs_of(source)
    with source.text() as stream:
        for block in find_blocks(stream, source, _HEADER_BYTES):
            records = Records.of(block.data, signs, blank_lines_count=False)
            if len(records.starts):
                return signs.without_line_end(block.data[int(records.starts[0]) : int(records.ends[0])])
    return None


def _text(text: bytes | None) -> dict[str, str | None]:
    if text is None:
        return {"text": None}
    try:
        return {"text": text.decode()}
    except UnicodeDecodeError:
        return {"text_base64": b64encode(text).decode()}
