"""``dolmen sql`` takes statements that change tables, and the user's own files."""

from __future__ import annotations

import json
from pathlib import Path

from cli.conftest import Cli


def test_statements_are_one_commit_and_a_request_is_applied_once(cli: Cli, tmp_path: Path) -> None:
    made = cli("sql", "CREATE TABLE t (id INT PRIMARY KEY, s VARCHAR); INSERT INTO t VALUES (1, 'a')", "--json")
    assert json.loads(made.out)["operation"] == "transaction"
    text = "UPDATE t SET s = s || '!'; INSERT INTO t VALUES (2, 'b')"
    assert "version 2" in cli("sql", text, "--request-id", "r", "--message", "why").out
    assert "nothing to do: version 2 applied r" in cli("sql", text, "--request-id", "r", "--message", "why").out
    found = cli("sql", "DELETE FROM t WHERE id = 1 RETURNING s", "--json")
    assert (found.lines(), found.err) == ([{"s": "a!"}], "version 3\n")
    assert cli("history", "--json").lines()[1]["message"] == "why"


def test_copy_takes_the_users_own_files(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id;s\n1;a\n2;b\n")
    cli("sql", f"CREATE TABLE t (id INT, s VARCHAR); COPY t FROM '{tmp_path}/in.csv'")
    assert cli("sql", f"COPY t TO '{tmp_path}/out.jsonl'", "--json").lines() == [{"Count": 2}]
    assert (tmp_path / "out.jsonl").read_text().splitlines() == ['{"id":1,"s":"a"}', '{"id":2,"s":"b"}']


def test_what_cannot_be_done_is_refused(cli: Cli) -> None:
    cli("sql", "CREATE TABLE t (id INT)")
    for arguments, reason in (
        (("INSERT INTO t VALUES ('x')",), "'x' is no int32"),
        (("DROP TABLE nope",), "nope"),
        (("DELETE FROM t", "--version", 1), "db.sql or tx.sql"),
        (("FROM t", "--request-id", "r"), "a query changes nothing"),
        (("FROM t", "--version", 1, "--request-id", "r"), "--request-id"),
        (("ATTACH 'x'",), "not ATTACH"),
    ):
        refused = cli("sql", *arguments)
        assert refused.code != 0
        assert reason in refused.err.replace("\n", " ")
