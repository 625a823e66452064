"""``dolmen apply``: what a file declares becomes what holds, in one commit, and nothing else does."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dolmen
from dolmen import declaration
from dolmen.cli import declare as command
from dolmen.declaration import Declaration, DeclarationPlan, plan
from dolmen.errors import ConflictError, Error, InputError, SchemaError
from dolmen.format.ingest_properties import IngestSettings
from dolmen.transactions.transaction import unit_of

Cli = Callable[..., Any]

EXAMPLE = Path(__file__).parents[2] / "examples" / "tables.yaml"
PLAIN = """
tables:
  events:
    columns: {id: BIGINT NOT NULL, user_id: BIGINT, at: TIMESTAMPTZ}
    primary_key: id
    ttl: at 90d
    ingest: {format: csv, header: false}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tables.yaml"
    path.write_text(PLAIN)
    return path


@pytest.fixture
def db(tmp_path: Path) -> dolmen.Database:
    return dolmen.open(str(tmp_path / "db"))


def properties(db: dolmen.Database, table: str = "events") -> dict[str, Any]:
    db.refresh()
    found: dict[str, Any] = db.table(table).describe()["properties"]
    return found


def test_the_example_is_applied_by_one_commit_and_then_there_is_nothing_to_do(cli: Cli, db: dolmen.Database) -> None:
    done = cli("apply", EXAMPLE, "--yes")
    assert done.code == 0, done
    assert all(line in done.out for line in ("+ table events", "    + primary key: id", "    + ingest_format: csv"))
    assert [commit.operation for commit in db.history()] == ["apply"]
    assert db.tables() == ["customers", "events"]
    events = db.table("events")
    assert events.schema.field("amount").type == pa.decimal128(10, 2)
    assert (events.schema.field("id").nullable, events.primary_key) == (False, ("id",))
    assert events.settings()["ttl"] == "event_time 3650d"
    assert db.settings()["retention"] == "30d"
    again = cli("apply", EXAMPLE, "--yes")
    assert (again.code, "nothing to do" in again.out) == (0, True)
    assert db.refresh() == 1


def test_what_the_functions_read_is_what_the_file_says(cli: Cli, db: dolmen.Database) -> None:
    cli("apply", EXAMPLE, "--yes")
    entries = unit_of(db.transaction()).base.tables
    events, customers = IngestSettings.of(entries["events"]), IngestSettings.of(entries["customers"])
    assert (events.format, events.on_bad_row, events.new_columns, events.cdc) == ("csv", "quarantine", "ignore", None)
    assert customers.mode == "cdc"
    assert customers.cdc is not None
    assert (customers.cdc.envelope, customers.cdc.sequence) == ("dms", "seq")


def test_a_changed_file_changes_adds_and_unsets_in_one_commit(cli: Cli, file: Path, db: dolmen.Database) -> None:
    cli("apply", file, "--yes")
    db.create_table("other", pa.schema([("id", pa.int64())]), properties={"target_file_bytes": "1MB"})
    file.write_text(PLAIN.replace("at 90d", "at 30d").replace(", header: false", ", nulls: ['', 'N/A']"))
    shown = cli("apply", file, "--yes")
    lines = [line.strip() for line in shown.out.splitlines()]
    assert {"~ ttl: at 90d -> at 30d", "- ingest_header: false", "+ ingest_nulls: '', N/A"} <= set(lines)
    assert "+ table" not in shown.out
    assert properties(db) == {"ttl": "at 30d", "ingest_format": "csv", "ingest_nulls": ["", "N/A"]}
    assert db.refresh() == 3
    assert properties(db, "other") == {"target_file_bytes": "1MB"}, "a table that is not named is left alone"


def test_the_database_is_left_alone_unless_it_is_spoken_of(cli: Cli, file: Path, db: dolmen.Database) -> None:
    db.set(retention="7d", keep_versions=5)
    cli("apply", file, "--yes")
    assert db.settings()["retention"] == "7d"
    file.write_text("database: {keep_versions: 9}" + PLAIN)
    cli("apply", file, "--yes")
    holds = db.settings()
    assert (holds["retention"], holds["keep_versions"]) == ("30d", "9"), "what does not stand there is unset"


def test_a_value_written_in_other_words_is_no_difference(cli: Cli, file: Path, db: dolmen.Database) -> None:
    file.write_text(PLAIN + "    target_file_bytes: 256MB\n")
    cli("apply", file, "--yes")
    db.table("events").set(target_file_bytes=256 << 20)
    assert "nothing to do" in cli("apply", file, "--yes").out


