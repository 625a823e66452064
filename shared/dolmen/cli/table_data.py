"""Commands on the data of tables: create, append, read, change, drop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import typer
from typer import Argument, Option

import dolmen
from dolmen.base.records import replace
from dolmen.base.units import count_text
from dolmen.cli.exit_codes import ROWS_PUT_ASIDE
from dolmen.cli.inputs import (
    INPUT_HELP,
    BadRowFiles,
    InputProgress,
    KeyColumns,
    Keys,
    KeysFile,
    announce,
    explained,
    key_rows,
    naming_quarantine,
    open_inputs,
    read_keys,
)
from dolmen.cli.options import (
    Columns,
    DatabaseUrl,
    InputFormat,
    Json,
    NewColumnsOption,
    Output,
    OutputFormat,
    TableName,
    Yes,
    ask,
    command,
    names_of,
    open_existing,
    parse_pairs,
    snapshot_of,
)
from dolmen.cli.output import (
    PLAN_COLUMNS,
    console,
    destination,
    print_commit,
    print_json,
    print_text,
    send_rows,
    show_scan,
    warn,
)
from dolmen.errors import InputError, RowNotFoundError
from dolmen.format.dialect import flag_of
from dolmen.ingest.formats.source_file import SourceFile
from dolmen.transactions.column_types import parse_columns
from dolmen.transactions.merge.clauses import Expression
from dolmen.transactions.snapshot import Moment
from dolmen.transactions.transaction import unit_of
from dolmen.transactions.unit_of_work import Commit

if TYPE_CHECKING:
    from dolmen.ingest.inference.inference import Inference
    from dolmen.rows.scan.engines.sql import SqlResult


@command()
def create(
    table: TableName,
    database: DatabaseUrl,
    columns: Annotated[str, Option(help="e.g. 'id BIGINT NOT NULL, at TIMESTAMPTZ, name VARCHAR'.")] = "",
    like: Annotated[str | None, Option(help=f"Infer the columns from {INPUT_HELP}.")] = None,
    form: InputFormat = None,
    dialect: Any = None,
    primary_key: Annotated[str, Option(help="A column, or several with commas.")] = "",
    sort_key: Annotated[str, Option(help="What files are sorted by: 'day(at) DESC, id'.")] = "",
    partition_by: Annotated[
        str, Option(help="Columns, or transforms of them, by which rows are split into files: 'day(at), tenant'.")
    ] = "",
    cluster_by: Annotated[str, Option(help="Columns by whose z-order compaction sorts: 'tenant, at'.")] = "",
    about: Any = None,
    as_json: Json = False,
) -> None:
    """Create a table from a list of columns, or with the columns of a file."""
    if bool(columns) == (like is not None):
        raise InputError("give either --columns or --like")
    found: Inference | None = None
    if like is None:
        schema = parse_columns(columns)
        if dialect:
            raise InputError(f"{flag_of(next(iter(dialect)))} describes a file: name the file with --like")
    else:
        with open_inputs([like], form, dialect, again=True) as [file]:
            found = file.infer()
        schema = found.schema
        announce(found)
    keys, properties = (names_of(primary_key), sort_key or None), found.properties if found else None
    created = dolmen.open(database).create_table(
        table, schema, *keys, properties, partition_by=partition_by or None, cluster_by=cluster_by or None, **about
    )
    if as_json:
        facts = {"table": table, "columns": {field.name: str(field.type) for field in created.schema}}
        print_json(facts | ({"inferred": found.facts()} if found else {}))
    else:
        console.print(created)


@command()
def append(
    table: TableName,
    files: Annotated[
        list[str],
        Argument(
            help=f"CSV, JSON, Parquet, Arrow, Avro, ORC, .xlsx or .ods; plain, .gz, .zst, .bz2 or .zip: {INPUT_HELP}."
        ),
    ],
    database: DatabaseUrl,
    create: Annotated[
        bool, Option("--create", help="If the table is missing, create it with the columns of the first file.")
    ] = False,
    upsert: Annotated[bool, Option("--upsert", help="Replace rows with the same primary key.")] = False,
    skip_equal: Annotated[
        bool, Option("--skip-equal", help="With --upsert: do not write rows that the table already has unchanged.")
    ] = False,
    insert: Annotated[bool, Option("--insert", help="Add nothing if the table has one of the primary keys.")] = False,
    form: InputFormat = None,
    dialect: Any = None,
    on_bad_row: Annotated[
        str, Option("--on-bad-row", help="reject: a row that can't be read is an error; quarantine: it is put aside.")
    ] = "reject",
    max_bad_rows: Annotated[int, Option("--max-bad-rows", help="The most rows of a file to put aside.", min=0)] = 1000,
    rejects: Annotated[
        Path | None,
        Option("--rejects", help="The file, or directory, for rows put aside; by default <FILE>.rejected.jsonl."),
    ] = None,
    leave_out_erased: Annotated[
        bool, Option("--leave-out-erased", help="Leave out rows that match an erasure in force.")
    ] = False,
    new_columns: NewColumnsOption = "refuse",
    hive: Annotated[
        str, Option("--hive", help="Columns whose values are in names of folders (day=2026-11-27/x.csv): day,country.")
    ] = "",
    about: Any = None,
    as_json: Json = False,
) -> None:
    """Add the rows of files, all in one commit.

    Options say how files are read; without them, the table's dialect settings apply (ingest_delimiter, ...). The other
    settings ingest_* have no effect here; they are for dropped files.
    """
    if upsert and insert:
        raise InputError("give one of --upsert and --insert: replace rows with the same key, or refuse them")
    if skip_equal and not upsert:
        raise InputError("--skip-equal is for --upsert, which would replace rows by equal ones")
    operation = "upsert" if upsert else "insert" if insert else "append"
    request = about.pop("request")
    aside = BadRowFiles.of(files, on_bad_row, max_bad_rows, rejects)
    db = dolmen.open(database) if create else open_existing(database)
    makes = create and table not in db.tables()
    more: dict[str, Any] = {}
    with (
        open_inputs(files, form, dialect, again=makes or new_columns == "add") as inputs,
        InputProgress(quiet=as_json) as progress,
        db.transaction(operation, **about) as tx,
    ):
        watched = [progress.watch(replace(file, folders=tuple(names_of(hive) or ()))) for file in inputs]
        if makes:
            found = watched[0].infer(aside.ignore if aside else None)
            announce(found)
            more["inferred"] = found.facts()
            from dolmen.ingest.formats.formats import folder_fields  # only for new tables

            columns = pa.schema([*found.schema, *folder_fields(watched[0].folders, [file.name for file in watched])])
            target = tx.create_table(table, columns, properties=found.properties)
            watched[0] = watched[0].as_inferred(found)
        else:
            target = tx.table(table)
        if not hive:
            _warn_of_folders(files, None if makes else target.schema.names)
        write = {"append": target.append, "upsert": target.upsert, "insert": target.insert}[operation]
        for name, file in zip(files, watched, strict=True):
            entry = unit_of(tx).entry(table)
            how: dict[str, Any] = {"leave_out_erased": leave_out_erased or None, "new_columns": new_columns}
            how |= {"skip_equal": True} if skip_equal else {}
            add: Callable[..., object] = partial(write, request=request, **how)
            keys = target.primary_key if operation != "append" else ()
            with naming_quarantine(puts_aside=aside is not None), explained(file.source(entry), again=file.again):
                if aside is None:
                    add(file.read(entry, new_columns=new_columns))
                else:
                    aside.add(name, file, entry, add, keys, db.url, new_columns)
        if aside is not None and aside.files:
            more["rejected"] = aside.files
        commit = tx.commit()
    print_commit(commit, as_json, more)
    if aside is not None and aside.files:
        aside.report()
        raise typer.Exit(ROWS_PUT_ASIDE)


def _warn_of_folders(files: Sequence[str], columns: Sequence[str] | None) -> None:
    """Warns of columns whose values are only in folder names, which are not read. ``columns``: None for a new table."""
    folders = {part for file in files if "=" in file for part in file.split("/")[:-1]}
    if any("=" in folder for folder in folders):
        from dolmen.adopt.hive_folders import folder_values  # only for such files

        names = {name for folder in sorted(folders) for name in folder_values([folder])}
        known = None if columns is None else {column.lower() for column in columns}
        if unread := sorted(name for name in names if known is None or name.lower() in known):
            warn(f"values in names of folders are not read: --hive {','.join(unread)} reads them")


@command()
def delete(
    table: TableName,
    database: DatabaseUrl,
    where: Annotated[str | None, Option(help="Condition, e.g. 'user_id = 42'. TRUE deletes all.")] = None,
    keys: Keys = "",
    keys_file: KeysFile = None,
    form: InputFormat = None,
    on: KeyColumns = "",
    mode: Annotated[
        str, Option(help="auto; tombstone, which reads nothing; or positions: look rows up now, and count them.")
    ] = "auto",
    about: Any = None,
    as_json: Json = False,
) -> None:
    """Delete rows by predicate or by keys."""
    db, columns = open_existing(database), names_of(on)
    key_table = read_keys(db, table, where, keys, keys_file, form, columns)
    how: Any = mode
    commit = db.table(table).delete(where, keys=key_table, on=columns, mode=how, **about)
    print_commit(commit, as_json)


@command()
def drop(table: TableName, database: DatabaseUrl, yes: Yes = False, about: Any = None, as_json: Json = False) -> None:
    """Drop a table, which frees its name. Older versions still show its rows until they expire."""
    db = open_existing(database)
    if not yes and (about["request"] is None or table in db):  # no question if the request was applied before
        facts = db.table(table).describe()
        ask(f"drop {table} with {count_text(facts['rows_in_files'], 'row')} in files?", as_json)
    print_commit(db.drop_table(table, **about), as_json)


@command()
def rename(
    table: TableName,
    new: Annotated[str, Argument(help="The new name.")],
    database: DatabaseUrl,
    about: Any = None,
    as_json: Json = False,
) -> None:
    """Give a table another name without touching its rows. Files dropped for the old name, delete requests and
    declarations do not follow: change them too."""
    commit = open_existing(database).rename_table(table, new, **about)
    print_commit(commit, as_json)


@command()
def scan(
    table: TableName,
    database: DatabaseUrl,
    columns: Columns = "",
    where: Annotated[str | None, Option(help="Read only rows for which this predicate is true.")] = None,
    limit: Annotated[int | None, Option(help="The most rows to read.")] = None,
    order_by: Annotated[str, Option(help="Columns to sort by; -name for descending.")] = "",
    moment: Any = None,
    output: Output = None,
    form: OutputFormat = None,
    partition_by: Annotated[
        str, Option(help="With --output DIRECTORY: write folders such as day=2026-11-29/, by columns or transforms.")
    ] = "",
    count: Annotated[bool, Option("--count", help="Count the rows only.")] = False,
    explain: Annotated[bool, Option("--explain", help="Show what would be read, without reading it.")] = False,
    as_json: Json = False,
) -> None:
    """Read rows: filter, select columns, go back in time; show the rows or write a file."""
    if partition_by and output is None:
        raise InputError("--partition-by writes folders: name the directory for them, --output DIRECTORY")
    format = destination(output, form or ("parquet" if partition_by else None), as_json=as_json)
    source = snapshot_of(open_existing(database), moment).table(table)
    found = partial(source.scan, names_of(columns), where, order_by=names_of(order_by))
    if explain:
        print_text(str(found(limit).explain()))
    elif count:
        rows = found(limit).count()
        print_json({"rows": rows}) if as_json else console.print(rows, highlight=False)
    elif format is None:
        show_scan(found, limit, sorts=bool(order_by))
    else:
        send_rows(found(limit).to_reader(), output, format, as_json=as_json, partition_by=partition_by)


@command()
def get(
    table: TableName,
    key: Annotated[list[str], Argument(help="The primary key: a value for each of its columns.")],
    database: DatabaseUrl,
    columns: Columns = "",
    moment: Any = None,
    output: Output = None,
    form: OutputFormat = None,
    as_json: Json = False,
) -> None:
    """Read the rows with a primary key, through the index if there is one. Exit code 3 if there is no such row."""
    format = destination(output, form, as_json=as_json)
    source = snapshot_of(open_existing(database), moment).table(table)
    if len(key) != len(source.primary_key):
        names = ", ".join(source.primary_key) or "none"
        raise InputError(f"give a value for each column of the primary key: {names}")
    types = pa.schema([source.schema.field(name) for name in source.primary_key])
    found = source.get_many(key_rows(types, [key]), names_of(columns))
    if not found.num_rows:
        raise RowNotFoundError(f"table {table!r} has no row with the key {', '.join(key)}")
    send_rows(found.to_reader(), output, format, as_json=as_json)


@command()
def sql(
    query: Annotated[str, Argument(help="A SELECT over the tables, or statements that change them.")],
    database: DatabaseUrl,
    moment: Any = None,
    output: Output = None,
    form: OutputFormat = None,
    about: Any = None,
    as_json: Json = False,
) -> None:
    """Run a query on DuckDB, which pushes filters and columns into the scans; or run statements, in one commit."""
    format = destination(output, form, as_json=as_json)
    creates = query.lstrip()[:6].upper() == "CREATE"
    db = dolmen.open(database) if creates else open_existing(database)
    result: SqlResult | Commit
    if moment == Moment():
        result = db.sql(query, **about, files=["/", "://"])
    else:
        if any(value is not None for value in about.values()):
            raise InputError(
                "--request-id, --message and --metadata are for statements that change tables, and versions are read"
            )
        result = snapshot_of(db, moment).sql(query)
    if isinstance(result, Commit):
        print_commit(result, as_json)
        return
    rows = result.to_reader()
    if rows.schema.names == PLAN_COLUMNS and form is None and output is None and not as_json:
        for row in rows.read_all().to_pylist():
            print_text(str(row[PLAN_COLUMNS[1]]).rstrip())
    else:
        send_rows(rows, output, format, as_json=as_json)
    if result.commit is not None:
        warn(f"version {result.commit.version}")


_NOTHING = "nothing"


@command()
def update(
    table: TableName,
    database: DatabaseUrl,
    assignments: Annotated[
        list[str], Option("--set", help="'COLUMN = EXPRESSION': its new value, in DuckDB's SQL; repeatable.")
    ],
    where: Annotated[str, Option(help="Predicate, e.g. 'user_id = 42'. TRUE updates all rows.")],
    about: Any = None,
    as_json: Json = False,
) -> None:
    """Give rows new values, in one commit."""
    values = {name: Expression(text) for name, text in _parse_assignments(assignments).items()}
    commit = open_existing(database).table(table).update(values, where, **about)
    print_commit(commit, as_json)


@command()
def merge(
    table: TableName,
    file: Annotated[str, Argument(help=f"The source: {INPUT_HELP}.")],
    database: DatabaseUrl,
    on: Annotated[str, Option(help="Columns of both, with commas; the primary key by default.")] = "",
    assignments: Annotated[
        list[str] | None,
        Option("--set", help="'COLUMN = EXPRESSION' over target.COLUMN and source.COLUMN: updates only these."),
    ] = None,
    when_matched: Annotated[str, Option(help="update, delete or nothing.")] = "update",
    when_not_matched: Annotated[str, Option(help="insert or nothing.")] = "insert",
    when_not_matched_by_source: Annotated[str, Option(help="delete or nothing.")] = _NOTHING,
    new_columns: NewColumnsOption = "refuse",
    form: InputFormat = None,
    dialect: Any = None,
    about: Any = None,
    as_json: Json = False,
) -> None:
    """Merge a file: update, delete and insert rows, in one commit. For conditions, use Python (Table.merge)."""
    from dolmen.ingest.formats.formats import read

    if assignments and when_matched != "update":
        raise InputError(f"--set needs --when-matched update, not {when_matched}: leave out one of the two")
    db = open_existing(database)
    target = db.table(table)
    names = names_of(on) or list(target.primary_key)
    if not names:
        raise InputError(f"table {table!r} has no primary key: name the columns of both, --on")
    matched: Any = _parse_assignments(assignments) if assignments else _act(when_matched)
    entry = unit_of(db.transaction()).entry(table)
    with open_inputs([file], form, dialect, again=True) as [given]:
        source = given.source(entry)
        with explained(source, again=given.again):
            columns = _columns(source, target.schema)
            rows = read(source, columns)
            if new_columns == "add":
                rows = _without_empty(source, rows, target.columns)
        other: list[Any] = [_act(when_not_matched), _act(when_not_matched_by_source)]
        how: dict[str, Any] = {"new_columns": new_columns, **about}
        commit = target.merge(rows, names, matched, *other, **how)
    print_commit(commit, as_json)


def _columns(source: SourceFile, schema: pa.Schema) -> pa.Schema:
    """The columns of a file, with the table's types where it has them; the table's columns if the file names none."""
    from dolmen.ingest.formats.formats import infer, survey

    table_fields = {field.name: field for field in schema}
    try:
        columns = infer(source)
    except InputError:  # JSON lines without a row
        if survey(source):
            raise
        columns = schema
    return pa.schema([table_fields.get(field.name, field).with_nullable(True) for field in columns])


def _without_empty(source: SourceFile, rows: pa.RecordBatchReader, names: Sequence[str]) -> pa.RecordBatchReader:
    """The rows of a file, without columns that have no value and are not in ``names``."""
    from dolmen.ingest.formats.formats import survey
    from dolmen.ingest.new_columns import NewColumns

    empty = {field.name for field in survey(source) if pa.types.is_null(field.type)}.difference(names)
    kept = pa.schema([field for field in rows.schema if field.name not in empty])
    return NewColumns(empty=tuple(empty)).leave_out(rows, kept)


def _act(word: str) -> str | None:
    return None if word == _NOTHING else word


def _parse_assignments(texts: list[str]) -> dict[str, str]:
    """Expressions by column, from texts such as ``COLUMN = EXPRESSION``."""
    expressions: dict[str, str] = {}
    for name, expression in parse_pairs("--set ", texts, "COLUMN = EXPRESSION"):
        if name in expressions:
            raise InputError(f"--set names column {name!r} twice")
        expressions[name] = expression
    return expressions
