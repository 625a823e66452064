"""Keeps rows that cannot be read, while the rest of their file is ingested.

Of a drop ``landing/<table>/<path>/<name>.csv`` there is then, under the place for rejects::

    <table>/<path>/<name>-<digest8>.rows.jsonl               a JSON object for each row: row, line, column, reason, text
    <table>/<path>/<name>-<digest8>.rows.jsonl.error.json    how many they are, the first places; written last

``text`` is the row as it stands in the file (``text_base64`` where that is not UTF-8), or as a JSON object if the file
is no text. Of rows that have none the whole file is copied too, to ``<name>-<digest8>.rows.csv``.

Both are written BEFORE the commit that takes the good rows in: whatever happens in between, nothing is lost, and the
event comes again. The digest is of the drop and of these rows, so that the same event leaves one copy. If the table
changed between two deliveries of one event, so that other rows are bad, there are two, and the report says by which
version of the database rows were judged.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from functools import partial
from tempfile import SpooledTemporaryFile
from types import TracebackType
from typing import Any, Self

from dolmen.base.units import MIB
from dolmen.errors import RowError
from dolmen.ingest.announcements import Drop
from dolmen.ingest.formats.csv.quoting import Records, last_record_end
from dolmen.ingest.formats.options import BadRow
from dolmen.ingest.formats.source import Format, SourceFile
from dolmen.ingest.formats.text.blocks import blocks
from dolmen.ingest.landing import Landing, LandingPath, exists
from dolmen.ingest.rejects.report import Reject, copy_drop, copy_once, drop_facts, rows_key, split_name, write_report

ROWS_SUFFIX = ".rows.jsonl"
MAX_BYTES = 256 * MIB
"""The most bytes of the bad rows of one file, as JSON. A file with more is rejected as a whole."""

_MEMORY_BYTES = MIB
_FIRST = 10
_HEADER_BYTES = 1 << 16


class Quarantine:
    """The bad rows of one file, in a temporary file as soon as they are many. Close it, best by ``with``.

    Args:
        name: what errors call the file.
        most: the most rows that may be bad.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self._rows = SpooledTemporaryFile[bytes](max_size=_MEMORY_BYTES)
        self._digest = hashlib.sha256()
        self._first: list[dict[str, Any]] = []
        self._bytes = self._without_text = self.count = 0

    def add(self, bad: BadRow) -> None:
        """Adds a row.

        Raises:
            RowError: there are too many; names the first.
        """
        self.count += 1
        place = {"row": bad.row, "line": bad.line, "column": bad.column, "reason": bad.reason}
        if len(self._first) < _FIRST:
            self._first.append(place)
        if self.count > self._most:
            raise self._too_many(f"more than {self._most:,} rows cannot be read (ingest_max_bad_rows)")
        line = json.dumps({**place, **_text(bad.text)}, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
        self._bytes += len(line)
        if self._bytes > MAX_BYTES:
            raise self._too_many(f"rows that cannot be read take more than {MAX_BYTES >> 20} MB")
        self._without_text += bad.text is None
        self._digest.update(line)
        self._rows.write(line)

    def keep(
        self,
        landing: Landing,
        drop: Drop,
        place: LandingPath,
        format: Format,
        header: bytes | None,
        database: dict[str, Any],
    ) -> Reject:
        """Writes the rows to where rejects go, then the report. Repeated, it changes nothing.

        Args:
            header: the file's first line, without which its rows are not to be understood.
            database: facts about the database at that time, for the report.

        Raises:
            ObjectNotFoundError, ObjectChangedError: the drop is gone, or was overwritten, and is needed.
            StoreUnavailableError, ...: not all is there.
        """
        store, content = landing.rejects_store(drop), self._digest.hexdigest()
        key = rows_key(drop, place, content, ROWS_SUFFIX)
        whole: dict[str, Any] = {}
        if self._without_text:
            copied = rows_key(drop, place, content, f".rows{split_name(place.path)[1]}")
            copy_drop(landing, drop, store, copied)
            whole = {"rows_without_text": self._without_text, "copy_of_file": copied}
        if not exists(store, key):
            self._rows.seek(0)
            copy_once(self._rows, store, key)
        report = {
            "file": place.path,
            **self._first[0],
            "error": "RowError",
            "rows": self.count,
            "first": self._first,
            "format": format.kind,
            **({} if header is None else {"header": _text(header)}),
            **drop_facts(landing, drop, key),
            **whole,
            "database": database,
            "then": "all other rows of this file are ingested; correct these, and drop them as a file of their own",
        }
        return write_report(landing, drop, key, report)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._rows.close()

    def _too_many(self, reason: str) -> RowError:
        first = self._first[0]
        return RowError(
            f"{reason}; the first: {first['reason']}",
            file=self._name,
            line=first["line"],
            row=first["row"],
            column=first["column"],
        )


def header_of(source: SourceFile) -> bytes | None:
    """The line that names the columns of a delimited file, without its end; None if it has none. Reads its beginning.

    Raises as ``formats.read`` does.
    """
    if source.format.known.delimiter is None or not source.options.header:
        return None
    find_end = partial(last_record_end, delimiter=source.delimiter)
    with source.text() as stream:
        for block in blocks(stream, find_end, source.name, _HEADER_BYTES):
            records = Records.of(block.data, source.delimiter, blank_lines_count=False)
            if len(records.starts):
                return block.data[int(records.starts[0]) : int(records.ends[0])].rstrip(b"\r\n")
    return None


def _text(text: bytes | None) -> dict[str, str | None]:
    if text is None:
        return {"text": None}
    try:
        return {"text": text.decode()}
    except UnicodeDecodeError:
        return {"text_base64": b64encode(text).decode()}
