"""Commands on dropped files: ``backfill`` ingests existing ones, ``rejected`` lists and retries rejected ones."""

from __future__ import annotations

import os
import shlex
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import SpinnerColumn, TimeElapsedColumn
from typer import Argument, Option

import dolmen
from dolmen.base.records import replace
from dolmen.base.runtime import shared_runtime
from dolmen.base.units import GIB, count_text, size_text, utc
from dolmen.cli.exit_codes import INCOMPLETE
from dolmen.cli.options import DryRun, Json, app
from dolmen.cli.output import print_json, print_rows, print_text, printable, progress_bar, say, warn
from dolmen.errors import InputError, ObjectChangedError, ObjectNotFoundError
from dolmen.format.dialect import STRICT
from dolmen.ingest.announcements import Drop
from dolmen.ingest.drops.announce_files import MAX_RECORDS, Announcement, DropSource, announce, group_drops
from dolmen.ingest.drops.ingest_drops import ingest_with_retries
from dolmen.ingest.formats.formats import ReadOptions, SourceFile, detect
from dolmen.ingest.inference.sniff.encoding import sniff_encoding
from dolmen.ingest.landing import rejects_url
from dolmen.ingest.queues import MAX_SQS_BATCH, Queue, open_queue
from dolmen.ingest.reject_listing import (
    RejectEntry,
    find_reject_key,
    list_rejects,
    open_reject,
    read_bad_rows,
    read_report,
    read_reports,
)
from dolmen.ingest.reject_listing import read_retries as retries
from dolmen.ingest.reject_listing import retry as put_back
from dolmen.ingest.rejects import ROWS_SUFFIX
from dolmen.service.functions.function_settings import FunctionSettings
from dolmen.store import open_store
from dolmen.store.base import ObjectStore

HERE_FILES, HERE_BYTES = 100, GIB  # the most files and bytes of one commit when files are ingested in this process

_AHEAD = 8  # concurrent requests to the queue


@dataclass
class BackfillTally:
    """Counts of a backfill: of files that were sent, or ingested here, with their outcomes."""

    position: str = ""  # all files up to this key are done
    files: int = 0
    bytes: int = 0
    skipped: int = 0  # files that cannot be drops
    messages: int = 0
    rows: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    tables: dict[str, tuple[int, int]] = field(default_factory=dict)  # files and bytes

    def add(self, source: DropSource, drops: Sequence[Drop]) -> None:
        """Counts files that are done."""
        for drop in drops:
            path = source.landing.path_of(drop)
            table = path.table if path else ""
            files, size = self.tables.get(table, (0, 0))
            self.tables[table] = files + 1, size + drop.size
            self.files += 1
            self.bytes += drop.size
        self.position = drops[-1].key if drops else self.position

    def facts(self) -> dict[str, Any]:
        """The counts for ``--json``."""
        facts: dict[str, Any] = {"files": self.files, "bytes": self.bytes, "skipped": self.skipped}
        facts |= {"messages": self.messages} if self.messages else {}
        facts |= {"rows": self.rows, **self.outcomes} if self.outcomes else {}
        tables = {name: {"files": files, "bytes": size} for name, (files, size) in self.tables.items()}
        return facts | {"tables": tables, "position": self.position}


