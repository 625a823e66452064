"""Spark Connect: what can work without a JVM in this process does, and all else says so in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

import dolmen
from dolmen import Commit
from support import connect_client
from support.spark import SparkProcess

pytestmark = pytest.mark.slow


def test_queries_see_the_newest_version_and_older_ones(client: SparkProcess, url: str) -> None:
    text = "SELECT count(*), min(id), max(x) FROM t"
    assert client.run(connect_client.query, url, text) == [(10, 0, 0.5)]
    assert client.run(connect_client.query, url, f"{text} WHERE s = :s", {"s": "a"}) == [(2, 0, 0.5)]
    travelled = (
        "SELECT count(*) FROM t VERSION AS OF 2 AS old JOIN t TIMESTAMP AS OF current_timestamp() AS new USING (id) "
        "WHERE new.id IN (SELECT id FROM t WHERE s = 'c')"
    )
    assert client.run(connect_client.query, url, travelled) == [(2,)]


def test_views_show_a_version_until_they_are_refreshed(client: SparkProcess, url: str) -> None:
    assert client.run(connect_client.views, url) == ([(10, 9)], [(10, 9)], [(11, 1_000)], [])


def test_each_way_to_read_gives_the_same_rows(client: SparkProcess, url: str) -> None:
    found = client.run(connect_client.read, url, 2, ["s", "id"], "s IN ('a', 'c') AND id < 4")
    assert found == [[("a", 0), ("a", 3), ("c", 2)]] * 4
    table = dolmen.open(url).table("t")
    expected = table.scan(["id"], with_commit_ts=True).to_arrow().to_pydict()
    assert client.run(connect_client.commit_times, url) == sorted(zip(*expected.values(), strict=True), key=repr)


def test_inserts_are_one_commit_each_and_values_are_cast_as_spark_stores_them(client: SparkProcess, url: str) -> None:
    db = dolmen.open(url)
    found = client.run(
        connect_client.change,
        url,
        "INSERT INTO t VALUES (20, 5, 2, 1), (21, 6, NULL, 2)",
        "INSERT INTO t BY NAME SELECT 'm' AS s, 22 AS id",
        "INSERT INTO t (id) SELECT id + 100 FROM t VERSION AS OF 2 WHERE id = 0",
        "INSERT INTO t (id, s) VALUES ('23', 'x')",
        "INSERT INTO t (id) VALUES (99999999999999999999)",
    )
    commits = [commit for commit in found if isinstance(commit, Commit)]
    assert [commit.counts.rows_added for commit in commits] == [2, 1, 1]
    assert [commit.version for commit in commits] == [4, 5, 6] == [each.version for each in db.history(3)][::-1]
    assert [commit.commit_id for commit in commits] == [each.commit_id for each in db.history(3)][::-1]
    kinds = [str(each).partition(":")[0] for each in found[3:]]
    assert kinds == ["SchemaError", "RowError"], found[3:]
    table = db.table("t")
    assert table.scan(["s", "x"], "id IN (20, 21)", order_by="id").to_arrow().to_pylist() == [
        {"s": "5", "x": 2.0},
        {"s": "6", "x": None},
    ]
    assert table.count() == 14


def test_an_overwrite_is_held_to_what_its_query_reads(client: SparkProcess, url: str) -> None:
    statement = "INSERT OVERWRITE t SELECT * FROM t WHERE id < 3"
    (done,) = client.run(connect_client.change, url, statement)
    assert isinstance(done, Commit)
    assert (done.operation, dolmen.open(url).table("t").count()) == ("overwrite", 3)
    (refused,) = client.run(connect_client.change, url, "INSERT OVERWRITE t SELECT * FROM t VERSION AS OF 2")
    assert str(refused).startswith("ConflictError")


def test_a_request_is_applied_once(client: SparkProcess, url: str) -> None:
    insert = "INSERT INTO t (id) VALUES (1000)"
    first, again, other = client.run(
        connect_client.change, url, insert, insert, "INSERT INTO t (id) VALUES (1001)", request="order 7"
    )
    assert isinstance(first, Commit)
    assert isinstance(again, Commit)
    assert (first.requests, again.operation, again.already) == (("order 7",), "nothing", {"order 7": first.version})
    assert str(other).startswith("AppliedIdError")
    assert dolmen.open(url).table("t").count() == 11


def test_frames_are_appended_and_overwrite(client: SparkProcess, url: str) -> None:
    plain, wider, once, again, replaced, conflict, forced = client.run(connect_client.write, url)
    assert [each.counts.rows_added for each in (plain, wider, once, replaced, forced)] == [1] * 5
    assert (again.operation, replaced.operation) == ("nothing", "overwrite")
    assert conflict.startswith("ConflictError")
    assert dolmen.open(url).table("t").scan(["id", "extra"]).to_arrow().to_pylist() == [{"id": 7, "extra": "new"}]


def test_streams_go_from_table_to_table(client: SparkProcess, url: str, tmp_path: Path) -> None:
    assert client.run(connect_client.stream, url, str(tmp_path / "copy"), str(tmp_path / "checkpoint")) == 10


def test_the_format_can_be_registered(client: SparkProcess) -> None:
    assert client.run(connect_client.register_again) == "true"


@pytest.mark.parametrize("what", connect_client.REFUSED)
def test_all_else_is_refused_in_one_sentence(client: SparkProcess, url: str, tmp_path: Path, what: str) -> None:
    version = dolmen.open(url).refresh()
    kind, text = client.run(connect_client.refusal, what, url, tmp_path)
    assert kind == "InputError", text
    assert "Connect" in text or "CREATE" in text
    assert not [word for word in ("_jvm", "_jdf", "sparkContext", "\n") if word in text], text
    assert dolmen.open(url).refresh() == version
    assert not (tmp_path / "out").exists()


def test_a_delete_by_a_predicate_needs_no_spark(client: SparkProcess, url: str) -> None:
    assert client.run(connect_client.delete_without_spark, url) == 9
