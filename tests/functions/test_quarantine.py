"""Rows that cannot be read go to the rejects alone, and the rest of their file into the table, in one commit."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dolmen.ingest import rejects
from support.functions import World
from support.proxy import Proxy

HEAD = "id,user_id,kind\n"
BODY = f"{HEAD}1,1,x\ntwo,2,secret\n3,3,x\n4,hush,x\n5,5,x\n"


def quarantining(world: World, **settings: Any) -> None:
    world.create()
    world.database.table("events").set(ingest_on_bad_row="quarantine", **settings)


def kept(world: World, key: str) -> list[dict[str, Any]]:
    """The rows of a reject."""
    return [json.loads(line) for line in world.landing.get(f"rejected/{key}").body.splitlines()]


def test_bad_rows_are_kept_with_their_places_and_the_others_are_ingested(world: World) -> None:
    quarantining(world)
    assert world.ingest(world.drop("events/2026/a.csv", BODY), world.drop("events/b.csv", f"{HEAD}6,6,x\n")) == []
    assert world.ids() == [1, 3, 5, 6]
    assert world.versions("ingest") == 1
    [(key, report)] = world.rejects().items()
    assert key.startswith("events/2026/a-")
    assert key.endswith(".rows.jsonl")
    rows = kept(world, key)
    assert [(row["row"], row["line"], row["column"], row["text"]) for row in rows] == [
        (2, 3, "id", "two,2,secret"),
        (4, 5, "user_id", "4,hush,x"),
    ]
    assert all(row["reason"] for row in rows)
    assert (report["file"], report["rows"], report["format"]) == ("events/2026/a.csv", 2, "csv")
    assert [(first["line"], first["column"]) for first in report["first"]] == [(3, "id"), (5, "user_id")]
    assert (report["line"], report["column"], report["copy"]) == (3, "id", key)
    assert report["header"] == {"text": "id,user_id,kind"}
    assert report["database"] == {"url": world.database.url, "version": 2}


def test_logs_and_metrics_count_them_and_hold_no_value(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    quarantining(world)
    world.ingest(world.drop("events/a.csv", BODY))
    output = capsys.readouterr().out
    assert "secret" not in output
    assert "hush" not in output
    [metrics] = [line for line in map(json.loads, output.splitlines()) if "Messages" in line]
    assert (metrics["RowsIngested"], metrics["RowsQuarantined"]) == ([3.0], [2.0])
    [facts] = world.log_entries("drop ingested")
    assert (facts["rows"], facts["rows_quarantined"]) == (3, 2)
    assert facts["rejected_to"].endswith(".rows.jsonl")


def test_what_is_delivered_again_leaves_one_copy(world: World) -> None:
    quarantining(world)
    record = world.drop("events/a.csv", BODY)
    for _ in range(2):
        assert world.ingest(record) == []
        world.restart()
    assert world.ids() == [1, 3, 5]
    assert len(world.rejects()) == 1
    assert world.versions("ingest") == 1


def test_rows_are_kept_before_the_commit_and_once(s3_world: World, proxy: Proxy) -> None:
    quarantining(s3_world)
    record = s3_world.drop("events/a.csv", BODY)
    proxy.rule("forbid", method="PUT", key="_latest_manifest", times=None)
    assert s3_world.ingest(record) == ["message-0"]
    [before] = s3_world.rejects().items()
    proxy.reset()
    assert s3_world.ingest(record) == []
    assert s3_world.rejects() == dict([before])
    assert s3_world.ids() == [1, 3, 5]


@pytest.mark.parametrize("key", [".rows.jsonl", ".error.json"])
def test_nothing_is_ingested_while_the_bad_rows_cannot_be_kept(s3_world: World, proxy: Proxy, key: str) -> None:
    quarantining(s3_world)
    bad, good = s3_world.drop("events/a.csv", BODY), s3_world.drop("events/b.csv", f"{HEAD}6,6,x\n")
    proxy.rule("forbid", method="PUT", key=key, times=None)
    assert s3_world.ingest(bad, good) == ["message-0"]
    assert s3_world.ids() == [6]
    proxy.reset()
    assert s3_world.ingest(bad, good) == []
    assert s3_world.ids() == [1, 3, 5, 6]
    assert [len(kept(s3_world, key)) for key in s3_world.rejects()] == [2]


def test_rows_that_are_bad_only_by_the_second_delivery_are_kept_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two deliveries of one event the table becomes another one, for which other rows are bad."""
    quarantining(world)
    record = world.drop("events/a.csv", f"{HEAD}1,1,x\ntwo,2,x\n3,,x\n")

    def unreachable(*args: Any, **options: Any) -> Any:
        raise OSError("the store of the database is gone for the moment")

    with monkeypatch.context() as patch:
        patch.setattr("dolmen.transactions.unit_of_work.commit_change", unreachable)
        assert world.ingest(record) == ["message-0"]
    world.database.drop_table("events")
    schema = pa.schema([("id", pa.int64()), pa.field("user_id", pa.int64(), nullable=False), ("kind", pa.string())])
    world.create(schema=schema)
    world.database.table("events").set(ingest_on_bad_row="quarantine")
    world.restart()
    assert world.ingest(record) == []
    assert world.ids() == [1]
    assert sorted([row["row"] for row in kept(world, key)] for key in world.rejects()) == [[2], [2, 3]]


