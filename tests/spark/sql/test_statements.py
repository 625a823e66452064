"""Statements are cut into pieces of their authors' text, or refused. No Spark is needed for that."""

from __future__ import annotations

import re

import pytest

from dolmen.errors import InputError
from dolmen.sql.statements import (
    DeleteStatement,
    InsertStatement,
    MergeStatement,
    Target,
    UpdateStatement,
    kind_of,
    read_statement,
)
from dolmen.sql.tokens import SPARK, tokenize


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("a -- b ' \n c", ["a", "c"]),
        ("a -- b \\\n still ' \n c", ["a", "c"]),
        ("a /* 'b' /* ; */ \" */ c", ["a", "c"]),
        (r"'it\'s' 'it''s' r'\' x", [r"'it\'s'", "'it''s'", r"r'\'", "x"]),
        ('"a;b" `c``;d`', ['"a;b"', "`c``;d`"]),
        ("1.5BD 2e10 3L .5 1a t.1", ["1.5BD", "2e10", "3L", ".5", "1a", "t", ".1"]),
        ("a<=>b<>c::int", ["a", "<=>", "b", "<>", "c", "::", "int"]),
        ("grün = 'ß'", ["grün", "=", "'ß'"]),
    ],
)
def test_tokens_are_those_of_spark(text: str, tokens: list[str]) -> None:
    assert [token.text for token in tokenize(text, SPARK)] == tokens


@pytest.mark.parametrize(
    "text", ["SELECT 'a", "SELECT /* /* */ 1", "SELECT (1", "SELECT 1)", "SELECT [1)", "SELECT `a"]
)
def test_what_is_left_open_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"open|missing|closes"):
        read_statement(text)


@pytest.mark.parametrize(
    "text", ["SELECT 1", "(SELECT 1) UNION SELECT 2;", "WITH a AS (SELECT 1) SELECT * FROM a", "VALUES (1)"]
)
def test_queries_change_no_table(text: str) -> None:
    assert kind_of(text) == ("QUERY", "")


def test_a_delete_has_its_condition_as_it_stands() -> None:
    text = "DELETE FROM t AS x WHERE x.a = 'where' /* c */ OR x.b -- d"
    assert read_statement(text).change == DeleteStatement(Target("t", "x"), "x.a = 'where' /* c */ OR x.b")
    assert read_statement("delete from `a``b`;").change == DeleteStatement(Target("a`b", "a`b"), None)


def test_an_update_has_its_values_as_they_stand() -> None:
    read = read_statement("UPDATE t SET t.a = CASE WHEN b THEN f(1, 2) ELSE 3 END, `c d` = c.end WHERE a IN (1, 2)")
    values = (("a", "CASE WHEN b THEN f(1, 2) ELSE 3 END"), ("c d", "c.end"))
    assert read.change == UpdateStatement(Target("t", "t"), values, "a IN (1, 2)")


@pytest.mark.parametrize(
    ("text", "query", "columns", "by_name", "overwrites"),
    [
        ("INSERT INTO t VALUES (1, 2)", "VALUES (1, 2)", None, False, False),
        ("INSERT INTO TABLE t (a, `b`) SELECT 1, 2", "SELECT 1, 2", ("a", "b"), False, False),
        ("INSERT INTO t (SELECT 1)", "(SELECT 1)", None, False, False),
        ("INSERT INTO t BY NAME SELECT 1 AS a", "SELECT 1 AS a", None, True, False),
        (
            "INSERT OVERWRITE t WITH x AS (SELECT 1) SELECT * FROM x",
            "WITH x AS (SELECT 1) SELECT * FROM x",
            None,
            False,
            True,
        ),
    ],
)
def test_an_insert_has_its_query(
    text: str, query: str, columns: tuple[str, ...] | None, by_name: bool, overwrites: bool
) -> None:
    assert read_statement(text).change == InsertStatement(Target("t", "t"), query, columns, by_name, overwrites)


