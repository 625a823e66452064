"""``dolmen alter``: a table's columns are changed in one commit."""

from __future__ import annotations

import pytest

from cli.conftest import Cli


@pytest.fixture
def table(cli: Cli) -> None:
    assert cli("create", "t", "--columns", "id BIGINT NOT NULL, name VARCHAR", "--primary-key", "id").code == 0


def test_every_option_has_its_effect_in_one_commit(cli: Cli, table: None) -> None:
    done = cli(
        *("alter", "t", "--rename", "name=title", "--add", "n INTEGER NOT NULL", "--default", "n=7"),
        *("--add", "at TIMESTAMPTZ, x DECIMAL(9, 2)", "--default", "x=1.50", "--comment", "n=how many"),
        *("--first", "n,id", "--sort-key", "title", "--request-id", "r", "--message", "ticket 9", "--json"),
    )
    assert done.code == 0, done.err
    [shown] = cli("show", "t", "--json").lines()
    assert list(shown["columns"].items())[:2] == [("n", "int32 not null"), ("id", "int64 not null")]
    assert list(shown["columns"])[2:] == ["title", "at", "x"]
    assert shown["defaults"] == {"n": 7, "x": "1.50"}
    assert shown["comments"] == {"n": "how many"}
    assert shown["sort_key"] == ["title"]
    version = shown["version"]
    assert cli("alter", "t", "--drop", "at", "--default", "n=8", "--default", "x=", "--sort-key", "").code == 0
    [shown] = cli("show", "t", "--json").lines()
    assert (shown["version"], shown["defaults"], shown["sort_key"]) == (version + 1, {"n": 8}, [])
    assert "at" not in shown["columns"]
    assert cli("alter", "t", "--widen", "n=BIGINT", "--widen", "x=DECIMAL(18, 2)").code == 0
    [shown] = cli("show", "t", "--json").lines()
    assert (shown["columns"]["n"], shown["columns"]["x"]) == ("int64 not null", "decimal128(18, 2)")


def test_fields_inside_columns_go_by_paths(cli: Cli) -> None:
    assert cli("create", "n", "--columns", "id BIGINT, address STRUCT(zip INTEGER, street VARCHAR)").code == 0
    done = cli(
        *("alter", "n", "--rename", "address.zip=postcode", "--drop", "address.street"),
        *("--add", '"address.country" VARCHAR', "--widen", "address.postcode=BIGINT"),
    )
    assert done.code == 0, done.err
    [shown] = cli("show", "n", "--json").lines()
    assert shown["columns"]["address"] == "struct<postcode: int64, country: string>"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "nothing says what to change"),
        (("--add", "n"), "is not a column"),
        (("--widen", "id=DOUBLE"), "can't change from int64 to double"),
        (("--widen", "id=BLUE"), "BLUE"),
        (("--widen", "id=BIGINT NOT NULL"), "--widen id=BIGINT NOT NULL: give the type alone"),
        (("--widen", "id"), "write NAME=VALUE"),
        (("--add", "n INTEGER", "--default", "n=many"), "--default n=many"),
        (("--add", "f FLOAT", "--default", "f=1e300"), "'1e300' is not a value of float"),
        (
            ("--add", "d DATE", "--default", "d=9999999-01-01"),
            "'9999999-01-01' is not a value of date32[day]: write YYYY-MM-DD",
        ),
        (("--default", "nope=1"), "no column 'nope'; there are: id, name"),
        (("--rename", "name"), "write NAME=VALUE"),
        (("--drop", "nope"), "no column 'nope'"),
        (("--drop", "id"), "part of the primary key"),
    ],
)
def test_what_can_not_be_is_refused_and_changes_nothing(
    cli: Cli, table: None, arguments: tuple[str, ...], words: str
) -> None:
    version = cli("history", "--json").lines()[0]["version"]
    done = cli("alter", "t", *arguments)
    assert done.code == 2
    assert words in " ".join(done.err.split())
    assert cli("history", "--json").lines()[0]["version"] == version


def test_defaults_are_read_for_all_types_and_beyond_the_years_of_python(cli: Cli, table: None) -> None:
    added = ("--add", "d DATE, at TIMESTAMPTZ, tm TIME, f FLOAT, b BLOB, yes BOOLEAN")
    given = ("d=0000-01-01", "at=9999-12-31T23:59:59-05:00", "tm=03:00:00", "f=0.1", "b=a\\xFF", "yes=true")
    done = cli("alter", "t", *added, *(word for each in given for word in ("--default", each)))
    assert done.code == 0, done.err
    [shown] = cli("show", "t", "--json").lines()
    assert shown["defaults"] == {
        "d": -719528,
        "at": 253402318799000000,
        "tm": 3 * 3600 * 10**6,
        "f": 0.10000000149011612,
        "b": "Yf8=",
        "yes": True,
    }
    assert cli("show", "t").code == 0
