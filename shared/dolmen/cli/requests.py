"""``dolmen request-delete`` and ``request-status``: sends deletes to the queue, and shows their state."""

from __future__ import annotations

import shlex
from typing import Annotated, Any, Optional

import typer

import dolmen
from dolmen.base.runtime import shared_runtime
from dolmen.cli.exit_codes import exit_code
from dolmen.cli.inputs import INPUT_HELP, open_inputs, parse_keys
from dolmen.cli.options import DatabaseUrl, InputForm, Json, app, open_existing
from dolmen.cli.output import console, errors, print_json, print_rows
from dolmen.commit.context import context_of
from dolmen.errors import InputError, RetryableError
from dolmen.ingest.delete_requests import parse_request
from dolmen.ingest.queues import Queue, QueueDepth, open_queue
from dolmen.ingest.request_tracking import RequestStatus, check, check_size, compose, status_of

DeleteQueue = Annotated[
    str,
    typer.Option(
        "--queue",
        "-q",
        envvar="DOLMEN_DELETE_QUEUE",
        help="The delete queue: a URL of SQS, or a directory (.local/queue).",
    ),
]

_POLL_SECONDS = (0.2, 5.0)


@app.command("request-delete")
def request_delete(
    tables: Annotated[
        list[str], typer.Argument(metavar="TABLE...", help="One table, or several to delete from at once.")
    ],
    queue: DeleteQueue,
    where: Annotated[Optional[str], typer.Option(help="Predicate, e.g. 'user_id = 42'. TRUE deletes all.")] = None,  # noqa: UP045
    keys: Annotated[str, typer.Option(help="Primary keys with commas.")] = "",
    keys_file: Annotated[Optional[str], typer.Option(help=f"A file with the key columns: {INPUT_HELP}.")] = None,  # noqa: UP045
    form: InputForm = None,
    on: Annotated[str, typer.Option(help="Key columns, if not the primary key.")] = "",
    mode: Annotated[str, typer.Option(help="tombstone, or positions to look the rows up.")] = "tombstone",
    request_id: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--request-id", help="Apply this only once under this id, however often it is sent; made up by default."
        ),
    ] = None,
    database: Annotated[
        str,
        typer.Option(
            "--database", "-d", envvar="DOLMEN_DATABASE", help="A database to check the request against first."
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Put a delete request into the queue, and print its id. The delete function applies it once.

    The request is checked first: its text, and its tables if the database is named. Exit codes: 0 it is in the queue; 2
        it
    must be corrected, or is too large; 4 it may be in the queue: send it again under the same id.
    """
    if sum((where is not None, bool(keys), keys_file is not None)) != 1:
        raise InputError("give exactly one of --where, --keys and --keys-file")
    columns = [name.strip() for name in on.split(",")] if on else None
    db = dolmen.open(database) if database else None
    chosen: Any = None
    if keys_file is not None:
        with open_inputs([keys_file], form, again=True) as [file]:
            chosen = file.read_keys(db.table(tables[0]) if db else None, columns)
        columns = columns or chosen.column_names
    elif keys:
        if db is None:
            raise InputError("--keys needs the type of the key: give --database, or give the keys with --keys-file")
        chosen = parse_keys(db, tables[0], keys, columns)
    target = open_queue(queue)
    given = shared_runtime().uuid() if request_id is None else request_id
    body = compose(tables, where=where, keys=chosen, on=columns, mode=mode, request_id=given)
    check_size(body, target)
    version = check(db, parse_request(body, None)) if db else None
    try:
        target.send([body])
    except RetryableError as error:
        errors.print(f"not known whether it was sent; repeat it with --request-id {given}", markup=False)
        raise error
    if as_json:
        print_json({"request_id": given, "queue": target.url, "checked_against_version": version})
        return
    console.print(given, highlight=False, soft_wrap=True, markup=False)
    checked = f"checked against version {version}" if db else "not checked against a database: none was named"
    told = f"in the queue; {checked}. See: dolmen request-status {shlex.quote(given)}"
    errors.print(told, highlight=False, markup=False, soft_wrap=True)


@app.command("request-status")
def request_status(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids that request-delete printed.")],
    database: DatabaseUrl,
    queue: Annotated[
        str,
        typer.Option("--queue", "-q", envvar="DOLMEN_DELETE_QUEUE", help="Show also how many messages are waiting."),
    ] = "",
    wait: Annotated[float, typer.Option(help="Seconds to wait until all are applied.", min=0)] = 0,
    as_json: Json = False,
) -> None:
    """Show whether delete requests are applied, and by which version.

    An id that is not applied is waiting, or it failed and is among the dead letters, or it was never sent; only a queue
    in a directory shows which. Ids are remembered for the database's applied_retention (35 days by default). Exit
    codes: 0 all are applied; 4 not yet, or not known; 2 one has failed (known only for a queue in a directory).
    """
    db = open_existing(database)
    target = open_queue(queue) if queue else None
    clock, pause = context_of(db).runtime.monotonic, _POLL_SECONDS[0]
    until = clock() + wait
    while True:
        found = status_of(db, ids, target)
        left = until - clock()
        if left <= 0 or all(status.state in ("applied", "failed") for status in found):
            break
        context_of(db).runtime.sleep(min(pause, left))
        pause = min(2 * pause, _POLL_SECONDS[1])
    unsettled = any(status.state in ("waiting", "unknown") for status in found)
    depth = target.depth() if target and unsettled else None
    _report(found, target, depth, as_json)
    if any(status.state == "failed" for status in found):
        raise typer.Exit(exit_code(InputError()))
    if unsettled:
        raise typer.Exit(exit_code(RetryableError()))


def _report(found: list[RequestStatus], queue: Queue | None, depth: QueueDepth | None, as_json: bool) -> None:
    if as_json:
        requests = [
            {"request_id": one.id, "state": one.state, "version": one.version, "reason": one.reason} for one in found
        ]
        told = {"waiting": depth.waiting, "under_way": depth.under_way, "dead": depth.dead} if depth else None
        print_json({"requests": requests} | ({"queue": told} if told else {}))
        return
    print_rows(["request", "state", "version", "reason"], ((s.id, s.state, s.version, s.reason) for s in found))
    if any(one.state == "unknown" for one in found):
        errors.print(
            "unknown: not applied. It may be waiting, may have failed (see the dead-letter queue, and the delete "
            "function's log under its id), may never have been sent, or be forgotten (applied_retention).",
            highlight=False,
        )
    if depth is not None and queue is not None:
        dead = "an unknown number" if depth.dead is None else f"{depth.dead:,}"
        where = f" ({depth.dead_letters})" if depth.dead_letters else ""
        errors.print(
            f"{queue.url}: about {depth.waiting:,} waiting, {depth.under_way:,} under way, {dead} given up{where}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
