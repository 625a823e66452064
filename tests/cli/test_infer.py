"""Files that nobody has described: ``infer``, ``create --like`` and ``append --create`` find how they are meant."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import pytest

import dolmen

Cli = Callable[..., Any]
GERMAN = "id;betrag;tag\n1;2,50;31.12.2024\n2;1013,75;01.01.2025\n"
ROWS = [
    {"id": 1, "betrag": 2.5, "tag": dt.date(2024, 12, 31)},
    {"id": 2, "betrag": 1013.75, "tag": dt.date(2025, 1, 1)},
]


def rows(tmp_path: Path, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = dolmen.open(tmp_path / "db").table(table).scan().to_arrow().to_pylist()
    return found


def test_infer_shows_columns_and_what_was_found(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(GERMAN)
    shown = cli("infer", tmp_path / "a.csv")
    assert shown.code == 0
    for text in ("';' separates the fields", "decimal comma", "betrag", "DOUBLE", "1013.75", "ingest_delimiter: ';'"):
        assert text in shown.out, text
    (facts,) = cli("infer", tmp_path / "a.csv", "--json").lines()
    assert facts["properties"] == {
        "ingest_delimiter": ";",
        "ingest_decimal": ",",
        "ingest_timestamp_format": ["%d.%m.%Y"],
    }
    assert [column["type"] for column in facts["columns"]] == ["int64", "double", "date32[day]"]


def test_the_declaration_that_infer_prints_makes_a_table_that_reads_the_file(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(GERMAN)
    printed = cli("infer", tmp_path / "a.csv", "--yaml", "--table", "orders")
    (tmp_path / "tables.yaml").write_text(printed.out)
    assert cli("apply", tmp_path / "tables.yaml", "--yes").code == 0
    assert cli("append", "orders", tmp_path / "a.csv").code == 0
    assert rows(tmp_path, "orders") == ROWS


def test_so_does_the_declaration_of_a_workbook(cli: Cli, tmp_path: Path) -> None:
    for name, row in ("first", [1, 0.5]), ("second", [2, "n/a"]):
        book = openpyxl.Workbook()
        for cells in ["Stock"], [], [None, "id", "share"], [None, *row], [None, 3, 1.5]:
            book.active.append(cells)
        book.create_sheet("Notes").append(["by hand"])
        book.save(tmp_path / f"{name}.xlsx")
    printed = cli("infer", tmp_path / "second.xlsx", "--yaml", "--table", "stock")
    (tmp_path / "tables.yaml").write_text(printed.out)
    assert cli("apply", tmp_path / "tables.yaml", "--yes").code == 0
    assert cli("append", "stock", tmp_path / "first.xlsx").code == 0
    assert cli("append", "stock", tmp_path / "second.xlsx").code == 0
    shares = sorted((row["id"], row["share"]) for row in rows(tmp_path, "stock") if row["id"] < 3)
    assert shares == [(1, 0.5), (2, None)]
    (facts,) = cli("infer", tmp_path / "first.xlsx", "--json").lines()
    assert facts["losses"] == ["not read: 1 other sheet with values: 'Notes'"]


@pytest.mark.slow
@pytest.mark.parametrize("door", ["create", "append"])
def test_a_new_table_keeps_the_dialect_and_reads_later_files_alike(cli: Cli, tmp_path: Path, door: str) -> None:
    (tmp_path / "a.csv").write_text(GERMAN)
    if door == "create":
        made = cli("create", "orders", "--like", tmp_path / "a.csv")
        assert cli("append", "orders", tmp_path / "a.csv").code == 0
    else:
        made = cli("append", "orders", tmp_path / "a.csv", "--create")
    assert made.code == 0
    assert "read as CSV: ';' separates the fields; decimal comma; times as in %d.%m.%Y" in made.err
    assert len(made.err.splitlines()) == 1
    (tmp_path / "b.csv").write_text("id;betrag;tag\n3;7;02.01.2025\n")
    again = cli("append", "orders", tmp_path / "b.csv")
    assert (again.code, again.err) == (0, "")
    assert rows(tmp_path, "orders") == [*ROWS, {"id": 3, "betrag": 7.0, "tag": dt.date(2025, 1, 2)}]
    merged = cli("merge", "orders", tmp_path / "b.csv", "--on", "id")
    assert merged.code == 0, merged


def test_a_plain_file_is_read_without_a_word(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name\n1,Ada\n2,Bob\n")
    made = cli("append", "users", tmp_path / "a.csv", "--create", "--json")
    assert (made.code, made.err) == (0, "")
    assert made.lines()[0]["inferred"]["properties"] == {}
    assert dolmen.open(tmp_path / "db").table("users").describe()["properties"] == {}


def test_a_name_that_shows_no_format_needs_none(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"id|name\n1|Ada\n2|Bob\n")
    assert cli("append", "users", tmp_path / "a.txt", "--create").code == 0
    assert cli("append", "users", tmp_path / "a.txt").code == 0
    (tmp_path / "packed").write_bytes(gzip.compress(b'[{"id": 3, "name": "Eve"}]'))
    assert cli("append", "others", tmp_path / "packed", "--create").code == 0
    assert [row["id"] for row in rows(tmp_path, "users") + rows(tmp_path, "others")] == [1, 2, 1, 2, 3]


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("1,a\n2,b\n", ["--no-header"], [{"column_1": 1, "column_2": "a"}, {"column_1": 2, "column_2": "b"}]),
        ("a\n'1\n", ["--quote", "none"], [{"a": "'1"}]),
        ("a,b\n1,NA\n2,-\n", ["--null", "NA", "--null", "-"], [{"a": 1, "b": None}, {"a": 2, "b": None}]),
        ("a\n01/02/2024\n", ["--time-format", "%d/%m/%Y"], [{"a": dt.date(2024, 2, 1)}]),
        ("x\ny\na,b\n1,2\n", ["--skip-lines", "2"], [{"a": 1, "b": 2}]),
        ("a,b\n1,oui\n2,non\n", ["--boolean", "oui/non"], [{"a": 1, "b": True}, {"a": 2, "b": False}]),
    ],
)
def test_what_is_given_is_not_guessed(
    cli: Cli, tmp_path: Path, text: str, options: list[str], expected: list[dict[str, Any]]
) -> None:
    (tmp_path / "a.csv").write_text(text)
    assert cli("append", "t", tmp_path / "a.csv", "--create", *options).code == 0
    assert rows(tmp_path, "t") == expected
    assert cli("append", "t", tmp_path / "a.csv").code == 0, "the table keeps it"


def test_json_of_any_shape(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"took": 3, "items": [{"id": 1}, {"id": 2}]}, indent=2))
    assert cli("append", "t", tmp_path / "a.json", "--create", "--json-rows", "items").code == 0
    assert rows(tmp_path, "t") == [{"id": 1}, {"id": 2}]


def test_options_override_the_settings_of_the_table_and_other_settings_have_no_effect(cli: Cli, tmp_path: Path) -> None:
    cli("create", "t", "--columns", "id BIGINT, name VARCHAR")
    assert cli("set", "t", "ingest_delimiter=;", "ingest_on_bad_row=quarantine").code == 0
    (tmp_path / "a.csv").write_text("id|name\n1|Ada\n")
    assert cli("append", "t", tmp_path / "a.csv", "--delimiter", "|").code == 0
    (tmp_path / "b.csv").write_text("id;name\n1;Ada\nx;Bob\n")
    refused = cli("append", "t", tmp_path / "b.csv")
    assert (refused.code, "line 3" in refused.err) == (2, True)
    assert rows(tmp_path, "t") == [{"id": 1, "name": "Ada"}]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (b"id,day,p\n1,31.01.2024,2.5\n", "--time-format %d.%m.%Y"),
        (b"# x\nid,day\n1,2024-01-01\n", "--comment '#'"),
        (b"1,2024-01-01,2.5\n2,2024-01-01,3.5\n", "--no-header"),
        (b'{"id":1}\n', "--format jsonl"),
        (b"id,name\n1,M\xfcller\n2,x\n", "--encoding windows-1252"),
        (b"id;day;p\n1;2024-01-01;2\n", "looks like ';' separates the fields: --delimiter ';'"),
    ],
)
def test_a_strict_table_refuses_a_file_and_says_what_it_looks_like(
    cli: Cli, tmp_path: Path, text: bytes, hint: str
) -> None:
    cli("create", "t", "--columns", "id BIGINT, day DATE, p DOUBLE, name VARCHAR")
    (tmp_path / "a.csv").write_bytes(text)
    refused = cli("append", "t", tmp_path / "a.csv")
    assert (refused.code, hint in refused.err) == (2, True), refused
    assert rows(tmp_path, "t") == []


@pytest.mark.parametrize(
    "text",
    [
        "id;name\n1;Ada\n2;Bob\n",
        "id\tname\n1\tAda\n2\tBob\n",
        "id|name\n1|Ada\n2|Bob\n",
        "id\x01name\n1\x01Ada\n2\x01Bob\n",
        "1,Ada\n2,Bob\n",
        "Names of today\n\nid,name\n1,Ada\n2,Bob\n",
        "# x\nid,name\n1,Ada\n2,Bob\n",
        "id,name\n1,'Ada'\n2,'Bob, B.'\n",
        '{"id": 1, "name": "Ada"}\n{"id": 2, "name": "Bob"}\n',
    ],
)
def test_the_options_that_an_error_names_read_the_file(cli: Cli, tmp_path: Path, text: str) -> None:
    cli("create", "t", "--columns", "id BIGINT, name VARCHAR")
    (tmp_path / "a.csv").write_text(text)
    refused = cli("append", "t", tmp_path / "a.csv")
    options = re.search(r"looks like .+?: (--.*)", refused.err)
    assert options is not None, refused
    words = shlex.split(options[1].replace("$'\\x01'", "\x01"))  # as bash does
    assert cli("append", "t", tmp_path / "a.csv", *words).code == 0, options[1]
    assert [row["id"] for row in rows(tmp_path, "t")] == [1, 2]


def test_bad_rows_are_put_aside_and_the_others_added(cli: Cli, tmp_path: Path) -> None:
    cli("create", "t", "--columns", "id BIGINT, name VARCHAR", "--primary-key", "id")
    file = tmp_path / "a.csv"
    file.write_text("id,name\n1,Ada\nx,Bob\n3\n,Eve\n5,Kim\n")
    done = cli("append", "t", file, "--on-bad-row", "quarantine", "--upsert")
    aside = tmp_path / "a.csv.rejected.jsonl"
    assert (done.code, f"3 rows of {file}" in done.err, str(aside) in done.err) == (10, True, True), done
    assert rows(tmp_path, "t") == [{"id": 1, "name": "Ada"}, {"id": 5, "name": "Kim"}]
    lines = [json.loads(line) for line in aside.read_text().splitlines()]
    assert [(line["line"], line["text"]) for line in lines] == [(3, "x,Bob"), (4, "3"), (5, ",Eve")]
    report = json.loads((tmp_path / "a.csv.rejected.jsonl.error.json").read_text())
    assert (report["rows"], report["header"], report["format"]) == (3, {"text": "id,name"}, "csv")
    (facts,) = cli("append", "t", file, "--on-bad-row", "quarantine", "--json", "--upsert").lines()
    assert facts["rejected"] == [{"file": str(file), "rows": 3, "to": str(aside)}]


def test_the_error_of_a_bad_row_names_the_option_that_puts_it_aside(cli: Cli, tmp_path: Path) -> None:
    cli("create", "t", "--columns", "id BIGINT NOT NULL, name VARCHAR")
    ragged, typed, no_id = tmp_path / "a.csv", tmp_path / "b.csv", tmp_path / "c.jsonl"
    ragged.write_text("id,name\n" + "1,Ada\n" * 30_000 + "2,Bob,x\n")
    typed.write_text("id,name\n1,Ada\nx,Bob\n")
    no_id.write_text('{"id": 1}\n{"name": "Ada"}\n')
    hint = "dolmen append --on-bad-row quarantine puts bad rows aside"
    for file, commands in (
        (ragged, [["infer"], ["append", "new", "--create"], ["append", "t"]]),
        (typed, [["append", "t"]]),
        (no_id, [["append", "t"]]),
    ):
        for command in commands:
            refused = cli(*command, file)
            assert (refused.code, refused.err.strip().endswith(f"; {hint}")) == (2, True), refused
    semicolons = tmp_path / "d.csv"
    semicolons.write_text("id;name\n1;Ada\n")
    assert hint not in cli("append", "t", semicolons).err  # another option reads the file as it is meant
    assert hint not in cli("append", "t", typed, "--on-bad-row", "quarantine", "--max-bad-rows", "0").err


def test_bad_rows_of_a_new_table_are_put_aside_too(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id;name\n1;Ada\n2;Bob\n3;Kim;x;y\n4;Eve\n")
    rejects = tmp_path / "bad.jsonl"
    done = cli("append", "t", tmp_path / "a.csv", "--create", "--on-bad-row", "quarantine", "--rejects", rejects)
    assert done.code == 10, done
    assert [row["id"] for row in rows(tmp_path, "t")] == [1, 2, 4]
    assert len(rejects.read_text().splitlines()) == 1


def test_nothing_is_added_if_too_many_rows_are_bad_or_their_file_has_others(cli: Cli, tmp_path: Path) -> None:
    cli("create", "t", "--columns", "id BIGINT")
    (tmp_path / "a.csv").write_text("id\n1\nx\ny\n")
    for more, phrase in (
        (["--max-bad-rows", "1"], "--max-bad-rows"),
        (["--rejects", tmp_path / "others"], "--rejects"),
    ):
        (tmp_path / "others").write_text("rows of another file\n")
        refused = cli("append", "t", tmp_path / "a.csv", "--on-bad-row", "quarantine", *more)
        assert (refused.code, phrase in refused.err) == (2, True), refused
    assert (tmp_path / "others").read_text() == "rows of another file\n"
    assert rows(tmp_path, "t") == []


def test_options_that_do_not_go_together_are_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    for arguments in (
        ["append", "t", tmp_path / "a.csv", "--create", "--rejects", "x"],
        ["append", "t", tmp_path / "a.csv", "--create", "--on-bad-row", "drop"],
        ["append", "t", tmp_path / "a.csv", "--create", "--delimiter", ",", "--quote", ","],
        ["append", "t", tmp_path / "a.csv", "--create", "--names", "any"],
        ["create", "t", "--columns", "id BIGINT", "--delimiter", ";"],
        ["infer", tmp_path / "a.csv", "--yaml", "--json"],
        ["infer", tmp_path / "absent.csv"],
    ):
        assert cli(*arguments).code == 2, arguments


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("a.csv", "id,n,new\n1,5,x\n", "id,n,other\n1,-5,x\n"),
        ("a.tsv", "id\tn\tnew\n1\t5\tx\n", "id\tn\tother\n1\t-5\tx\n"),
        ("a.jsonl", '{"id": 1, "n": 5, "new": "x"}\n', '{"id": 1, "n": -5, "other": "x"}\n'),
    ],
)
def test_checks_are_for_values_and_not_for_the_texts_of_a_file_with_new_columns(
    cli: Cli, tmp_path: Path, name: str, good: str, bad: str
) -> None:
    cli("sql", "CREATE TABLE t (id BIGINT, n BIGINT CHECK (n > 0))")
    (tmp_path / name).write_text(good)
    assert cli("append", "t", tmp_path / name, "--new-columns", "add").code == 0
    (tmp_path / name).write_text(bad)
    refused = cli("append", "t", tmp_path / name, "--new-columns", "add")
    assert (refused.code, "n_check" in refused.err) == (2, True), refused
    assert rows(tmp_path, "t") == [{"id": 1, "n": 5, "new": "x"}]