@pytest.mark.parametrize(("most", "whole"), [(2, False), (1, True)])
def test_a_file_with_too_many_bad_rows_is_rejected_whole(world: World, most: int, whole: bool) -> None:
    quarantining(world, ingest_max_bad_rows=most)
    record = world.drop("events/a.csv", BODY)
    for _ in range(2):
        assert world.ingest(record) == []
    [(key, report)] = world.rejects().items()
    if not whole:
        assert key.endswith(".rows.jsonl")
        return
    assert world.ids() == []
    assert world.versions("ingest") == 1, "the first delivery's"
    assert world.landing.get(f"rejected/{key}").body == BODY.encode()
    assert f"more than {most} rows" in report["reason"]
    assert (report["line"], report["column"]) == (3, "id")


def test_bad_rows_that_take_too_much_room_reject_their_file(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    quarantining(world)
    monkeypatch.setattr(rejects, "MAX_BYTES", 1 << 20)
    assert world.ingest(world.drop("events/a.csv", f"{HEAD}two,2,{'x' * (1 << 20)}\n")) == []
    assert ["1 MB" in report["reason"] for report in world.rejects().values()] == [True]


def test_a_row_that_is_not_utf8_is_kept_as_it_is(world: World) -> None:
    quarantining(world)
    assert world.ingest(world.drop("events/a.csv", HEAD.encode() + b"1,1,\xff\xfe\n2,2,x\n")) == []
    assert world.ids() == [2]
    [key] = world.rejects()
    [row] = kept(world, key)
    assert base64.b64decode(row["text_base64"]) == b"1,1,\xff\xfe"


def parquet(rows: list[dict[str, Any]], schema: pa.Schema) -> bytes:
    sink = BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema), sink)
    return sink.getvalue()


NARROW = pa.schema([("id", pa.int64()), ("user_id", pa.int64()), ("kind", pa.string())])


@pytest.mark.parametrize(
    ("name", "body", "texts"),
    [
        ("a.jsonl", b'{"id": 1}\n{"id": "x"}\n{"id": 2}\n[]\n', [b'{"id": "x"}', b"[]"]),
        ("a.csv.gz", gzip.compress(BODY.replace("5,", "2,").encode(), mtime=0), [b"two,2,secret", b"4,hush,x"]),
        ("a.tsv", b"kind\tid\nx\t1\nx\ty\nx\t2\n", [b"x\ty"]),
    ],
)
def test_text_of_every_format_is_kept(world: World, name: str, body: bytes, texts: list[bytes]) -> None:
    quarantining(world)
    assert world.ingest(world.drop(f"events/{name}", body)) == []
    assert {1, 2} <= set(world.ids())
    [key] = world.rejects()
    assert [row["text"].encode() for row in kept(world, key)] == texts


def test_a_row_of_parquet_is_kept_as_json(world: World) -> None:
    quarantining(world, ingest_mode="upsert")
    body = parquet([{"id": 1, "kind": "x"}, {"id": None, "kind": "lost?"}, {"id": 2}], NARROW)
    assert world.ingest(world.drop("events/a.parquet", body)) == []
    assert world.ids() == [1, 2]
    [(key, report)] = world.rejects().items()
    [row] = kept(world, key)
    assert (row["row"], row["line"], row["column"]) == (2, None, "id")
    assert json.loads(row["text"])["kind"] == "lost?"
    assert "header" not in report


def test_of_rows_without_a_text_the_whole_file_is_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    quarantining(world, ingest_landing="expire")
    original: Callable[..., None] = rejects.Quarantine.add

    def without_text(self: rejects.Quarantine, bad: Any) -> None:
        original(self, type(bad)(bad.reason, bad.row, bad.line, bad.column, None))

    monkeypatch.setattr(rejects.Quarantine, "add", without_text)
    assert world.ingest(world.drop("events/a.csv.gz", gzip.compress(BODY.encode()))) == []
    assert [info.key for info in world.landing.list("landing/")] == []
    keys = [info.key for info in world.landing.list("rejected/")]
    [copy] = [key for key in keys if key.endswith(".rows.csv.gz")]
    assert gzip.decompress(world.landing.get(copy).body) == BODY.encode()
    [report] = [json.loads(world.landing.get(key).body) for key in keys if key.endswith(".error.json")]
    assert (report["rows_without_text"], f"rejected/{report['copy_of_file']}") == (2, copy)


