"""Puts rejects back into the landing place under a new name, so that the ordinary pipeline ingests them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from dolmen.base.runtime import Runtime
from dolmen.errors import CorruptionError, InputError
from dolmen.format.file_formats import FORMATS, FileKind
from dolmen.ingest.announcements import retry_name
from dolmen.ingest.landing import exists
from dolmen.ingest.rejects.listing import BadRows, Retry, earlier_retries, note_retry, open_reject, read_report, text_of
from dolmen.ingest.rejects.quarantine import ROWS_SUFFIX
from dolmen.ingest.rejects.report import copy_once, split_name
from dolmen.store.base import ObjectOutput, ObjectStore
from dolmen.store.url import open_store


def retry(
    store: ObjectStore,
    key: str,
    runtime: Runtime,
    *,
    landing: str | None = None,
    table: str | None = None,
    force: bool = False,
) -> Retry:
    """Puts a reject back: the whole file, or a file of the rows that are kept, under their header if they have one.

    Args:
        store: where rejects are.
        key: of the copy.
        landing: the URL below which files are dropped; None = where it was dropped, as its report says.
        table: for this table, instead of the one it was dropped for.
        force: again, if it was put back before.

    Raises:
        InputError: it was put back before; or it was dropped for no table; or nothing of it can be put back.
        NotFoundError: there is no such reject.
        ObjectNotFoundError, ObjectChangedError: it was not copied, and the drop is gone, or was overwritten.
        CorruptionError: its report is none, or its rows, or what was noted when it was put back before.
    """
    report, before = read_report(store, key), earlier_retries(store, key)
    if before and not force:
        raise InputError(f"{key} was put back {before[-1].get('at')} as {before[-1].get('as')}: --force does it again")
    root = landing or report.get("landing") or _root_of(report)
    if not root:
        raise InputError(f"the report of {key} does not say where it was dropped: give --landing")
    target = open_store(root, runtime)
    name = _name(key, report, len(before) + 1, table)
    rows, left = None, 0
    if key.endswith(ROWS_SUFFIX):
        rows, left = _write_rows(store, key, report, target, name)
    elif not exists(target, name):
        with open_reject(store, key, report, runtime) as source:
            copy_once(source, target, name)
    done = Retry(key, f"{target.url}/{name}", rows, left)
    note_retry(store, done, before, runtime)
    return done


def _root_of(report: dict[str, Any]) -> str:
    source, file = str(report.get("source", "")), str(report.get("file", ""))
    return source.removesuffix(file).rstrip("/") if file and source.endswith(file) else ""


def _name(key: str, report: dict[str, Any], time: int, table: str | None) -> str:
    """The name below the landing place: always the same for the same retry."""
    if key.endswith(ROWS_SUFFIX):
        stem, ending = key.removesuffix(ROWS_SUFFIX), f".{_kind(report)}"
    else:
        stem, ending = split_name(key)
    folder, slash, rest = stem.partition("/")
    if table is None and not slash:
        raise InputError(f"{key} was dropped for no table: say for which one, with --to-table")
    dropped_us = report.get("dropped_us")
    known = dropped_us if isinstance(dropped_us, int) and 0 <= dropped_us < 10**18 else None
    return retry_name(f"{table or folder}/{rest if slash else folder}", ending, time, known)


def _kind(report: dict[str, Any]) -> str:
    known = FORMATS.get(cast(FileKind, report.get("format")))
    return known.kind if known and known.delimiter else "jsonl"  # rows of other formats are kept as JSON


def _write_rows(
    store: ObjectStore, key: str, report: dict[str, Any], target: ObjectStore, name: str
) -> tuple[int, int]:
    """Writes the file of the rows; returns how many are in it, and how many are not."""
    quoted, header = _kind(report) != "jsonl", report.get("header")
    left = rows = 0

    def lines() -> Iterator[bytes]:
        nonlocal left, rows
        if isinstance(header, dict) and (text := text_of(header)) is not None:
            yield text
        for row in BadRows(store, key):
            text = row["text"]
            if text is None or (quoted and text.count(b'"') % 2):
                left += 1  # an open quote would swallow the rows after it
            else:
                rows += 1
                yield text

    there = exists(target, name)
    with target.open_output(name) as output:
        for line in lines():
            output.write(line + b"\n")
        if not rows:
            raise InputError(f"none of the {left} rows of {key} can be put back as it stands: {_where(report)}")
        if not there:
            _commit(output, target, name)
    return rows, left


def _commit(output: ObjectOutput, target: ObjectStore, name: str) -> None:
    try:
        output.commit()
    except CorruptionError:
        if not exists(target, name):
            raise


def _where(report: dict[str, Any]) -> str:
    whole = report.get("copy_of_file")
    return f"look at {whole}, the whole file" if whole else "correct them, and drop them as a file of their own"
