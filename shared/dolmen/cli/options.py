"""The application, the options that commands share (also those of dialects), and the examples of ``--help``."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from msgspec import Struct
from rich.markup import escape
from typer import Argument, Option
from typer.core import TyperCommand, TyperGroup

import dolmen
from dolmen.api.database import Database
from dolmen.cli.exit_codes import BROKEN_PIPE, DECLINED, INTERRUPTED
from dolmen.cli.output import warn
from dolmen.cli.overview import help_text
from dolmen.errors import DatabaseNotFoundError, Error, InputError, UnsettledTimestampError
from dolmen.format.dialect import DIALECT_ATTRIBUTES, flag_of, parse_attributes
from dolmen.format.ingest_properties import WRITTEN, format_names
from dolmen.format.properties import Property
from dolmen.transactions.snapshot import Moment, Snapshot


class _Conversion(Struct):
    """Passes on values that need no conversion. Typer would import pydantic even for those, which takes 0.25 s."""

    of_typer: Callable[[], Any]

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None or value == ():
            return () if param.multiple or param.nargs == -1 else None
        form = param.type_descriptor
        if type(value) is form.annotation in (str, int):
            return value
        if form.annotation is int and not form.is_ranged and value.isascii() and value.isdecimal():
            return int(value)
        return self.of_typer().coerce(value, param=param, ctx=ctx)


class _Converted:
    def get_params(self, ctx: Any) -> Any:
        parameters = super().get_params(ctx)  # type: ignore[misc]
        for each in parameters:
            make = getattr(each, "get_runtime_param", None)  # since Typer 0.28
            if make and not isinstance(make, partial):
                each.get_runtime_param = partial(_Conversion, make)
        return parameters


class _Command(_Converted, TyperCommand):
    pass


class Commands(_Converted, TyperGroup):
    """The group of all commands. It ends quietly when the user, or the next command of a pipe, stops reading."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        sys.stdout.write(help_text())

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
        sys.stdout.write(f"dolmen {dolmen.__version__}\n")
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


_HELP = {
    "encoding": "as utf-8, utf-16, windows-1252, latin-1",
    "skip_lines": "how many lines of CSV, or rows of a sheet, come before the header",
    "header": "whether CSV, or a sheet, has a header",
    "trim": "whether to strip spaces at the ends of CSV fields, and around their quotes",
    "nulls": "an unquoted text of CSV that means NULL, such as NA; repeatable",
    "booleans": "texts of CSV for true and false, such as yes/no; repeatable",
    "timestamp_formats": "how times are written, such as %d/%m/%Y %H:%M, or epoch_ms; repeatable",
}
"""Help texts that replace those of the properties, by attribute of ``Dialect``."""


def _dialect_option(attribute: str, setting: Property) -> Any:
    text = _HELP.get(attribute, setting.help)
    if ":" not in text.partition(" ")[0]:  # it does not begin with a value
        text = text[0].upper() + text[1:]
    flag = flag_of(attribute)
    kind: Any = str | None
    if setting.other_type is bool:
        flag, kind = f"--{attribute}/--no-{attribute}", bool | None
    elif setting.other_type is list:
        kind = list[str] | None
    return Annotated[kind, Option(flag, help=f"{text}.", show_default=False)]


_DIALECT = {attribute: _dialect_option(attribute, setting) for attribute, setting in DIALECT_ATTRIBUTES.items()}


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


def moment_of(version: int | None, at: str | None, tag: str | None) -> Moment:
    """The version that options name, if any. Raises InputError if more than one does."""
    if [version, at, tag].count(None) < 2:
        raise InputError("give only one of --version, --at and --tag")
    return Moment(version, at, tag)


def snapshot_of(db: Database, moment: Moment, *, settled: bool = False) -> Snapshot:
    """The named version, or the newest. If it is not settled yet, warns, or raises if ``settled`` is True."""
    if moment == Moment():
        return db.at(version=db.version)
    snapshot = db.at(moment.version, timestamp=moment.timestamp, tag=moment.tag)
    if not snapshot.settled:
        reason = (
            f"version {snapshot.version} is not settled yet: until 20 minutes after {moment.timestamp}, a commit under "
            "way may still get an earlier date"
        )
        if settled:
            raise UnsettledTimestampError(f"{reason}. Nothing was changed: --version {snapshot.version} uses it anyway")
        warn(reason)
    return snapshot


def _about(request_id: str | None, message: str | None, metadata: list[str] | None) -> dict[str, Any]:
    """The arguments of a call that changes something. Raises InputError."""
    values = dict[str, str]()
    for key, value in parse_pairs("--metadata ", metadata, "KEY=VALUE"):
        if values.setdefault(key, value) != value:
            raise InputError(f"--metadata names {key!r} twice")
    return {"request": request_id, "message": message, "metadata": values or None}


def _attributes(**options: Any) -> dict[str, Any]:
    """The attributes of ``Dialect`` that were given, by name."""
    given = {name: value for name, value in options.items() if value not in (None, [])}
    if "nulls" in given:
        given["nulls"] = list(dict.fromkeys(["", *given["nulls"]]))
    return parse_attributes(given)


_GROUPS: dict[str, tuple[dict[str, Any], Callable[..., Any]]] = {
    "about": ({"request_id": Request, "message": Message, "metadata": Metadata}, _about),
    "dialect": (_DIALECT, _attributes),
    "moment": ({"version": Version, "at": At, "tag": Tag}, moment_of),
}
"""By the name of a command's parameter: the options that replace it, and the function that makes its value of them."""


def command(name: str | None = None, **settings: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes a function a command of the application; several options replace a parameter that ``_GROUPS`` names."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        signature, hints = inspect.signature(function), get_type_hints(function, include_extras=True)
        groups = [each for each in signature.parameters if each in _GROUPS]
        parameters: list[inspect.Parameter] = []
        for each, parameter in signature.parameters.items():
            options = _GROUPS[each][0] if each in _GROUPS else {}
            kind = parameter.kind
            parameters += [inspect.Parameter(one, kind, default=None, annotation=hint) for one, hint in options.items()]
            parameters += [] if options else [parameter.replace(annotation=hints[each])]

        @wraps(function)
        def run(**arguments: Any) -> None:
            for group in groups:
                options, make = _GROUPS[group]
                arguments[group] = make(**{each: arguments.pop(each) for each in options})
            function(**arguments)

        run.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": None}
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return app.command(name, cls=_Command, **settings)(run)

    return add


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
