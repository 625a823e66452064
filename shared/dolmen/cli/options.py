"""The application, the options that commands share, and the examples of ``--help``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer import Argument, Option
from typer.core import TyperGroup

import dolmen
from dolmen.api.database import Database
from dolmen.cli.exit_codes import BROKEN_PIPE, DECLINED, INTERRUPTED
from dolmen.cli.output import warn
from dolmen.errors import DatabaseNotFoundError, Error, InputError, UnsettledTimestampError
from dolmen.format.ingest_properties import WRITTEN, format_names
from dolmen.transactions.snapshot import Snapshot


class Commands(TyperGroup):
    """The group of all commands. It ends quietly when the user, or the next command of a pipe, stops reading."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes again when it ends
            raise typer.Exit(BROKEN_PIPE) from None
        except typer.Abort:  # Ctrl-C or end of input at a question
            raise typer.Exit(INTERRUPTED) from None
        return result


def _print_version(is_requested: bool) -> None:
    if is_requested:
        sys.stdout.write(f"dolmen {version('dolmen')}\n")
        raise typer.Exit


app = typer.Typer(
    cls=Commands,
    help="dolmen: columnar tables on S3 with constant-time deletes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _options(
    show_version: Annotated[
        bool, Option("--version", help="Show the version of dolmen.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def open_existing(url: str) -> Database:
    """Opens a database that must exist. Raises DatabaseNotFoundError."""
    database = dolmen.open(url)
    if database.version == 0:
        raise DatabaseNotFoundError(f"there is no database at {database.url}")
    return database


def complete(context: typer.Context, incomplete: str, names: Callable[[Database], Iterable[str]]) -> list[str]:
    """Names for a shell's completion; none if the database cannot be read."""
    database = context.params.get("database") or os.environ.get("DOLMEN_DATABASE")
    try:
        found = names(dolmen.open(database)) if database else ()
    except Error:
        return []
    return sorted(name for name in found if name.startswith(incomplete))


def complete_tag(context: typer.Context, incomplete: str) -> list[str]:
    """Names of tags for a shell's completion."""
    return complete(context, incomplete, lambda db: db.tags())


def _complete_table(context: typer.Context, incomplete: str) -> list[str]:
    return complete(context, incomplete, lambda db: db.tables())


DatabaseUrl = Annotated[
    str, Option("--database", "-d", envvar="DOLMEN_DATABASE", help="s3://bucket/prefix or a directory.")
]
TableName = Annotated[str, Argument(help="Name of the table.", autocompletion=_complete_table)]
Json = Annotated[bool, Option("--json", help="Print JSON.")]
Yes = Annotated[bool, Option("--yes", "-y", help="Do not ask; needed without a terminal.")]
Request = Annotated[
    str | None, Option("--request-id", help="Apply this only once under this id, however often it is tried.")
]
Message = Annotated[str | None, Option("--message", help="A message for the history.")]
Metadata = Annotated[list[str] | None, Option("--metadata", help="KEY=VALUE for the history; repeatable.")]
NewColumnsOption = Annotated[str, Option("--new-columns", help="refuse, add or ignore columns that the table lacks.")]
Version = Annotated[int | None, Option("--version", help="Read this version.")]
At = Annotated[str | None, Option("--at", help="Read the version that was the newest at this time (ISO 8601, UTC).")]
Tag = Annotated[str | None, Option("--tag", help="Read the version with this tag.", autocompletion=complete_tag)]
DryRun = Annotated[bool, Option("--dry-run", help="Report what would be done, and do nothing.")]
Columns = Annotated[str, Option(help="Columns to read, with commas; all by default.")]
Output = Annotated[Path | None, Option("--output", "-o", help="Write to this file.")]
OutputFormat = Annotated[
    str | None,
    Option(
        "--format",
        help=f"{', '.join(WRITTEN)}; table for the first and last rows. By default the file's name decides; "
        "without a file table on a terminal, and csv elsewhere.",
    ),
]
InputFormat = Annotated[str | None, Option("--format", help=f"{format_names()}; by default the name decides.")]


def names_of(text: str | None) -> list[str] | None:
    """The names in a text with commas between them; None for no text."""
    return [name.strip() for name in text.split(",")] if text else None


def parse_pairs(option: str, texts: Iterable[str] | None, form: str = "NAME=VALUE") -> Iterator[tuple[str, str]]:
    """The sides of texts with an equals sign, as ``form`` shows them. Raises InputError."""
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise InputError(f"{option}{text!r}: write {form}")
        yield name.strip(), value.strip()


def note_of(message: str | None, metadata: list[str] | None) -> dict[str, Any]:
    """The arguments of a call for ``--message`` and ``--metadata``. Raises InputError."""
    values = dict[str, str]()
    for key, value in parse_pairs("--metadata ", metadata, "KEY=VALUE"):
        if values.setdefault(key, value) != value:
            raise InputError(f"--metadata names {key!r} twice")
    return {"message": message, "metadata": values or None}


def check_one(version: int | None, at: str | None, tag: str | None) -> None:
    """Raises InputError if more than one option names a version."""
    if [version, at, tag].count(None) < 2:
        raise InputError("give only one of --version, --at and --tag")


def snapshot_of(
    db: Database, version: int | None, at: str | None, tag: str | None, *, settled: bool = False
) -> Snapshot:
    """The named version, or the newest. If it is not settled yet, warns, or raises if ``settled`` is True."""
    check_one(version, at, tag)
    if version is None and at is None and tag is None:
        return db.at(version=db.version)
    snapshot = db.at(version, timestamp=at, tag=tag)
    if not snapshot.settled:
        reason = (
            f"version {snapshot.version} is not settled yet: until 20 minutes after {at}, a commit under way may still "
            "get an earlier date"
        )
        if settled:
            raise UnsettledTimestampError(f"{reason}. Nothing was changed: --version {snapshot.version} takes it")
        warn(reason)
    return snapshot


def ask(question: str, as_json: bool, prefix: str = "", suffix: str = "") -> None:
    """Asks before a change. Exits if the answer is no.

    Raises InputError if there is no terminal for the question, or the output is JSON. ``prefix`` begins its text, and
    ``suffix`` names alternatives to --yes.
    """
    if as_json or not sys.stdin.isatty():
        raise InputError(f"{prefix}The question needs a terminal, so nothing was changed: give --yes{suffix}")
    if not typer.confirm(question, err=True):
        warn("declined: nothing was changed")
        raise typer.Exit(DECLINED)


EXAMPLES: dict[str, tuple[str, ...]] = {
    "create": (
        "dolmen create users --columns 'id BIGINT NOT NULL, name VARCHAR, at TIMESTAMPTZ' --primary-key id",
        "dolmen create events --like examples/events.csv --primary-key id --sort-key event_time",
    ),
    "infer": ("dolmen infer examples/events.csv", "dolmen infer examples/events.csv --yaml"),
    "append": (
        "dolmen append events examples/events.csv",
        "dolmen append events examples/events.csv --upsert --request-id load-7",
        "zcat -f examples/events.csv | dolmen append copies - --format csv --create",
    ),
    "delete": (
        "dolmen delete events --where \"user_id = 13 AND event_time < '2026-01-01'\"",
        "dolmen delete events --keys 1,2 --request-id erasure-17",
    ),
    "erase": ("dolmen erase events --where 'user_id = 13' --yes --request-id erasure-19",),
    "forget": ("dolmen forget 42 --yes --request-id erasure-20",),
    "update": (
        "dolmen update events --set 'amount = round(amount * 1.19, 2)' --where \"kind = 'buy'\" --request-id vat-17",
    ),
    "merge": (
        "dolmen merge events examples/events.csv --on id --set 'amount = coalesce(target.amount, source.amount)'",
        "dolmen merge events examples/events.csv --on id --when-matched nothing",
    ),
    "scan": (
        "dolmen scan events --where 'user_id = 42' --columns id,amount",
        "dolmen scan events --order-by -event_time --limit 3 --json",
        "dolmen scan events --version 3 -o events.parquet",
        "dolmen scan events | head -3",
    ),
    "get": ("dolmen get events 3",),
    "changes": (
        "dolmen changes events --since 3 | head -3",
        "dolmen changes events --since 2 --until 7 --net --where 'user_id = 42' --json",
    ),
    "adopt": ("dolmen adopt adopted events.parquet --primary-key id",),
    "publish-iceberg": ("dolmen publish-iceberg --table events", "dolmen publish-iceberg --dry-run"),
    "sql": (
        "dolmen sql 'SELECT kind, count(*) AS n FROM events GROUP BY kind ORDER BY n DESC'",
        "dolmen sql 'SELECT events.*, name FROM events LEFT JOIN users ON user_id = users.id' -o joined.csv.gz",
        "dolmen sql \"UPDATE events SET kind = 'sale' WHERE kind = 'buy'; DELETE FROM users\" --request-id sale-17",
    ),
    "history": ("dolmen history --limit 5",),
    "tables": ("dolmen tables", "dolmen tables --version 3 --json"),
    "show": ("dolmen show events",),
    "alter": (
        "dolmen alter events --add 'channel VARCHAR' --default channel=web --comment channel='where it came from'",
        "dolmen alter events --rename channel=source --request-id alter-17",
        "dolmen alter events --add 'size INTEGER' --widen size=BIGINT",
    ),
    "tag": ("dolmen tag before-import --until 90d --message 'ticket 18'", "dolmen tag before-import --drop"),
    "tags": ("dolmen tags",),
    "clone": ("dolmen clone events experiment --tag before-import",),
    "restore": ("dolmen restore events --tag before-import", "dolmen restore --version 12 --yes"),
    "rename": ("dolmen rename copies archive --message 'ticket 17' --request-id rename-17",),
    "drop": ("dolmen drop archive --yes",),
    "set": ("dolmen set events target_file_bytes=256MB 'ttl=event_time 3650d'",),
    "settings": ("dolmen settings events",),
    "stats": ("dolmen stats",),
    "report": ("dolmen report -o report.html", "dolmen report --json"),
    "resolve": ("dolmen resolve events",),
    "compact": ("dolmen compact --dry-run",),
    "maintain": ("dolmen maintain",),
    "gc": ("dolmen gc --dry-run",),
    "erasures": ("dolmen erasures", "dolmen erasures --all --json"),
    "verify": ("dolmen verify --deep",),
    "apply": ("dolmen apply examples/tables.yaml -d declared --dry-run --exit-code || test $? -eq 9",),
    "local": ("dolmen local --once",),
    "backfill": ("dolmen backfill .local/landing --dry-run",),
    "request-delete": (
        "dolmen request-delete events --where 'user_id = 42' --queue .local/queue --request-id erasure-18",
    ),
    "request-status": ("dolmen request-status erasure-18 --queue .local/queue || test $? -eq 4",),
    "check-store": ("dolmen check-store ./somewhere",),
    "simulate": ("dolmen simulate --seed 1 --steps 300",),
    "rejected": (),
}
"""Examples by command, in an order in which they can be run."""


def add_examples(app: typer.Typer) -> None:
    """Shows the examples below the help of each command."""
    for command in app.registered_commands:
        name = command.name or str(getattr(command.callback, "__name__", ""))
        if lines := EXAMPLES.get(name):
            command.epilog = "\n\n".join(["Examples:", *(escape(line) for line in lines)])