@pytest.mark.slow
def test_many_bad_rows_are_held_in_a_temporary_file(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    quarantining(world, ingest_max_bad_rows=100_000)
    monkeypatch.setattr(rejects, "_MEMORY_BYTES", 1000)
    body = HEAD + "".join(f"{n if n % 3 else 'x'},{n},x\n" for n in range(3000))
    assert world.ingest(world.drop("events/a.csv", body)) == []
    assert len(world.ids()) == 2000
    [key] = world.rejects()
    assert [row["row"] for row in kept(world, key)] == list(range(1, 3000, 3))


def test_settings_that_cannot_be_read_reject_the_file_with_the_reason(world: World) -> None:
    """A newer dolmen may have written what this one does not know."""
    world.create()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dolmen.transactions.schema_verbs.check_table_properties", lambda changes, *_: changes)
        world.database.table("events").set(ingest_mode="sideways")
    assert world.ingest(world.drop("events/a.csv", f"{HEAD}1,1,x\n")) == []
    [report] = world.rejects().values()
    assert "ingest_mode" in report["reason"]
    assert "sideways" in report["reason"]
    assert world.ids() == []


def test_a_file_that_unpacks_to_more_than_it_may_is_rejected(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOLMEN_MAX_FILE_BYTES", "1000")
    monkeypatch.setenv("DOLMEN_AUTO_CREATE", "1")
    quarantining(world)
    bomb = gzip.compress((HEAD + "1,1,x\n" * 1000).encode())
    small = gzip.compress(f"{HEAD}1,1,x\n".encode())
    records = [world.drop("events/a.csv.gz", bomb), world.drop("new/a.csv.gz", bomb)]
    assert world.ingest(*records, world.drop("events/b.csv.gz", small)) == []
    assert world.ids() == [1]
    assert ["1,000 bytes" in report["reason"] for report in world.rejects().values()] == [
        True,
        True,
    ]
    assert world.database.tables() == ["events"]


@pytest.mark.filterwarnings("ignore:No application metrics")
@pytest.mark.parametrize("value", ["0", "-1", "1e9", "many"])
def test_a_limit_that_is_none_is_refused(world: World, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("DOLMEN_MAX_FILE_BYTES", value)
    with pytest.raises(ValueError, match="DOLMEN_MAX_FILE_BYTES"):
        world.ingest(world.drop("events/a.csv", HEAD))


def test_options_of_a_table_are_those_its_files_are_read_by(world: World) -> None:
    world.create("odd", pa.schema([("id", pa.int64()), ("at", pa.timestamp("us")), ("name", pa.string())]))
    world.database.table("odd").set(
        ingest_format="csv",
        ingest_delimiter=";",
        ingest_header=False,
        ingest_nulls="\\N,",
        ingest_timestamp_format="%d.%m.%Y",
        ingest_on_extra="ignore",
    )
    assert world.ingest(world.drop("odd/a.dat.gz", gzip.compress(b"1;24.12.2026;\\N\n2;31.12.2026;b\n"))) == []
    assert [(row["id"], row["at"].isoformat(), row["name"]) for row in world.rows("odd")] == [
        (1, "2026-12-24T00:00:00", None),
        (2, "2026-12-31T00:00:00", "b"),
    ]


def test_rows_that_break_a_check_are_bad_rows_in_each_format(world: World) -> None:
    quarantining(world)
    world.database.table("events").add_check("small", "user_id < 100 OR kind IS NULL")
    table = pa.table({"id": [1, 2, 3], "user_id": [1, 100, 3], "kind": ["x", "x", "x"]})
    body = BytesIO()
    pq.write_table(table, body)
    drops = {
        "a.csv": f"{HEAD}1,1,x\n2,100,x\nthree,3,x\n3,3,x\n",
        "b.jsonl": "".join(json.dumps(row) + "\n" for row in table.to_pylist()),
        "c.parquet": body.getvalue(),
    }
    for name, content in drops.items():
        assert world.ingest(world.drop(f"events/{name}", content)) == []
    assert world.ids() == sorted([1, 3] * 3)
    reasons = [row["reason"] for key in sorted(world.rejects()) for row in kept(world, key)]
    broken = "the check 'small' is FALSE: user_id < 100 OR kind IS NULL, and user_id is 100, kind is x"
    assert [reason for reason in reasons if "check" in reason] == [broken] * 3
    assert len(reasons) == 4


def test_a_file_with_a_row_that_breaks_a_check_is_rejected(world: World) -> None:
    world.create()
    world.database.table("events").add_check("small", "user_id < 100")
    assert world.ingest(world.drop("events/a.csv", f"{HEAD}1,1,x\n2,100,x\n")) == []
    [report] = world.rejects().values()
    assert (report["row"], report["line"]) == (2, 3)
    assert "the check 'small' is FALSE" in report["reason"]
    assert world.ids() == []
