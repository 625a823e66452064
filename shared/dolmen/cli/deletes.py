"""Commands on deletes beyond ``dolmen delete``: erasures and their receipts, and requests in the delete queue."""

from __future__ import annotations

import shlex
from typing import Annotated, Any, TypeAlias

import typer
from rich.markup import escape
from typer import Argument, Option

import dolmen
from dolmen.api.table import ErasureResult
from dolmen.base.runtime import shared_runtime
from dolmen.base.units import utc
from dolmen.cli.exit_codes import DAMAGED, exit_code
from dolmen.cli.inputs import KeyColumns, Keys, KeysFile, read_keys
from dolmen.cli.options import DatabaseUrl, InputFormat, Json, TableName, Yes, ask, command, names_of, open_existing
from dolmen.cli.output import commit_facts, print_commit, print_json, print_rows, say, warn
from dolmen.commit.head import context_of
from dolmen.errors import InputError, RetryableError
from dolmen.ingest.delete_requests import RequestStatus, check, check_size, compose, parse_request, status_of
from dolmen.ingest.queues import Queue, open_queue

_IRREVERSIBLE = "this can't be undone. "

Within: TypeAlias = Annotated[
    str | None, Option(help="When the rows leave the disk, such as 2d; by default the setting erase_within.")
]


@command()
def erase(
    table: TableName,
    database: DatabaseUrl,
    where: Annotated[str | None, Option(help="Predicate, e.g. 'user_id = 42'. TRUE erases all.")] = None,
    keys: Keys = "",
    keys_file: KeysFile = None,
    form: InputFormat = None,
    on: KeyColumns = "",
    within: Within = None,
    yes: Yes = False,
    about: Any = None,
    as_json: Json = False,
) -> None:
    """Delete rows for good: from older versions, tags and clones too, and from the disk within erase_within."""
    db, columns = open_existing(database), names_of(on)
    chosen = read_keys(db, table, where, keys, keys_file, form, columns)
    if not yes:
        ask(f"erase these rows of {table}, in all versions and clones?", as_json, _IRREVERSIBLE)
    done = db.table(table).erase(where, keys=chosen, on=columns, within=within, **about)
    _print_erasure(done, as_json)


@command()
def forget(
    subjects: Annotated[list[str], Argument(metavar="SUBJECT...", help="The values of the column to forget.")],
    database: DatabaseUrl,
    text: Annotated[bool, Option("--text", help="42 is a text, not a number.")] = False,
    dropped: Annotated[bool, Option("--dropped", help="Also if only dropped tables may have rows about them.")] = False,
    within: Within = None,
    yes: Yes = False,
    about: Any = None,
    as_json: Json = False,
) -> None:
    """Erase all rows about a person, in every table with the setting subject, in one commit."""
    db = open_existing(database)
    if not yes:
        ask("erase all rows about these subjects, in all tables, versions and clones?", as_json, _IRREVERSIBLE)
    values = [value if text else _number_or_text(value) for value in subjects]
    _print_erasure(db.forget(values, dropped=dropped, within=within, **about), as_json)


def _number_or_text(value: str) -> int | str:
    is_number = value.removeprefix("-").isdecimal() and value.isascii()
    return int(value) if is_number and str(int(value)) == value else value  # 007 is a text


def _print_erasure(done: ErasureResult, as_json: bool) -> None:
    publications = done.publications
    if as_json:
        optional = {
            "published": {each.table: each.version for each in publications.published},
            "unpublished": {name: str(error) for name, error in publications.failures.items()},
            "published_by_hand": list(publications.by_hand),
        }
        due = {} if done.due_at is None else {"due_at": done.due_at.isoformat()}
        facts = {**commit_facts(done.commit), "erasure": done.id, **due, "sources": list(done.sources)}
        print_json(facts | {name: value for name, value in optional.items() if value})
        return
    print_commit(done.commit, as_json)
    due_text = "" if done.due_at is None else f", gone from the disk by {done.due_at:%Y-%m-%d %H:%M} UTC"
    say(f"erasure {done.id}{due_text}")
    for source in done.sources:
        warn(f"this was cloned from {source}, which keeps its rows: erase there too")
    for published in publications.published:
        say(f"{published.table}: published as Iceberg, version {published.version}")
    for name in publications.by_hand:
        command = f"dolmen publish-iceberg --table {name}"
        warn(f"{name}: it is published as Iceberg by hand, and its readers still see the rows: {command}")
    for name, error in publications.failures.items():
        warn(f"{name}: not published as Iceberg yet, and its readers still see the rows: {error}")


