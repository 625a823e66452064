"""The output of ``dolmen`` that needs no command: the list of commands, and their names for a shell.

It imports the standard library alone, and so takes a tenth of a second.
"""

from __future__ import annotations

import os
import shutil
import textwrap

COMMANDS: dict[str, dict[str, str]] = {
    "adopt_and_publish": {
        "adopt": "Make a table of Parquet files, or of an Iceberg table, without copying data; see docs/adopt.md.",
        "publish-iceberg": "Publish tables as Apache Iceberg snapshots, without copying data; see docs/iceberg.md.",
    },
    "declare": {
        "infer": "Show how dolmen would read a file: its format and dialect, its columns, and what was assumed.",
        "alter": "Change a table's columns in one commit that touches no file, in the order of the options below.",
        "apply": "Make tables, their columns and settings match a file, in one commit; show the differences first.",
    },
    "drops": {
        "backfill": (
            "Ingest files that exist already: send the events that S3 would have sent, or ingest them in this process."
        ),
        "rejected": "Files and rows that could not be ingested: list, show, try again.",
    },
    "feed": {"changes": "Show the rows that commits inserted, deleted and updated, in the order of the versions."},
    "deletes": {
        "erase": (
            "Delete rows for good: from older versions, tags and clones too, and from the disk within erase_within."
        ),
        "forget": "Erase all rows about a person, in every table with the setting subject, in one commit.",
        "erasures": (
            "List erasures, show the receipt of one, verify it, or hurry it. Exit code 7: the database "
            "contradicts a receipt."
        ),
        "request-delete": "Put a delete request into the queue, and print its id. The delete function applies it once.",
        "request-status": "Show whether delete requests are applied, and by which version.",
    },
    "history": {
        "history": "List commits, newest first.",
        "tables": "List the tables.",
        "show": "Show a table: columns, keys, files, unresolved deletes.",
        "tag": "Give a name to a version. The version, with all that it needs, is kept as long as it has a tag.",
        "tags": "List the tags: names of versions that are kept.",
        "restore": (
            "Make tables what they were in an earlier version, in one commit that copies nothing. Later versions stay."
        ),
        "clone": "Make a copy of a table, as it is or as it was, that shares its files: no data is copied.",
    },
    "programs": {
        "local": (
            "Run the whole pipeline on this machine: ingest files in landing/<table>/, and apply deletes in "
            "queue/*.json."
        ),
        "simulate": (
            "Run databases in a simulated world of faults, and check that they stay correct. Needs dolmen-simulator."
        ),
        "check-store": (
            "Check whether a store does what dolmen relies on: conditions, consistency, listings. Exit code 1 if not."
        ),
    },
    "stats": {
        "stats": (
            "Show the remaining background work: unresolved deletes, small files, dead rows, the manifest's size."
        ),
        "report": (
            "Write one HTML page about the health of the database: what needs attention, and the figures behind it."
        ),
    },
    "maintenance": {
        "set": (
            'Change settings in one commit: dolmen set events "ttl=event_time 90d"; dolmen set retention=7d; '
            "NAME= unsets."
        ),
        "settings": "Show the settings of a table or of the database: their values, defaults and meanings.",
        "resolve": "Turn unresolved deletes into deletion vectors, which makes scans fast again.",
        "compact": "Rewrite small and mostly deleted files into full ones, where that pays; then merge segments.",
        "maintain": "Run one round of all background work, as the compact function does.",
        "gc": (
            "Let old versions expire, and delete what no kept version needs. Exit code 9 if an object could not "
            "be deleted."
        ),
        "verify": "Check that all objects exist and are correct. Exit code 7 if something is damaged or missing.",
    },
    "table_data": {
        "create": "Create a table from a list of columns, or with the columns of a file.",
        "append": "Add the rows of files, all in one commit.",
        "delete": "Delete rows by predicate or by keys.",
        "drop": "Drop a table, which frees its name. Older versions still show its rows until they expire.",
        "rename": (
            "Give a table another name without touching its rows. Files dropped for the old name, delete requests"
            " and declarations do not follow: change them too."
        ),
        "scan": "Read rows: filter, select columns, go back in time; show the rows or write a file.",
        "get": (
            "Read the rows with a primary key, through the index if there is one. Exit code 3 if there is no such row."
        ),
        "sql": (
            "Run a query on DuckDB, which pushes filters and columns into the scans; or run statements, in one commit."
        ),
        "update": "Give rows new values, in one commit.",
        "merge": (
            "Merge a file: update, delete and insert rows, in one commit. For conditions, use Python (Table.merge)."
        ),
    },
}
"""The commands of each module of ``dolmen.cli``, with what each does, in the order of ``dolmen --help``."""

OPTIONS = {
    "--version": "Show the version of dolmen.",
    "--install-completion": "Install completion for the current shell.",
    "--show-completion": "Show completion for the current shell, to copy or customise it.",
    "-h, --help": "Show this message and exit.",
}


def help_text() -> str:
    """The text of ``dolmen --help``, as wide as the terminal."""
    described = {name: text for names in COMMANDS.values() for name, text in names.items()}
    return "\n".join(
        [
            "Usage: dolmen [OPTIONS] COMMAND [ARGS]...",
            "",
            "dolmen: columnar tables on S3 with constant-time deletes.",
            "",
            "Commands:",
            *_described(described),
            "",
            "Options:",
            *_described(OPTIONS),
            "",
            "dolmen COMMAND --help shows the options of a command, and examples.",
            "",
        ]
    )


def _described(texts: dict[str, str]) -> list[str]:
    indent = max(map(len, texts)) + 4
    width = max(shutil.get_terminal_size().columns, indent + 30)
    return [
        line
        for name, text in texts.items()
        for line in textwrap.wrap(text, width, initial_indent=f"  {name}".ljust(indent), subsequent_indent=" " * indent)
    ]


def completion(instruction: str) -> str | None:
    """The commands' names that begin with the first word, as Typer's script for bash expects them."""
    words = os.environ.get("COMP_WORDS", "").split()
    if instruction != "complete_bash" or os.environ.get("COMP_CWORD") != "1":
        return None
    begun = words[1] if len(words) > 1 else ""
    if begun.startswith("-"):
        return None
    return "\n".join(name for names in COMMANDS.values() for name in names if name.startswith(begun))