@app.command()
def backfill(
    source: Annotated[str, Argument(help="s3://bucket/folder, or a directory, with a folder for each table.")],
    queue: Annotated[
        str, Option("--queue", "-q", help="The ingest queue; DOLMEN_INGEST_QUEUE by default.", show_default=False)
    ] = "",
    here: Annotated[
        bool, Option("--here", help="Ingest in this process, without a queue; the default for a directory.")
    ] = False,
    database: Annotated[
        str, Option("--database", "-d", envvar="DOLMEN_DATABASE", help="The database; needed for --here.")
    ] = "",
    table: Annotated[
        list[str] | None, Option("--table", "-t", help="Take only files of this table; repeatable.")
    ] = None,
    start_after: Annotated[str, Option(help="Continue after this key, where an earlier run was interrupted.")] = "",
    dry_run: DryRun = False,
    landing_prefix: Annotated[
        str, Option(envvar="DOLMEN_LANDING_PREFIX", help="Prefix of the keys of dropped files.")
    ] = "landing/",
    records: Annotated[int, Option(help="The most files per message.", min=1, max=1000)] = MAX_RECORDS,
    auto_create: Annotated[
        bool, Option("--auto-create", envvar="DOLMEN_AUTO_CREATE", help="With --here: create missing tables.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Ingest files that exist already: send the events that S3 would have sent, or ingest them in this process.

    Safe to repeat, also while new files arrive: each file is ingested once.

    Exit codes: 0 done; 2 some files were rejected (--here); 9 some failed temporarily, call it again (--here).
    """
    settings = FunctionSettings.of({**os.environ, "DOLMEN_DATABASE": database or "memory://none"})
    drop_source = DropSource.of(
        source, database=database, tables=table or (), landing_prefix=landing_prefix, rejected_url=settings.rejected_url
    )
    if here and queue:
        raise InputError("give either --here or --queue")
    if drop_source.is_directory and queue:
        raise InputError("the ingest function cannot read local files: leave out --queue, to ingest them here")
    here = here or drop_source.is_directory
    queue = queue or os.environ.get("DOLMEN_INGEST_QUEUE", "")
    tally = BackfillTally(position=start_after)
    with _progress(drop_source.drops(start_after), tally, as_json) as drops:
        try:
            if dry_run:
                for drop in drops:
                    tally.add(drop_source, [drop])
            elif here:
                if not database:
                    raise InputError("no database is named: give --database, or set DOLMEN_DATABASE")
                limits: dict[str, Any] = {"auto_create": auto_create, "max_bytes": settings.max_file_bytes}
                _ingest(drop_source, dolmen.open(database), drops, tally, limits)
            elif queue:
                _send(drop_source, open_queue(queue), announce(drops, max_records=records), tally)
            else:
                raise InputError(
                    "no destination: give --queue (the stack's outputs name it), or --here to ingest in this process"
                )
        except BaseException:
            if tally.position != start_after:
                warn(f"ended early; go on with --start-after {shlex.quote(tally.position)}")
            raise
    _report(tally, dry_run=dry_run, here=here, as_json=as_json)
    if tally.outcomes["failed"]:
        raise typer.Exit(INCOMPLETE)
    if tally.outcomes["rejected"]:
        raise typer.Exit(2)


def _send(source: DropSource, queue: Queue, messages: Iterator[Announcement], tally: BackfillTally) -> None:
    """Sends several requests at once. Counts them in order: all files before the position are sent."""

    def send(batch: list[Announcement]) -> list[Announcement]:
        queue.send([packet.body for packet in batch])
        return batch

    batches = iter(lambda: list(islice(messages, MAX_SQS_BATCH)), [])
    for batch in source.runtime.map(send, batches, ahead=_AHEAD):
        for packet in batch:
            tally.add(source, packet.drops)
        tally.messages += len(batch)


def _ingest(
    source: DropSource, database: dolmen.Database, drops: Iterator[Drop], tally: BackfillTally, options: dict[str, Any]
) -> None:
    for group in group_drops(drops, HERE_FILES, HERE_BYTES):
        results = ingest_with_retries(database, source.landing, group, **options)
        for outcome in chain.from_iterable(result.outcomes for result in results):
            tally.outcomes[outcome.status] += 1
            tally.rows += outcome.counts.ingested
            if outcome.status in ("rejected", "failed"):
                warn(f"{outcome.status}: {outcome.drop.key}: {outcome.error or 'rejected before'}")
        tally.add(source, group)


def _report(tally: BackfillTally, *, dry_run: bool, here: bool, as_json: bool) -> None:
    if as_json:
        print_json(({"dry_run": True} if dry_run else {}) | tally.facts())
        return
    if tally.tables:
        print_rows(
            ["table", "files", "bytes"],
            ((name, f"{files:,}", f"{size:,}") for name, (files, size) in tally.tables.items()),
        )
    kinds = "temporary names, folders, files outside of tables"
    skipped = f"; {tally.skipped:,} skipped ({kinds})" if tally.skipped else ""
    files = count_text(tally.files, "file")
    if not tally.files:
        say(f"nothing to do: no files that can be drops{skipped}")
    elif dry_run:
        say(f"would {'ingest' if here else 'announce'} {files}{skipped}")
    elif here:
        outcomes = ", ".join(f"{count:,} {status}" for status, count in tally.outcomes.items())
        say(f"{files}: {outcomes}; {count_text(tally.rows, 'row')}{skipped}")
    else:
        say(f"announced {files} in {count_text(tally.messages, 'message')}{skipped}")


@contextmanager
def _progress(listed: Iterator[Drop | None], tally: BackfillTally, quiet: bool) -> Iterator[Iterator[Drop]]:
    """Yields the listed drops, while it counts the other files and shows progress on a terminal."""
    bar = progress_bar(SpinnerColumn(), "{task.description}", TimeElapsedColumn(), quiet=quiet)
    task = bar.add_task("listing", total=None)

    def drops() -> Iterator[Drop]:
        for drop in listed:
            if drop is None:
                tally.skipped += 1
                continue
            yield drop
            about = f"{count_text(tally.files, 'file')}, {size_text(tally.bytes)} done; at {drop.key[-60:]}"
            bar.update(task, description=about)

    with bar:
        yield drops()


rejected = typer.Typer(help="Files and rows that could not be ingested: list, show, try again.", no_args_is_help=True)
app.add_typer(rejected, name="rejected")

LOCAL = Path(".local/rejected")
_MOST_REASON_CHARACTERS = 300
_FIELDS_OF_REJECT = "key", "table", "size", "retried"
_HEAD_BYTES = 1 << 16

RejectedUrl = Annotated[
    str | None,
    Option(
        "--rejected",
        "-r",
        envvar="DOLMEN_REJECTED_URL",
        help="The URL of rejects, e.g. s3://landing-bucket/rejected. By default below DOLMEN_LANDING_URL, or .local.",
    ),
]
Key = Annotated[str, Argument(help="A key that ls shows, its 8 digits, or its name in logs.")]


@rejected.command()
def ls(
    table: Annotated[str | None, Argument(help="List only rejects of this table.")] = None,
    url: RejectedUrl = None,
    limit: Annotated[int, Option(help="The most rejects to list.", min=1)] = 50,
    all_: Annotated[bool, Option("--all", help="Also list rejects that were put back.")] = False,
    as_json: Json = False,
) -> None:
    """List rejects, newest first."""
    store = _store(url)
    rejects = list_rejects(store, table, retried=all_)
    shown = rejects[:limit]
    reports = read_reports(store, [reject.key for reject in shown], shared_runtime())
    for reject, report in zip(shown, reports, strict=True):
        if as_json:
            print_json({name: getattr(reject, name) for name in _FIELDS_OF_REJECT} | {"report": report})
        else:
            print_text(_two_lines(reject, report))  # not cut off, because keys are copied from here
    if not as_json:
        more = f", {len(rejects) - limit:,} more with a larger --limit" if len(rejects) > limit else ""
        say(f"{len(rejects):,} in {store.url}{more}")


@rejected.command()
def show(
    key: Key,
    url: RejectedUrl = None,
    lines: Annotated[int, Option(help="The most lines or rows to show.", min=0)] = 10,
    as_json: Json = False,
) -> None:
    """Show why something was rejected, and its first lines."""
    store = _store(url)
    reject_key = find_reject_key(store, key)
    report = read_report(store, reject_key)
    head = list(islice(_head(store, reject_key, report), lines))
    if as_json:
        print_json({"key": reject_key, "report": report, "retried": retries(store, reject_key), "head": head})
        return
    facts = {"key": reject_key, **{name: value for name, value in report.items() if value not in (None, {}, [])}}
    facts |= {f"retried {again.get('at')}": again.get("as") for again in retries(store, reject_key)}
    print_rows(["", ""], ((name.replace("_", " "), str(value)) for name, value in facts.items()))
    for line in head:
        print_text(line)


@rejected.command()
def retry(
    keys: Annotated[list[str] | None, Argument(help="Names as for show.")] = None,
    url: RejectedUrl = None,
    table: Annotated[str | None, Option(help="Put back all rejects of this table.")] = None,
    landing: Annotated[str | None, Option(help="The URL to put it below; by default the original one.")] = None,
    to_table: Annotated[str | None, Option(help="Put it back for this table instead of its own.")] = None,
    force: Annotated[bool, Option("--force", help="Also put back rejects that were put back before.")] = False,
    as_json: Json = False,
) -> None:
    """Put rejects back where files are dropped, under new names, so that the pipeline ingests them."""
    if bool(keys) == (table is not None):
        raise InputError("give either keys, or --table for all rejects of a table")
    store, runtime = _store(url), shared_runtime()
    if table is None:
        reject_keys = [find_reject_key(store, key) for key in keys or ()]
    else:
        reject_keys = [reject.key for reject in list_rejects(store, table, retried=force)]
    for key in reject_keys:
        done = put_back(store, key, runtime, landing=landing, table=to_table, force=force)
        if as_json:
            print_json({"key": done.key, "as": done.url, "rows": done.rows, "left": done.unwritten})
            continue
        rows = "" if done.rows is None else f" ({count_text(done.rows, 'row')})"
        say(f"{done.key} is dropped again as {done.url}{rows}")
        if done.unwritten:
            left = count_text(done.unwritten, "row")
            say(f"  {left} of it cannot be put back unchanged: dolmen rejected show {done.key}")


def _store(url: str | None) -> ObjectStore:
    """The store of rejects that the ingest function uses, or that of ``make up``."""
    if url:
        return open_store(url)
    if landing := os.environ.get("DOLMEN_LANDING_URL"):
        return open_store(rejects_url(landing))
    if LOCAL.is_dir():
        return open_store(str(LOCAL))
    raise InputError("the URL of rejects is missing: give --rejected, e.g. s3://landing-bucket/rejected")


def _two_lines(reject: RejectEntry, report: dict[str, Any]) -> str:
    """Two lines about a reject, for people."""
    where = _position(report, "line", "column")
    reason = str(report.get("reason", "its report cannot be read")).partition("\n")[0]
    size = reject.size if reject.size is not None else report.get("bytes")
    extent = f"{size:,} bytes" if isinstance(size, int) else "not copied"
    if isinstance(report.get("rows"), int):
        extent = f"{count_text(report.get('rows', 0), 'row')} of a file"
    elif reject.size is None:
        extent += ", where it was dropped"
    mark = ", put back" if reject.retried else ""
    summary = (f"{where}: {reason}" if where else reason)[:_MOST_REASON_CHARACTERS]
    return f"{utc(reject.rejected_us):%Y-%m-%d %H:%M:%S}  {printable(reject.key)}  ({extent}{mark})\n    {summary}"


def _position(report: Mapping[str, Any], *names: str) -> str:
    return ", ".join(f"{name} {report[name]}" for name in names if report.get(name) is not None)


def _head(store: ObjectStore, key: str, report: dict[str, Any]) -> Iterator[str]:
    """The first lines of a text file, or the rows that were kept."""
    if key.endswith(ROWS_SUFFIX):
        for row in read_bad_rows(store, key):
            yield f"{_position(row, 'line', 'row')}: {_line_text(row['text'] or b'')}"
        return
    try:
        format = detect(key)
        if not format.traits.is_text:
            return
        open_it = partial(open_reject, store, key, report, shared_runtime())
        source = SourceFile(open_it, format, key)
        with source.stream() as stream:
            encoding = sniff_encoding(stream.read(_HEAD_BYTES), whole=False)
        options = ReadOptions(dialect=replace(STRICT, encoding=encoding))
        with replace(source, options=options).text() as stream:
            yield from (_line_text(line) for line in stream.read(_HEAD_BYTES).removeprefix(BOM_UTF8).splitlines())
    except (InputError, ObjectNotFoundError, ObjectChangedError) as error:
        yield f"... {error}"  # this may be why it was rejected


def _line_text(line: bytes) -> str:
    return line[: 10 * _MOST_REASON_CHARACTERS].decode(errors="replace")