def test_a_merge_has_its_clauses() -> None:
    read = read_statement(
        "WITH n AS (SELECT 1) MERGE INTO t x USING (SELECT * FROM n) -- the source\n AS s ON x.a = s.a AND CASE WHEN "
        "matched THEN TRUE END WHEN MATCHED AND s.op = 'WHEN' THEN DELETE WHEN MATCHED THEN UPDATE SET * WHEN NOT "
        "MATCHED BY SOURCE THEN UPDATE SET a = x.a + 1, b = 2 WHEN NOT MATCHED THEN INSERT (a, b) VALUES (s.a, f(1, 2))"
    )
    assert read.ctes == "WITH n AS (SELECT 1)"
    does = read.change
    assert isinstance(does, MergeStatement)
    assert (does.target, does.source, does.source_alias) == (Target("t", "x"), "(SELECT * FROM n)", "s")
    assert does.on == "x.a = s.a AND CASE WHEN matched THEN TRUE END"
    assert [(clause.kind, clause.action, clause.when, clause.values) for clause in does.clauses] == [
        ("matched", "delete", "s.op = 'WHEN'", None),
        ("matched", "update", None, None),
        ("not matched by source", "update", None, (("a", "x.a + 1"), ("b", "2"))),
        ("not matched", "insert", None, (("a", "s.a"), ("b", "f(1, 2)"))),
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no statement"),
        (" ; -- x", "no statement"),
        ("SELECT 1; SELECT 2", "one statement"),
        ("DROP TABLE t", "are understood here"),
        ("CREATE TABLE t (a INT) USING dolmen", "are understood here"),
        ("BEGIN DELETE FROM t; END", "one statement"),
        ("EXPLAIN DELETE FROM t", "are understood here"),
        ("FROM s INSERT INTO t SELECT * INSERT INTO u SELECT *", "INSERT INTO ... first"),
        ("DELETE FROM t WHERE id = ${x}", "a variable"),
        ("DELETE t", "FROM is expected"),
        ("DELETE FROM a.b", "without a catalog"),
        ("DELETE FROM t LIMIT 1", "nothing more"),
        ("DELETE FROM t WHERE", "expression"),
        ("UPDATE t SET", "name"),
        ("UPDATE t SET a.b = 1", "set"),
        ("UPDATE t SET a = DEFAULT", "DEFAULT"),
        ("UPDATE t SET a = 1,", "name"),
        ("INSERT INTO t PARTITION (a = 1) SELECT 1", "inserted"),
        ("INSERT INTO t REPLACE WHERE a = 1 SELECT 1", "inserted"),
        ("INSERT OVERWRITE DIRECTORY 'x' SELECT 1", "not a table"),
        ("MERGE WITH SCHEMA EVOLUTION INTO t USING s ON TRUE WHEN MATCHED THEN DELETE", "add_column"),
        ("MERGE INTO t USING s ON t.a = s.a", "WHEN is expected"),
        ("MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN INSERT *", "UPDATE is expected"),
        ("MERGE INTO t USING s ON t.a = s.a WHEN NOT MATCHED THEN INSERT (a, b) VALUES (1)", "2 columns"),
        ("MERGE INTO t USING s ON t.a = s.a WHEN NOT MATCHED BY SOURCE THEN UPDATE SET *", "source row"),
    ],
)
def test_what_is_not_understood_is_refused_in_a_sentence(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=re.escape(reason)):
        read_statement(text)


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("OPTIMIZE t", "compact"),
        ("VACUUM t", "gc"),
        ("RESTORE TABLE t TO VERSION AS OF 1", "restore"),
        ("CALL s.p()", "tag"),
    ],
)
def test_statements_of_other_formats_name_the_call_that_does_it(text: str, call: str) -> None:
    with pytest.raises(InputError, match=rf"\b{call}\b"):
        kind_of(text)