@command()
def erasures(
    database: DatabaseUrl,
    action: Annotated[str, Argument(metavar="[list|show|verify|hurry]", help="What to do.")] = "list",
    id_: Annotated[str, Argument(metavar="[ID]", help="The erasure, to show, verify or hurry it.")] = "",
    all_: Annotated[bool, Option("--all", help="Also list erasures whose rows are gone from the disk.")] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """List erasures, show the receipt of one, verify it, or hurry it. Exit code 7: the database contradicts a receipt.

    hurry rewrites the files that hold the rows now, and lets all earlier versions expire, with their tags.
    """
    if action not in ("list", "show", "verify", "hurry") or (action == "list") == bool(id_):
        raise InputError("give nothing, list, show ID, verify ID or hurry ID")
    db = open_existing(database)
    if action == "list":
        receipts = db.receipts(gone=all_)
        if as_json:
            print_json([each.to_dict() for each in receipts])
            return
        rows = ((r.id, r.state, r.receipt.requested_at, r.receipt.due_at, r.next_step) for r in receipts)
        print_rows(
            ["erasure", "state", "requested (UTC)", "due (UTC)", "next"],
            ((id_, state, _time(requested), _time(due), step) for id_, state, requested, due, step in rows),
        )
        return
    if action == "hurry" and not yes:
        question = "rewrite its files now, and let all earlier versions expire, with their tags?"
        ask(question, as_json, _IRREVERSIBLE)
    actions = {"show": db.receipt, "verify": db.verify_receipt, "hurry": db.hurry_erasure}
    result: Any = actions[action](id_)
    if as_json:
        print_json(result.to_dict())
    else:
        for name, value in result.facts():
            say(f"[bold]{name}[/]: {escape(value)}", markup=True)
    if action == "verify" and not result.ok:
        raise typer.Exit(DAMAGED)


def _time(at_us: int) -> str:
    return f"{utc(at_us):%Y-%m-%d %H:%M}" if at_us else ""


_POLL_SECONDS = (0.2, 5.0)


@command("request-delete")
def request_delete(
    tables: Annotated[list[str], Argument(metavar="TABLE...", help="One or several tables.")],
    queue: Annotated[
        str,
        Option(
            "--queue",
            "-q",
            envvar="DOLMEN_DELETE_QUEUE",
            help="The delete queue: a URL of SQS, or a directory (.local/queue).",
        ),
    ],
    where: Annotated[str | None, Option(help="Predicate, e.g. 'user_id = 42'. TRUE deletes all.")] = None,
    keys: Keys = "",
    keys_file: KeysFile = None,
    form: InputFormat = None,
    on: KeyColumns = "",
    mode: Annotated[str, Option(help="tombstone, or positions to look the rows up.")] = "tombstone",
    request_id: Annotated[str | None, Option(help="Apply this only once under this id; a new id by default.")] = None,
    database: Annotated[
        str, Option("--database", "-d", envvar="DOLMEN_DATABASE", help="Check the request against this database first.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Put a delete request into the queue, and print its id. The delete function applies it once.

    The request is checked first: its text, and its tables if the database is named.

    Exit codes: 0 sent; 2 it must be corrected, or is too large; 4 it may have been sent: repeat it under the same id.
    """
    db, columns = dolmen.open(database) if database else None, names_of(on)
    key_table = read_keys(db, tables[0], where, keys, keys_file, form, columns)
    if keys_file is not None and key_table is not None:
        columns = columns or key_table.column_names
    target = open_queue(queue)
    id_ = shared_runtime().uuid() if request_id is None else request_id
    body = compose(tables, where=where, keys=key_table, on=columns, mode=mode, request_id=id_)
    check_size(body, target)
    version = check(db, parse_request(body, None)) if db else None
    try:
        target.send([body])
    except RetryableError as error:
        warn(f"the request may or may not have been sent: repeat it with --request-id {id_}")
        raise error
    if as_json:
        print_json({"request_id": id_, "queue": target.url, "checked_against_version": version})
        return
    say(id_)
    checked = f"checked against version {version}" if db else "not checked against a database: none was named"
    warn(f"in the queue; {checked}. See: dolmen request-status {shlex.quote(id_)}")


@command("request-status")
def request_status(
    ids: Annotated[list[str], Argument(metavar="ID...", help="Ids that request-delete printed.")],
    database: DatabaseUrl,
    queue: Annotated[
        str, Option("--queue", "-q", envvar="DOLMEN_DELETE_QUEUE", help="Also count the waiting messages.")
    ] = "",
    wait: Annotated[float, Option(help="Seconds to wait until all are applied.", min=0)] = 0,
    as_json: Json = False,
) -> None:
    """Show whether delete requests are applied, and by which version.

    An id that is not applied is waiting, failed, or was never sent: only a queue in a directory shows which.
    The database keeps ids for its applied_retention, 35 days by default.

    Exit codes: 0 all are applied; 4 not yet, or not known; 2 one has failed (known only for a queue in a directory).
    """
    db = open_existing(database)
    target = open_queue(queue) if queue else None
    clock, pause = context_of(db).runtime.monotonic, _POLL_SECONDS[0]
    until = clock() + wait
    while True:
        statuses = status_of(db, ids, target)
        seconds_left = until - clock()
        if seconds_left <= 0 or all(status.state in ("applied", "failed") for status in statuses):
            break
        context_of(db).runtime.sleep(min(pause, seconds_left))
        pause = min(2 * pause, _POLL_SECONDS[1])
    states = {status.state for status in statuses}
    is_open = not states.isdisjoint(("waiting", "unknown"))
    _print_statuses(statuses, target if is_open else None, as_json)
    if "failed" in states:
        raise typer.Exit(exit_code(InputError()))
    if is_open:
        raise typer.Exit(exit_code(RetryableError()))


def _print_statuses(statuses: list[RequestStatus], queue: Queue | None, as_json: bool) -> None:
    depth = queue.depth() if queue else None
    rows = [(status.id, status.state, status.version, status.reason) for status in statuses]
    if as_json:
        requests = [dict(zip(("request_id", "state", "version", "reason"), row, strict=True)) for row in rows]
        waiting = {"waiting": depth.waiting, "under_way": depth.under_way, "dead": depth.dead} if depth else None
        print_json({"requests": requests} | ({"queue": waiting} if waiting else {}))
        return
    print_rows(["request", "state", "version", "reason"], rows)
    if any(status.state == "unknown" for status in statuses):
        warn(
            "unknown: not applied. It may be waiting, may have failed (see the dead-letter queue, and the delete "
            "function's log under its id), may never have been sent, or be forgotten (applied_retention)."
        )
    if queue and depth:
        dead = "an unknown number" if depth.dead is None else f"{depth.dead:,}"
        where = f" ({depth.dead_letters})" if depth.dead_letters else ""
        warn(f"{queue.url}: about {depth.waiting:,} waiting, {depth.under_way:,} under way, {dead} given up{where}")
