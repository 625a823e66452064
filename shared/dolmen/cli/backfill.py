"""``dolmen backfill``: ingests existing files as if they were dropped now."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Annotated, Any, Optional

import typer
from rich.progress import Progress as RichProgress
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

import dolmen
from dolmen.base.units import GIB, count_text, megabytes_text
from dolmen.cli.exit_codes import INCOMPLETE
from dolmen.cli.options import Json, app
from dolmen.cli.output import console, errors, print_json, print_rows
from dolmen.errors import InputError
from dolmen.ingest.announcements import Drop
from dolmen.ingest.drops.announce_files import MAX_RECORDS, Announcement, DropSource, announce, group_drops
from dolmen.ingest.drops.ingest_drops import ingest_with_retries
from dolmen.ingest.queues import MAX_SQS_BATCH, Queue, open_queue
from dolmen.service.functions.function_settings import FunctionSettings

HERE_FILES, HERE_BYTES = 100, GIB
"""The most files and bytes of one commit when files are ingested in this process."""

_AHEAD = 8
"""Concurrent requests to the queue."""


@dataclass
class BackfillTally:
    """Counts of a backfill.

    Args:
        position: all files up to this key are done.
        files, bytes: number and size of files that were sent or ingested.
        skipped: number of files that cannot be drops.
        outcomes: number of files ingested here, by outcome.
        tables: files and bytes, by table.
    """

    position: str = ""
    files: int = 0
    bytes: int = 0
    skipped: int = 0
    messages: int = 0
    rows: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    tables: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, source: DropSource, drops: tuple[Drop, ...] | list[Drop]) -> None:
        """Counts files that are done."""
        for drop in drops:
            place = source.landing.path_of(drop)
            table = place.table if place else ""
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
    source: Annotated[str, typer.Argument(help="s3://bucket/folder, or a directory, with a folder for each table.")],
    queue: Annotated[
        str, typer.Option("--queue", "-q", help="The ingest queue; DOLMEN_INGEST_QUEUE by default.", show_default=False)
    ] = "",
    here: Annotated[
        bool, typer.Option("--here", help="Ingest in this process, without a queue; the default for a directory.")
    ] = False,
    database: Annotated[
        str, typer.Option("--database", "-d", envvar="DOLMEN_DATABASE", help="The database; needed for --here.")
    ] = "",
    table: Annotated[
        Optional[list[str]], typer.Option("--table", "-t", help="Take only files of this table; may be repeated.")  # noqa: UP045
    ] = None,
    start_after: Annotated[str, typer.Option(help="Go on after this key, where a run was interrupted.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report the files only.")] = False,
    landing_prefix: Annotated[
        str, typer.Option(envvar="DOLMEN_LANDING_PREFIX", help="The prefix of the keys of dropped files.")
    ] = "landing/",
    records: Annotated[int, typer.Option(help="The most files per message.", min=1, max=1000)] = MAX_RECORDS,
    auto_create: Annotated[
        bool, typer.Option("--auto-create", envvar="DOLMEN_AUTO_CREATE", help="With --here: create missing tables.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Ingest files that exist already: send the events that S3 would have sent, or ingest them in this process.

    Safe to repeat, also while new files arrive: each file is ingested once. Exit codes: 0 done; 2 some files were
        rejected
    (--here); 9 some failed temporarily, call it again (--here).
    """
    settings = FunctionSettings.of({**os.environ, "DOLMEN_DATABASE": database or "memory://none"})
    found = DropSource.of(
        source,
        database=database,
        tables=table or (),
        landing_prefix=landing_prefix,
        rejected_url=settings.rejected_url,
    )
    if here and queue:
        raise InputError("give either --here or --queue")
    if found.is_directory and queue:
        raise InputError("the function cannot read files of this machine: ingest them here, without --queue")
    here = here or found.is_directory
    queue = queue or os.environ.get("DOLMEN_INGEST_QUEUE", "")
    tally = BackfillTally(position=start_after)
    with _Shown(tally, as_json) as drops_of:
        drops = drops_of(found.drops(start_after))
        try:
            if dry_run:
                for drop in drops:
                    tally.add(found, [drop])
            elif here:
                if not database:
                    raise InputError("no database is named: give --database, or set DOLMEN_DATABASE")
                limits: dict[str, Any] = {"auto_create": auto_create, "max_bytes": settings.max_file_bytes}
                _ingest(found, dolmen.open(database), drops, tally, limits)
            elif queue:
                _send(found, open_queue(queue), announce(drops, max_records=records), tally)
            else:
                raise InputError(
                    "no destination: give --queue (the stack's outputs name it), or --here to ingest in this process"
                )
        except BaseException:
            if tally.position != start_after:
                behind = shlex.quote(tally.position)
                errors.print(f"ended early; go on with --start-after {behind}", markup=False, soft_wrap=True)
            raise
    _report(tally, dry_run=dry_run, here=here, as_json=as_json)
    if tally.outcomes["failed"]:
        raise typer.Exit(INCOMPLETE)
    if tally.outcomes["rejected"]:
        raise typer.Exit(2)


def _send(source: DropSource, queue: Queue, messages: Iterator[Announcement], tally: BackfillTally) -> None:
    """Sends several requests at once. Counts them in order, so that all files before the position are sent."""

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
                reason = outcome.error or "rejected before"
                errors.print(f"{outcome.status}: {outcome.drop.key}: {reason}", markup=False, highlight=False)
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
    skipped = f"; {tally.skipped:,} skipped (temporary names, folders, outside of a table's)" if tally.skipped else ""
    if not tally.files:
        console.print(f"nothing to do: no files that can be drops{skipped}", highlight=False)
    elif dry_run:
        console.print(
            f"would {'ingest' if here else 'announce'} {count_text(tally.files, 'file')}{skipped}", highlight=False
        )
    elif here:
        told = ", ".join(f"{count:,} {status}" for status, count in tally.outcomes.items())
        console.print(
            f"{count_text(tally.files, 'file')}: {told}; {count_text(tally.rows, 'row')}{skipped}", highlight=False
        )
    else:
        console.print(
            f"announced {count_text(tally.files, 'file')} in {count_text(tally.messages, 'message')}{skipped}",
            highlight=False,
        )


class _Shown:
    """Counts listed files, and shows progress on a terminal."""

    def __init__(self, tally: BackfillTally, quiet: bool) -> None:
        self._tally = tally
        self._bar = RichProgress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=errors,
            disable=quiet or not errors.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("listing", total=None)

    def __enter__(self) -> Any:
        self._bar.start()
        return self._drops

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def _drops(self, listed: Iterator[Drop | None]) -> Iterator[Drop]:
        tally = self._tally
        for drop in listed:
            if drop is None:
                tally.skipped += 1
                continue
            yield drop
            about = f"{count_text(tally.files, 'file')}, {megabytes_text(tally.bytes)} done; at {drop.key[-60:]}"
            self._bar.update(self._task, description=about)