def test_a_dry_run_shows_the_differences_and_does_nothing(cli: Cli, file: Path, db: dolmen.Database) -> None:
    shown = cli("apply", file, "--dry-run")
    assert (shown.code, "+ table events" in shown.out) == (0, True)
    assert cli("apply", file, "--dry-run", "--exit-code").code == 9
    told = json.loads(cli("apply", file, "--dry-run", "--json").out)
    assert [change["name"] for change in told["changes"] if change["what"] == "column"] == ["id", "user_id", "at"]
    assert db.refresh() == 0
    cli("apply", file, "--yes")
    assert cli("apply", file, "--dry-run", "--exit-code").code == 0


def test_without_anybody_to_ask_nothing_is_done_unless_yes_is_said(cli: Cli, file: Path, db: dolmen.Database) -> None:
    refused = cli("apply", file)
    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert cli("apply", file, "--json").code == 2
    assert db.refresh() == 0
    done = json.loads(cli("apply", file, "--yes", "--json").out)
    assert (done["version"], done["commit"]["version"], done["commit"]["operation"]) == (0, 1, "apply")
    assert cli("apply", file).code == 0, "nothing to do is nothing to ask"


def test_a_declaration_is_read_from_standard_input(
    cli: Cli, db: dolmen.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(PLAIN))
    assert cli("apply", "-", "--yes").code == 0
    assert db.tables() == ["events"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("tables: ["))
    assert "standard input, line 1" in cli("apply", "-", "--yes").err


@pytest.mark.slow
def test_people_are_asked(file: Path, db: dolmen.Database, tmp_path: Path) -> None:
    source = "from dolmen.cli import main; main()"
    arguments = [sys.executable, "-c", source, "apply", str(file), "--database", str(tmp_path / "db")]
    for answer, code, version in (("n", 4, 0), ("y", 0, 1)):
        ours, theirs = pty.openpty()
        os.write(ours, f"{answer}\n".encode())
        done = subprocess.run(arguments, stdin=theirs, capture_output=True, text=True, timeout=60, check=False)
        os.close(ours)
        os.close(theirs)
        assert (done.returncode, db.refresh()) == (code, version), done
        assert "+ table events" in done.stdout
    assert "apply this?" in done.stderr


@pytest.mark.parametrize(
    ("was", "now", "phrases"),
    [
        ("user_id: BIGINT", "user_id: INT", ["'user_id'", "BIGINT", "INTEGER", "may not fit"]),
        ("user_id: BIGINT", "user_id: VARCHAR", ["'user_id'", "BIGINT", "VARCHAR", "of their kind only"]),
        ("id: BIGINT NOT NULL", "id: BIGINT", ["'id'", "primary key"]),
        (", at: TIMESTAMPTZ", ", at: TIMESTAMPTZ, more: DATE NOT NULL", ["'more'", "give a default"]),
        (", at: TIMESTAMPTZ", ", at: TIMESTAMPTZ, at2: {type: DATE, default: soon}", ["'soon'", "date32"]),
        ("primary_key: id", "primary_key: [id, user_id]", ["primary key id,", "primary key id, user_id is declared"]),
        ("primary_key: id", "sort_key: at", ["primary key id", "no primary key is declared"]),
    ],
)
def test_columns_and_keys_that_cannot_be_are_an_error_that_names_them_and_nothing_is_changed(
    cli: Cli, file: Path, db: dolmen.Database, was: str, now: str, phrases: list[str]
) -> None:
    cli("apply", file, "--yes")
    assert was in PLAIN
    file.write_text("database: {retention: 1d}\n" + PLAIN.replace(was, now).replace("format: csv", "format: tsv"))
    refused = cli("apply", file, "--yes")
    told = " ".join(refused.err.split())
    assert refused.code == 2
    assert [phrase for phrase in ["tables.yaml", *phrases] if phrase not in told] == [], told
    assert db.refresh() == 1


def test_columns_that_are_not_declared_are_named_and_dropped_if_asked_for(
    cli: Cli, file: Path, db: dolmen.Database
) -> None:
    cli("apply", file, "--yes")
    file.write_text(PLAIN.replace("user_id: BIGINT", "who: {type: INT, default: 7}"))
    shown = cli("apply", file, "--dry-run")
    assert "    + column who INTEGER\n" in shown.out
    assert "--drop" in shown.out
    told = json.loads(cli("apply", file, "--dry-run", "--json").out)
    assert [change["name"] for change in told["undropped"]] == ["user_id"]
    assert cli("apply", file, "--yes").code == 0
    assert cli("apply", file, "--dry-run", "--exit-code").code == 0, "it was not asked to drop anything"
    assert cli("apply", file, "--dry-run", "--exit-code", "--drop").code == 9
    dropped = cli("apply", file, "--yes", "--drop")
    assert "    - column user_id BIGINT\n" in dropped.out
    assert db.table("events").schema.names == ["id", "who", "at"]
    assert "nothing to do" in cli("apply", file, "--yes", "--drop").out


