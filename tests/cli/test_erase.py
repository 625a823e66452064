"""``dolmen erase`` and ``forget``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.conftest import Cli


@pytest.fixture
def table(cli: Cli, tmp_path: Path) -> Cli:
    assert cli("create", "t", "--columns", "id BIGINT NOT NULL, x VARCHAR", "--primary-key", "id").code == 0
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id":1,"x":"a"}\n{"id":2,"x":"b"}\n{"id":3,"x":"7"}\n')
    assert cli("append", "t", rows).code == 0
    return cli


def ids(cli: Cli, *arguments: str) -> list[int]:
    done = cli("scan", "t", *arguments, "--json")
    assert done.code == 0, done.err
    return sorted(row["id"] for row in done.lines())


def test_erased_rows_are_in_no_version(table: Cli, tmp_path: Path) -> None:
    done = table("erase", "t", "--where", "id = 1", "--yes", "--request-id", "e1")
    assert done.code == 0, done.err
    assert "erasure " in done.out
    assert "gone from the disk by" in done.out
    assert ids(table) == ids(table, "--version", "2") == [2, 3]
    again = json.loads(table("erase", "t", "--where", "id = 1", "--yes", "--request-id", "e1", "--json").out)
    assert again["erasure"] in done.out
    keys = tmp_path / "keys.csv"
    keys.write_text("id\n2\n")
    assert table("erase", "t", "--keys-file", keys, "--yes").code == 0
    assert ids(table, "--version", "2") == [3]
    assert table("erase", "t", "--keys", "3", "--yes").code == 0
    assert ids(table, "--version", "2") == []


def test_it_asks_first(table: Cli) -> None:
    for command in (("erase", "t", "--where", "id = 1"), ("forget", "1")):
        done = table(*command)
        assert done.code == 2
        assert "undone" in done.err
    assert table("erase", "t", "--yes").code == 2
    assert table("erase", "t", "--where", "id = 1", "--keys", "1", "--yes").code == 2
    assert ids(table) == [1, 2, 3]


def test_somebody_is_forgotten_in_all_tables(table: Cli) -> None:
    assert table("set", "t", "subject=x").code == 0
    assert table("forget", "7", "--yes").code == 2  # a number, which a column of texts does not have
    done = json.loads(table("forget", "7", "a", "--text", "--yes", "--json").out)
    assert done["operation"] == "forget"
    assert ids(table) == ids(table, "--version", "2") == [2]


def test_a_number_is_a_whole_number_as_one_writes_it(table: Cli) -> None:
    assert table("create", "n", "--columns", "who BIGINT").code == 0
    assert table("set", "n", "subject=who").code == 0
    assert table("forget", "007", "--yes").code == 2, "a text"
    assert table("forget", "7", "--yes").code == 0


def test_who_stands_in_dropped_tables_alone_is_forgotten_with_dropped(table: Cli) -> None:
    assert table("set", "t", "subject=x").code == 0
    assert table("tag", "before").code == 0
    assert table("drop", "t", "--yes").code == 0
    assert table("forget", "a", "--yes").code == 2
    assert table("forget", "a", "--dropped", "--yes").code == 0
    assert ids(table, "--tag", "before") == [2, 3]


def test_it_names_the_table_that_a_clone_came_from(table: Cli) -> None:
    assert table("clone", "t", "copy").code == 0
    done = table("erase", "copy", "--where", "id = 1", "--yes")
    assert done.code == 0
    assert "cloned from" in done.err
    done = table("erase", "t", "--where", "id = 1", "--yes", "--json")
    assert json.loads(done.out)["sources"] == []
    assert done.err == ""


def test_append_says_how_many_rows_were_erased_and_leaves_them_out(table: Cli, tmp_path: Path) -> None:
    assert table("erase", "t", "--where", "x = 'a'", "--yes").code == 0
    rows = tmp_path / "again.jsonl"
    rows.write_text('{"id":1,"x":"a"}\n{"id":4,"x":"d"}\n')
    assert "erasures" in table("append", "t", rows).err
    assert json.loads(table("append", "t", rows, "--upsert", "--json").out)["erased_rows_written"] == 1
    left = table("append", "t", rows, "--upsert", "--leave-out-erased")
    assert "erased: 1" in left.out
    assert left.err == ""
    assert table("set", "t", "leave_out_erased=true").code == 0
    assert json.loads(table("append", "t", rows, "--json").out)["erased_rows_left_out"] == 1


def test_an_erasure_is_hurried_once_somebody_has_said_yes(table: Cli) -> None:
    erased = json.loads(table("erase", "t", "--where", "id = 1", "--within", "5d", "--yes", "--json").out)["erasure"]
    refused = table("erasures", "hurry", erased)
    assert refused.code == 2
    assert "--yes" in refused.err
    assert json.loads(table("erasures", "show", erased, "--json").out)["state"] == "hidden"
    done = json.loads(table("erasures", "hurry", erased, "--yes", "--json").out)
    assert done["state"] == "rewritten"
    assert done["due_at"] - done["requested_at"] == 5 * 86_400_000_000
    assert table("scan", "t", "--version", "2").code != 0
    assert ids(table) == [2, 3]
    assert table("erasures", "hurry", "--yes").code == 2
    assert table("erase", "t", "--where", "id = 2", "--within", "soon", "--yes").code == 2
