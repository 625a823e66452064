"""``dolmen update`` and ``dolmen merge``: rows get new values, by expressions and by files."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.conftest import Cli


@pytest.fixture
def table(cli: Cli, tmp_path: Path) -> Path:
    """Three rows; returns a file of two others, one of which has an id of theirs."""
    columns = "id INTEGER NOT NULL, name VARCHAR, price DECIMAL(9, 2)"
    assert cli("create", "t", "--columns", columns, "--primary-key", "id").code == 0
    (tmp_path / "rows.csv").write_text("id,name,price\n1,a,1.00\n2,b,2.00\n3,c,\n")
    assert cli("append", "t", tmp_path / "rows.csv").code == 0
    file = tmp_path / "more.csv"
    file.write_text("id,price,bonus\n3,5.00,1\n4,7.00,2\n")
    return file


def rows(cli: Cli) -> dict[int, tuple[str | None, str | None]]:
    found = cli("scan", "t", "--order-by", "id", "--json").lines()
    return {row["id"]: (row["name"], row["price"]) for row in found}


def test_an_update_sets_expressions(cli: Cli, table: Path) -> None:
    done = cli("update", "t", "--set", "price = price * 2", "--set", "name=upper(name) || '='", "--where", "id < 3")
    assert done.code == 0, done.err
    assert rows(cli) == {1: ("A=", "2.00"), 2: ("B=", "4.00"), 3: ("c", None)}
    again = (
        "update",
        "t",
        "--set",
        "price = price + 1",
        "--where",
        "TRUE",
        "--request-id",
        "u",
        "--message",
        "ticket 9",
    )
    first, second = cli(*again, "--json"), cli(*again, "--json")
    assert (first.code, second.code) == (0, 0)
    assert rows(cli)[1] == ("A=", "3.00")
    assert cli("history", "--json").lines()[0]["message"] == "ticket 9"


def test_a_merge_updates_and_inserts(cli: Cli, table: Path) -> None:
    done = cli("merge", "t", table, "--set", "price = source.price")
    assert done.code == 2  # no expression uses the column bonus, which the table does not have
    assert "no column 'bonus'" in " ".join(done.err.split())
    done = cli("merge", "t", table, "--set", "price = source.price + source.bonus", "--request-id", "m")
    assert done.code == 0, done.err
    table.write_text("id,price\n3,5.00\n4,7.00\n")
    assert rows(cli) == {1: ("a", "1.00"), 2: ("b", "2.00"), 3: ("c", "6.00"), 4: (None, "7.00")}
    assert cli("merge", "t", table, "--on", "id", "--when-not-matched", "nothing").code == 0
    assert rows(cli)[3] == ("c", "5.00")
    assert cli("merge", "t", table, "--when-matched", "nothing", "--when-not-matched-by-source", "delete").code == 0
    assert rows(cli) == {3: ("c", "5.00"), 4: (None, "7.00")}
    assert cli("merge", "t", table, "--when-matched", "delete", "--when-not-matched", "nothing").code == 0
    assert rows(cli) == {}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("update", "t", "--set", "price", "--where", "TRUE"), "write COLUMN = EXPRESSION"),
        (("update", "t", "--set", "price = 1", "--set", "price = 2", "--where", "TRUE"), "twice"),
        (("update", "t", "--set", "id = 1", "--where", "TRUE"), "primary key"),
        (("update", "t", "--set", "price = 1"), "Missing option"),
        (("merge", "t", "{file}", "--set", "price = 1", "--when-matched", "delete"), "--set"),
        (("merge", "t", "{file}", "--when-matched", "insert"), "when_matched='insert'"),
        (("merge", "t", "{file}", "--on", "bonus"), "no column 'bonus'"),
    ],
)
def test_what_makes_no_sense_is_refused(cli: Cli, table: Path, arguments: tuple[str, ...], words: str) -> None:
    version = cli("history", "--json").lines()[0]["version"]
    done = cli(*(argument.replace("{file}", str(table)) for argument in arguments))
    assert done.code == 2
    assert words in " ".join(done.err.replace("│", " ").split())
    assert cli("history", "--json").lines()[0]["version"] == version


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_a_source_without_rows_merges_nothing(cli: Cli, table: Path, text: str) -> None:
    file = table.with_name("empty.jsonl")
    file.write_text(text)
    before = rows(cli)
    for options in (
        (),
        ("--set", "price = source.price"),
        ("--when-matched", "delete", "--when-not-matched", "nothing"),
    ):
        done = cli("merge", "t", file, *options)
        assert (done.code, rows(cli)) == (0, before), done
    assert cli("merge", "t", file, "--when-not-matched-by-source", "delete").code == 0
    assert rows(cli) == {}


@pytest.mark.parametrize(("text", "phrase"), [("{}\n", "column 'id'"), ("{", "line 1")])
def test_a_source_of_rows_without_columns_is_refused(cli: Cli, table: Path, text: str, phrase: str) -> None:
    file = table.with_name("odd.jsonl")
    file.write_text(text)
    done = cli("merge", "t", file)
    assert (done.code, phrase in " ".join(done.err.split())) == (2, True), done


def test_a_merge_without_a_primary_key_needs_columns(cli: Cli, table: Path) -> None:
    assert cli("create", "keyless", "--columns", "id INTEGER, price DECIMAL(9, 2)").code == 0
    done = cli("merge", "keyless", table)
    assert (done.code, "--on" in " ".join(done.err.split())) == (2, True)


def test_columns_that_the_table_lacks_are_refused_ignored_or_added(cli: Cli, table: Path, tmp_path: Path) -> None:
    table.write_text("ID,price,bonus,none\n7,5.00,1,\n8,7.00,2,\n")
    assert "bonus" in cli("append", "t", table).err
    assert cli("append", "t", table, "--new-columns", "maybe").code == 2
    done = cli("append", "t", table, "--new-columns", "ignore", "--upsert")
    assert (done.code, rows(cli)[7]) == (0, (None, "5.00")), done.err
    assert cli("append", "t", table, "--new-columns", "add", "--upsert").code == 0
    shown = cli("scan", "t", "--where", "id >= 7", "--order-by", "id", "--json").lines()
    assert [(list(row), row["bonus"]) for row in shown] == [(["id", "name", "price", "bonus"], n) for n in (1, 2)]
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"id": 9, "city": "Bern"}\n{"id": "x"}\n{"id": 10, "size": 2.5}\n')
    aside = ("--new-columns", "add", "--on-bad-row", "quarantine", "--insert", "--json")
    assert "1 row of" in cli("append", "t", lines, *aside).err
    [row] = cli("scan", "t", "--where", "id = 9", "--json").lines()
    assert (row["city"], row["size"]) == ("Bern", None)


def test_a_merge_ignores_or_adds_columns_that_the_table_lacks(cli: Cli, table: Path) -> None:
    table.write_text("id,price,bonus,none\n3,5.00,1,\n4,7.00,2,\n")
    assert cli("merge", "t", table, "--new-columns", "ignore").code == 0
    assert list(cli("scan", "t", "--json").lines()[0]) == ["id", "name", "price"]
    assert cli("merge", "t", table, "--new-columns", "add").code == 0
    found = cli("scan", "t", "--order-by", "id", "--json").lines()
    assert [row["bonus"] for row in found] == [None, None, 1, 2]
    assert list(found[0]) == ["id", "name", "price", "bonus"]


def test_rows_that_the_table_has_already_are_skipped(cli: Cli, table: Path) -> None:
    table.write_text("id,name,price\n1,a,1.00\n2,b,9.00\n3,c,\n")
    done = cli("append", "t", table, "--upsert", "--skip-equal")
    assert (done.code, "equal ones: 2 rows" in done.out, "1 row added" in done.out) == (0, True, True), done.out
    [again] = cli("append", "t", table, "--upsert", "--skip-equal", "--json").lines()
    assert (again["operation"], again["rows_skipped"], rows(cli)[2]) == ("nothing", 3, ("b", "9.00"))
    assert "--upsert" in cli("append", "t", table, "--skip-equal").err