NESTED = '{id: \'STRUCT(a VARCHAR[], b MAP(VARCHAR, DECIMAL(9, 2)))[]\', on: "STRUCT(\\"the name\\" BLOB)"}'


def test_nested_types_are_declared_and_compared(db: dolmen.Database) -> None:
    text = f"tables: {{t: {{columns: {NESTED}}}}}"
    assert declaration.apply(db, Declaration.parse(text)).operation == "apply"
    assert db.table("t").schema.names == ["id", "on"], "'on' is a name, not true"
    assert declaration.apply(db, Declaration.parse(text)).operation == "nothing"
    with pytest.raises(SchemaError, match=r"column 'id.element.b.value' is DECIMAL\(9, 2\)"):
        declaration.apply(db, Declaration.parse(text.replace("9, 2", "8, 2")))


TABLE = "tables:\n  e:\n    columns:\n      id: BIGINT\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "line", "phrase"),
    [
        ("", 0, "empty"),
        ("tables", 1, "not a mapping"),
        ("tables: {}", 1, "declares nothing"),
        ("tables:", 1, "'tables'"),
        ("tables: [", 1, "not YAML"),
        ("tables:\n\te: 1", 2, "not YAML"),
        ("[" * 5000, 0, "nested"),
        ("a: 1\n---\nb: 2", 2, "single document"),
        ("\x00", 0, "not YAML"),
        ("table: {}", 1, "'tables'"),
        ("database: {retentoin: 1d}", 1, "'retention'"),
        ("database:\n  retention: never", 2, "not a duration"),
        ("tables:\n  Bad-Name: {}", 2, "Bad-Name"),
        ("tables:\n  e: {}", 2, "no columns"),
        ("tables:\n  e:\n    columns: [id]", 3, "mapping"),
        ("tables:\n  e:\n    columns: {}", 3, "name: TYPE"),
        ("tables:\n  e:\n    columns: {id: }", 3, "column 'id'"),
        ("tables:\n  e:\n    columns: {d: DECIMAL(10, 2)}", 3, "quote"),
        ("tables:\n  e:\n    columns: {d: 'INT, e INT'}", 3, "type"),
        ("tables:\n  e:\n    columns: {d: 'INT); DROP TABLE e; --'}", 3, "read"),
        ("tables:\n  e:\n    columns: {d: INTERVAL}", 3, "INTERVAL"),
        ("tables:\n  e:\n    columns: {d: INT PRIMARY KEY}", 3, "PRIMARY KEY"),
        ("tables:\n  e:\n    columns: {_commit_ts: INT}", 3, "reserved"),
        ("tables:\n  e:\n    columns: {d: !!python/object:os.system INT}", 3, "tag"),
        (TABLE + "      id: INT\n", 5, "line 4"),
        (TABLE + "  e: {}\n", 5, "'e'"),
        (TABLE + "      v: {default: 1}\n", 5, "type"),
        (TABLE + "      v: {type: INT, comments: x}\n", 5, "'comment'"),
        (TABLE + "      v: {type: INT, default: many}\n", 5, "'many' is not a value of int32"),
        (TABLE + "      v: {type: 'INT[]', default: 1}\n", 5, "list"),
        (TABLE + "      v: {type: INT, renamed_from: id}\n", 5, "'id'"),
        (
            TABLE + "      v: {type: INT, renamed_from: w}\n      x: {type: INT, renamed_from: w}\n",
            4,
            "renamed_from 'w'",
        ),
        (TABLE + "    primary_key: no\n", 5, "no column 'no'"),
        (TABLE + "    primary_key: []\n", 5, "empty list"),
        (TABLE + "    primary_key: [id, id]\n", 5, "twice"),
        (TABLE + "    primary_key: {id: 1}\n", 5, "'primary_key'"),
        (TABLE + "    sort_key: [[id]]\n", 5, "list"),
        (TABLE + "    ttl: id 90d\n", 5, "int64"),
        (TABLE + "    ttl: [a, b]\n", 5, "property ttl"),
        (TABLE + "    ttl: {a: b}\n", 5, "a mapping"),
        (TABLE + "    ttl:\n", 5, "missing"),
        (TABLE + "    ingest_format: csv\n", 5, "unknown member"),
        (TABLE + "    <<: {ttl: 1}\n", 5, "'<<'"),
        (TABLE + "    ingest:\n      ingest_format: csv\n", 6, "'format'"),
        (TABLE + "    ingest:\n      format: xml\n", 6, "csv, tsv"),
        (TABLE + "    ingest:\n      header: yes\n", 6, "true"),
        (TABLE + "    ingest:\n      mode: upsert\n", 6, "primary key"),
        (TABLE + "    ingest:\n      mode: cdc\n", 6, "needs cdc_envelope"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line_and_what_to_write(text: str, line: int, phrase: str) -> None:
    with pytest.raises(InputError) as caught:
        Declaration.parse(text, "tables.yaml")
    told = str(caught.value)
    assert phrase in told
    assert told.startswith(f"tables.yaml, line {line}:" if line else "tables.yaml:"), told


def test_a_wrong_file_changes_nothing_and_has_its_exit_code(cli: Cli, file: Path, tmp_path: Path) -> None:
    file.write_text(PLAIN + "    nope: 1\n")
    refused = cli("apply", file, "--yes")
    assert (refused.code, "line 8" in refused.err) == (2, True), refused.err
    file.write_bytes(b"tables: \xff")
    assert "not UTF-8" in cli("apply", file, "--yes").err
    file.write_text("#" * (1 << 20) + "\n")
    assert "at most 1,048,576 bytes" in " ".join(cli("apply", file, "--yes").err.split())
    assert cli("apply", tmp_path / "absent.yaml", "--yes").code == 2
    assert not (tmp_path / "db").exists()


def changed_meanwhile(db: dolmen.Database) -> list[Callable[[], Any]]:
    return [
        lambda: db.table("events").set(target_file_bytes="1MB"),
        lambda: db.drop_table("events"),
        lambda: db.create_table("new", pa.schema([("id", pa.int64())])),
        lambda: db.set(retention="3d"),
    ]


@pytest.mark.parametrize("what", range(4))
def test_what_was_changed_after_the_look_is_a_conflict_and_nothing_is_applied(
    db: dolmen.Database, file: Path, what: int
) -> None:
    declaration.apply(db, file)
    wanted = "database: {keep_versions: 7}" + PLAIN.replace("90d", "9d") + "  new: {columns: {id: BIGINT}}\n"
    planned = plan(db, Declaration.parse(wanted))
    changed_meanwhile(db)[what]()
    version = db.refresh()
    with pytest.raises(ConflictError, match="again"):
        planned.commit()
    assert db.refresh() == version


def test_rows_that_come_meanwhile_are_no_conflict(db: dolmen.Database, file: Path) -> None:
    declaration.apply(db, file)
    planned = plan(db, Declaration.parse(PLAIN.replace("90d", "9d")))
    db.table("events").append([{"id": 1}])
    db.create_table("another", pa.schema([("id", pa.int64())]))
    assert planned.commit().version == 4
    assert properties(db)["ttl"] == "at 9d"


def test_the_command_shows_the_differences_anew_after_a_conflict(
    cli: Cli, db: dolmen.Database, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("apply", file, "--yes")
    file.write_text(PLAIN.replace("90d", "9d"))
    meddle = iter([lambda: db.table("events").set(target_file_bytes="1MB")])

    def plan_then_meddle(database: dolmen.Database, wanted: Declaration, *, drop: bool) -> DeclarationPlan:
        planned = plan(database, wanted, drop=drop)
        for change in meddle:
            change()
        return planned

    monkeypatch.setattr(command, "plan", plan_then_meddle)
    done = cli("apply", file, "--yes")
    assert done.code == 0
    assert "target_file_bytes" in done.err
    assert done.out.count("~ ttl: at 90d -> at 9d") == 2
    assert done.out.count("- target_file_bytes: 1MB") == 1
    assert properties(db) == {"ttl": "at 9d", "ingest_format": "csv", "ingest_header": "false"}


def test_two_that_apply_the_same_at_once_make_one_commit(tmp_path: Path, file: Path) -> None:
    first, second = dolmen.open(str(tmp_path / "db")), dolmen.open(str(tmp_path / "db"))
    planned = plan(first, Declaration.read(file))
    assert declaration.apply(second, file).version == 1
    with pytest.raises(Error, match="exists already"):
        planned.commit()
    assert declaration.apply(first, file).operation == "nothing"
    assert first.refresh() == 1


@pytest.mark.slow
def test_yaml_is_loaded_only_by_those_who_declare() -> None:
    source = "import sys, dolmen, dolmen.declaration; print('yaml' in sys.modules, 'sqlglot' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
