"""Values that the source leaves out of its changes, as they did not change: the row keeps what it has."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dolmen import Database, Transaction
from dolmen.errors import InputError, RowError
from dolmen.ingest.batch import BatchRequest, Decision
from dolmen.ingest.drops.drop_outcomes import RowCounts
from dolmen.store.memory import MemoryStore
from dolmen_simulator.counting import CountingStore
from support.changes import Feed
from support.source_table import PLACEHOLDER, SourceTable, body

SEED = int(os.environ.get("DOLMEN_TEST_SEED", random.SystemRandom().randrange(2**32)))
HISTORIES = 400 if os.environ.get("DOLMEN_LONG") else 6

NOTES = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("note", pa.string(), nullable=False),
        ("tags", pa.list_(pa.string())),
        ("lsn", pa.int64()),
    ]
)
LEFT_OUT = "the source left this value out"


def notes(schema: pa.Schema = NOTES, **properties: Any) -> Feed:
    """A table that Debezium feeds."""
    feed = Feed()
    told = {"cdc_envelope": "debezium", "cdc_sequence": "lsn", "cdc_sequence_from": "source.lsn", **properties}
    feed.create(schema, **{name: value for name, value in told.items() if value is not None})
    return feed


def event(op: str, lsn: int, id: int, note: str | None = PLACEHOLDER, tags: Any = PLACEHOLDER, **more: Any) -> Any:
    """An event; by default with what its row has already."""
    tags = [PLACEHOLDER] if tags == PLACEHOLDER else tags
    row = {"id": id, "note": note, "tags": tags}
    return {"op": op, "before": None, "after": row, "source": {"lsn": lsn}, **more}


def gone(lsn: int, id: int) -> Any:
    """A delete, with the image that a default REPLICA IDENTITY has."""
    return {"op": "d", "before": {"id": id, "note": "", "tags": None}, "after": None, "source": {"lsn": lsn}}


def rows(feed: Feed) -> dict[int, tuple[Any, ...]]:
    """The rows by key."""
    return {
        row["id"]: (row["note"], row["tags"], row["lsn"]) for row in feed.place.db.table("t").to_arrow().to_pylist()
    }


BYTES = PLACEHOLDER.encode()
BASE64 = "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="
UUID = "b68a35a7-17ad-35b3-af2a-ae46edb4545a"
HSTORE = f'{{"{PLACEHOLDER}":"{PLACEHOLDER}"}}'
IN_JSON: list[tuple[pa.DataType, Any, list[Any]]] = [
    (
        pa.string(),
        "text",
        [PLACEHOLDER, BASE64, BYTES.hex(), json.dumps({PLACEHOLDER: PLACEHOLDER}, separators=(",", ":"))],
    ),
    (pa.binary(), "AAEC", [PLACEHOLDER, BASE64, BYTES.hex()]),
    (pa.decimal128(9, 2), "1.50", [PLACEHOLDER]),
    (pa.timestamp("us"), "2026-11-28T10:00:00", [PLACEHOLDER]),
    (
        pa.list_(pa.string()),
        ["a", "b"],
        [[PLACEHOLDER], PLACEHOLDER, ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"], [BASE64]],
    ),
    (pa.list_(pa.int32()), [1, 2], [list(BYTES), PLACEHOLDER, [PLACEHOLDER]]),
    (pa.list_(pa.int64()), [1, 2], [list(BYTES)]),
    (pa.list_(pa.float64()), [1.5], [PLACEHOLDER, [PLACEHOLDER]]),
    (pa.list_(pa.binary()), ["AAEC"], [[BASE64], [PLACEHOLDER]]),
    (pa.struct([("x", pa.int64()), ("note", pa.string())]), {"x": 1, "note": "n"}, [PLACEHOLDER]),
    (pa.list_(pa.struct([("key", pa.string())])), [{"key": "k"}], [PLACEHOLDER, {PLACEHOLDER: PLACEHOLDER}]),
]


@pytest.mark.parametrize("envelope", ["debezium", "flat"])
@pytest.mark.parametrize(("kind", "value", "forms"), IN_JSON, ids=[str(kind) for kind, _, _ in IN_JSON])
def test_no_form_of_the_placeholder_becomes_a_value_of_a_column(
    envelope: str, kind: pa.DataType, value: Any, forms: list[Any]
) -> None:
    schema = pa.schema([NOTES.field("id"), ("v", kind), ("n", pa.int64()), ("lsn", pa.int64())])
    wrapped = envelope == "debezium"
    feed = notes(schema, cdc_envelope=envelope, cdc_sequence_from="source.lsn" if wrapped else None)

    def line(lsn: int, row: Any) -> bytes:
        made = {"op": "u", "after": row, "source": {"lsn": lsn}} if wrapped else {"Op": "u", **row, "lsn": lsn}
        return json.dumps(made).encode() + b"\n"

    feed.drop("a", line(1, {"id": 1, "v": value, "n": 0}))
    before = feed.place.db.table("t").to_arrow()["v"]
    for place, form in enumerate(forms, 2):
        feed.drop(f"f{place}", line(place, {"id": 1, "v": form, "n": place}))
        assert feed.place.db.table("t").to_arrow()["v"] == before, form
        assert feed.place.db.table("t").to_arrow()["n"].to_pylist() == [place]


def _parquet(table: pa.Table) -> bytes:
    out = BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


def _avro(table: pa.Table) -> bytes:
    kinds: list[Any] = [
        "long",
        "string",
        "bytes",
        {"type": "array", "items": "int"},
        {"type": "map", "values": "string"},
    ]
    fields = [
        {"name": name, "type": ["null", kind]}
        for name, kind in zip(table.column_names[1:], [*kinds, "long"], strict=True)
    ]
    own = {"type": "record", "name": "r", "fields": [{"name": "Op", "type": "string"}, *fields]}
    out = BytesIO()
    fastavro.writer(out, fastavro.parse_schema(own), [{**row, "m": dict(row["m"])} for row in table.to_pylist()])
    return out.getvalue()


def _ipc(table: pa.Table) -> bytes:
    out = BytesIO()
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


@pytest.mark.parametrize(("ending", "write"), [("parquet", _parquet), ("avro", _avro), ("arrow", _ipc)])
def test_placeholders_are_found_in_files_that_know_their_types(ending: str, write: Callable[[pa.Table], bytes]) -> None:
    kinds = [("id", pa.int64()), ("s", pa.string()), ("b", pa.binary()), ("i", pa.list_(pa.int32()))]
    kinds += [("m", pa.map_(pa.string(), pa.string())), ("lsn", pa.int64())]
    feed = notes(pa.schema(kinds), cdc_envelope="flat", cdc_sequence_from=None)
    in_file = pa.schema([("Op", pa.string()), *kinds])

    def change(lsn: int, *values: Any) -> bytes:
        names = ("s", "b", "i", "m")
        return write(
            pa.Table.from_pylist([{"Op": "u", "id": 1, "lsn": lsn, **dict(zip(names, values, strict=True))}], in_file)
        )

    real = ("s", b"\0", [1], [("k", "v")])
    feed.drop("a", change(1, *real), f"t/a.{ending}")
    feed.drop("b", change(2, PLACEHOLDER, BYTES, list(BYTES), [(PLACEHOLDER, PLACEHOLDER)]), f"t/b.{ending}")
    (row,) = feed.place.db.table("t").to_arrow().to_pylist()
    assert tuple(row.values()) == (1, *real, 2)


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("envelope", ["flat", "dms"])
def test_placeholders_are_found_in_csv(envelope: str, header: bool) -> None:
    """As DMS writes them with CsvNoSupValue: in columns of any type."""
    kinds = [("id", pa.int64()), ("s", pa.string()), ("b", pa.binary()), ("n", pa.int32()), ("d", pa.decimal128(9, 2))]
    kinds += [("f", pa.float64()), ("at", pa.timestamp("us")), ("l", pa.list_(pa.int32())), ("lsn", pa.int64())]
    told = {"cdc_envelope": envelope, "cdc_unavailable_value": "not logged", "ingest_header": header}
    feed = notes(pa.schema(kinds), cdc_sequence_from=None, **told)
    head = b"Op,id,s,b,n,d,f,at,l,lsn\n" if header else b""
    feed.quarantine = True
    first = b'I,1,text,AAEC,7,1.50,0.5,2026-11-28 10:00:00,"[1,2]",1\n'
    feed.drop("a", head + first, "t/a.csv")
    (before,) = feed.place.db.table("t").to_arrow().to_pylist()
    left_out = b"1,not logged,not logged,not logged,not logged,not logged,not logged,not logged"
    bad = b"U,2,x,AAEC,x,not logged,1,2026-11-28 10:00:00,,2\n"
    feed.drop("b", head + b"U," + left_out + b",2\n" + bad + b"D,3" + left_out[1:] + b",3\n", "t/b.csv")
    assert feed.place.db.table("t").to_arrow().to_pylist() == [{**before, "lsn": 2}]
    assert [(each.row, each.column, each.text) for each in feed.bad] == [(2, "n", bad.rstrip())]


def test_placeholders_in_csv_are_found_behind_escapes() -> None:
    feed = notes(cdc_envelope="flat", cdc_sequence_from=None, cdc_unavailable_value="not,logged", ingest_escape="\\")
    feed.drop("a", b"id,note,lsn\n1,x,1\n2,y,1\n", "t/a.csv")
    feed.drop("b", b'id,note,lsn\n1,not\\,logged,2\n2,"not,logged",2\n', "t/b.csv")
    assert {key: row[0] for key, row in rows(feed).items()} == {1: "x", 2: "y"}


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_placeholders_are_found_in_every_encoding(encoding: str) -> None:
    feed = notes(ingest_encoding=encoding, cdc_unavailable_value="wie früher")
    events = [event("c", 1, 1, "ä", ["t"]), event("u", 2, 1, "wie früher", ["wie früher"]), event("c", 2, 2, "ö", None)]
    text = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in events)
    feed.drop("a", text.encode(encoding))
    assert rows(feed) == {1: ("ä", ["t"], 2), 2: ("ö", None, 2)}


@pytest.mark.parametrize(
    ("placeholder", "form"),
    [("(as before)", "(as before)"), ("hex:6f6c64", "old"), ("hex:6f6c64", "hex:6f6c64"), ('a"b\\c', 'a"b\\c')],
)
def test_the_placeholder_is_a_property(placeholder: str, form: str) -> None:
    feed = notes(cdc_unavailable_value=placeholder)
    feed.drop("a", body([event("c", 1, 1, "n", ["t"]), event("u", 2, 1, form, [form])]))
    assert rows(feed) == {1: ("n", ["t"], 2)}
    feed.drop("b", body([event("u", 3, 1, PLACEHOLDER, None)]))
    assert rows(feed) == {1: (PLACEHOLDER, None, 3)}, "here it is a text like any other"
    for wrong in ("", " ", "hex:", "hex:0", "hex:zz", 5, "x" * 300):
        with pytest.raises(InputError, match="cdc_unavailable_value"):
            feed.place.db.table("t").set(cdc_unavailable_value=wrong)


FIRST = event("c", 10, 1, "n10", ["t10"])
CASES: dict[str, tuple[list[list[Any]], dict[int, tuple[Any, ...]]]] = {
    "an insert and an update in one file": ([[FIRST, event("u", 20, 1, "n20")]], {1: ("n20", ["t10"], 20)}),
    "an update that comes before its insert in the file": (
        [[event("u", 20, 1, "n20"), FIRST]],
        {1: ("n20", ["t10"], 20)},
    ),
    "several updates": (
        [[FIRST], [event("u", 20, 1, "n20"), event("u", 30, 1, tags=["t30"]), event("u", 40, 1)]],
        {1: ("n20", ["t30"], 40)},
    ),
    "a value of NULL": ([[FIRST], [event("u", 20, 1, tags=None), event("u", 30, 1)]], {1: ("n10", None, 30)}),
    "a snapshot reads a row that is there": ([[FIRST], [event("r", 20, 1)]], {1: ("n10", ["t10"], 20)}),
    "a delete, and a new row": (
        [[FIRST], [gone(20, 1), event("c", 30, 1, "n30", ["t30"]), event("u", 40, 1, "n40")]],
        {1: ("n40", ["t30"], 40)},
    ),
    "the key changes": (
        [[FIRST], [event("u", 20, 2, "n20", before={"id": 1})]],
        {2: ("n20", ["t10"], 20)},
    ),
    "the key changes twice, in one file": (
        [[FIRST, event("u", 20, 2, before={"id": 1}), event("u", 30, 3, before={"id": 2})]],
        {3: ("n10", ["t10"], 30)},
    ),
    "the key changes in two events of one position": (
        [[FIRST], [gone(20, 1), None, event("c", 20, 2)]],
        {2: ("n10", ["t10"], 20)},
    ),
    "two rows swap their keys": (
        [
            [FIRST, event("c", 11, 2, "n11", ["t11"])],
            [
                event("u", 20, 3, before={"id": 1}),
                event("u", 21, 1, before={"id": 2}),
                event("u", 22, 2, before={"id": 3}),
            ],
        ],
        {1: ("n11", ["t11"], 21), 2: ("n10", ["t10"], 22)},
    ),
    "a late update has a value that was kept": (
        [[FIRST], [event("u", 30, 1, "n30")], [event("u", 20, 1, "n20", ["t20"])]],
        {1: ("n30", ["t20"], 30)},
    ),
    "late updates, in any order": (
        [
            [FIRST],
            [event("u", 50, 1, "n50")],
            [event("u", 40, 1, "n40")],
            [event("u", 20, 1, tags=["t20"])],
            [event("u", 30, 1, tags=["t30"])],
            [event("u", 60, 1)],
            [event("u", 20, 1, tags=["t20"])],
        ],
        {1: ("n50", ["t30"], 60)},
    ),
    "a late delete and a late insert": (
        [[FIRST], [event("u", 40, 1, "n40")], [gone(20, 1)], [event("c", 30, 1, "n30", ["t30"])]],
        {1: ("n40", ["t30"], 40)},
    ),
    "a whole row ends what was kept": (
        [[FIRST], [event("u", 30, 1)], [event("u", 40, 1, "n40", ["t40"])], [event("u", 20, 1, "n20", ["t20"])]],
        {1: ("n40", ["t40"], 40)},
    ),
    "a delete of a row with what was kept": ([[FIRST], [event("u", 20, 1)], [gone(30, 1)]], {}),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "portion"),
    # Portions of one row see only those before them.
    [(case, portion) for case in CASES for portion in (1, 500_000) if portion > 1 or "before its insert" not in case],
)
def test_a_value_that_is_left_out_is_what_the_row_had(case: str, portion: int) -> None:
    files, expected = CASES[case]
    feed = notes()
    feed.portion_rows = portion
    for place, file in enumerate(files):
        feed.drop(f"f{place}", body(file))
    assert rows(feed) == expected
    for place, file in enumerate(files):
        assert feed.drop(f"again {place}", body(file)).upserted == 0, "nothing is new"
    assert rows(feed) == expected
    together = notes()
    together.apply(*(together.request(f"f{place}", body(file)) for place, file in enumerate(files)))
    assert rows(together) == expected
    assert together.place.db.verify(deep=True).ok


LOST: dict[str, list[Any]] = {
    "no row": [event("u", 20, 1)],
    "no row, of an insert": [event("c", 20, 1, "n20")],
    "the row was deleted": [event("c", 5, 1, "n5", ["t5"]), gone(6, 1), event("u", 20, 1)],
    "no row under the old key": [event("u", 20, 1, before={"id": 9})],
    "a delete at another position is of another row": [event("c", 5, 9, "n5", ["t5"]), gone(6, 9), event("c", 20, 1)],
    "an update goes on from no other row": [event("c", 5, 9, "n5", ["t5"]), gone(20, 9), event("u", 20, 1)],
}


@pytest.mark.parametrize("case", LOST)
def test_a_value_that_nothing_has_makes_a_bad_row_which_can_be_dropped_again(case: str) -> None:
    feed = notes()
    with pytest.raises(RowError, match=f"row {len(LOST[case])}, column '(note|tags)': {LEFT_OUT}"):
        feed.drop("a", body(LOST[case]))
    assert rows(feed) == {}
    feed.quarantine = True
    assert feed.drop("b", body([*LOST[case], event("c", 21, 4, "n", None)])).upserted == 1
    assert [bad.row for bad in feed.bad] == [len(LOST[case])]
    assert rows(feed) == {4: ("n", None, 21)}
    feed.drop("earlier", body([event("c", 10, 9 if "old key" in case else 1, "n10", ["t10"])]))
    feed.drop("c", body(LOST[case][-1:]))
    assert not feed.bad
    note = "n20" if "insert" in case else "n10"
    assert rows(feed) == {4: ("n", None, 21), 1: (note, ["t10"], 20)}


def test_a_change_that_a_later_one_makes_up_for_is_not_missed() -> None:
    feed = notes()
    counts = feed.drop("a", body([event("u", 20, 1), event("u", 30, 1, "n30", ["t30"]), event("u", 40, 1, "n40")]))
    assert (counts, rows(feed)) == (RowCounts(upserted=1, unchanged=2), {1: ("n40", ["t30"], 40)})


@pytest.mark.parametrize("named", ["key", "sequence"])
def test_the_placeholder_names_no_row(named: str) -> None:
    schema = pa.schema([("id", pa.string()), ("v", pa.string()), ("lsn", pa.string())])
    feed = notes(schema, cdc_envelope="flat", cdc_sequence_from=None)
    row = {"Op": "u", "id": "1", "v": "x", "lsn": "1", {"key": "id", "sequence": "lsn"}[named]: PLACEHOLDER}
    with pytest.raises(RowError, match=r"row|sequence"):
        feed.drop("a", json.dumps(row).encode())


def between(run: Callable[[], Any]) -> BatchRequest:
    """Runs something once, after the statements of the requests before it in a batch were made."""
    left = [run]

    def state(transaction: Transaction) -> Decision:
        if left:
            left.pop()()
        return "finish"

    return BatchRequest("between", "", state)


@pytest.mark.parametrize(
    ("meanwhile", "expected"),
    [
        ([event("u", 20, 1, "n20", ["t20"])], ("n30", ["t20"], 30)),
        ([event("u", 40, 1, "n40")], ("n40", ["t10"], 40)),
        ([event("u", 40, 1, tags=["t40"])], ("n30", ["t40"], 40)),
        ([event("u", 20, 2, "n20", ["t20"])], ("n30", ["t10"], 30)),
        (None, ("n30", ["by hand"], 30)),
    ],
)
def test_a_value_that_changes_between_the_read_and_the_commit_is_read_again(meanwhile: Any, expected: Any) -> None:
    feed = notes()
    feed.drop("a", body([FIRST, event("c", 11, 2, "n11", ["t11"])]))

    def other() -> None:
        database = feed.place.open()
        if meanwhile is None:
            database.table("t").update({"tags": ["by hand"]}, "id = 1")
        else:
            feed.apply(feed.request("other", body(meanwhile)), database=database)

    feed.apply(feed.request("b", body([event("u", 30, 1, "n30")])), between(other))
    assert rows(feed)[1] == expected


@pytest.mark.slow
@pytest.mark.parametrize("way", ["in order", "in any order"])
@pytest.mark.parametrize("number", range(HISTORIES))
def test_files_come_to_the_rows_of_their_source(number: int, way: str) -> None:
    """In any order only while keys don't change: a late change of an old key does not reach the row of the new one."""
    print(f"DOLMEN_TEST_SEED={SEED}")
    rng = random.Random(SEED + number)
    source = SourceTable(rng)
    for _ in range(rng.randrange(3, 40)):
        source.change(rng.randrange(1, 6), moves=way == "in order")
    feed = notes(pa.schema([NOTES.field("id"), ("note", pa.string()), NOTES.field("tags"), NOTES.field("lsn")]))
    feed.portion_rows = rng.choice([1, 2, 500_000])
    files = source.files(rng)
    if way == "in any order":
        feed.portion_rows = 500_000
        rng.shuffle(files)
        files += rng.choices(files, k=2)
    arriving = (
        [*enumerate(files), *rng.choices(list(enumerate(files)), k=2)] if way != "in order" else list(enumerate(files))
    )
    while arriving:
        rejected = []
        for place, file in arriving:
            try:
                feed.drop(f"f{place}", body(file))
            except RowError as error:
                if way == "in order" or LEFT_OUT not in error.reason:
                    raise
                rejected.append((place, file))
        assert len(rejected) < len(arriving), "the earliest file can be applied"
        arriving = rejected
    assert {key: row[:2] for key, row in rows(feed).items()} == source.expected()


@pytest.mark.slow
@pytest.mark.parametrize("number", range(HISTORIES // 2))
def test_two_workers_between_each_others_reads_and_commits_keep_the_same_values(number: int) -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    rng = random.Random(SEED + number)
    source = SourceTable(rng)
    for _ in range(rng.randrange(5, 40)):
        source.change(rng.randrange(1, 5), moves=False)
    feed = notes(NOTES.set(1, pa.field("note", pa.string())))
    workers, arriving = [feed.place.open(), feed.place.open()], list(enumerate(source.files(rng)))
    rng.shuffle(arriving)

    def deliver(worker: Database, place: int, file: Any, meanwhile: Callable[[], Any] = lambda: None) -> None:
        try:
            feed.apply(feed.request(f"f{place}", body(file)), between(meanwhile), database=worker)
        except RowError:
            arriving.append((place, file))

    for _ in range(20 * len(arriving)):
        if not arriving:
            break
        mine, theirs, arriving[:] = arriving[0], arriving[1:2], arriving[2:]
        rng.shuffle(workers)
        other = theirs[0] if theirs else mine
        deliver(workers[0], *mine, meanwhile=lambda other=other: deliver(workers[1], *other))
    assert not arriving
    assert {key: row[:2] for key, row in rows(feed).items()} == source.expected()


def test_only_files_with_placeholders_read_more_and_then_as_much_as_they_need() -> None:
    feed = notes()
    feed.drop("a", body([event("c", key, key, f"n{key}", ["t"]) for key in range(1, 200)]))
    store = CountingStore(MemoryStore(feed.place.bucket, feed.place.runtime()))
    database = Database(store, feed.place.runtime())
    database.table("t").count()

    def cost(id: str, *events: Any) -> tuple[int, int]:
        store.reset()
        feed.apply(feed.request(id, body(list(events))), database=database)
        return store.puts, store.gets

    assert cost("whole", event("u", 300, 1, "n", ["t"])) == (4, 1)
    puts, gets = cost("left out", *(event("u", 301 + key, key, "new") for key in range(1, 100)))
    assert puts == 5, "and what was kept since when, in the memory"
    assert gets <= 8
    assert cost("whole again", event("u", 900, 1, "n", ["t"])) == (4, 1)
    assert rows(feed)[5] == ("new", ["t"], 306)


def test_a_memory_says_since_when_values_are_kept_and_forgets_it() -> None:
    feed = notes(cdc_memory="1d")
    feed.drop("a", body([FIRST, event("u", 20, 1, "n20"), gone(21, 5)]))
    memory = feed.place.db.table("t__deleted").to_arrow().to_pylist()
    assert [(row["id"], row["lsn"], row["kept_since"]) for row in memory if row["kept_column"]] == [(1, 20, 10)]
    feed.place.now_us += 2 * 86_400_000_000
    feed.drop("b", body([event("c", 40, 3, "n", None)]))
    assert feed.place.db.table("t__deleted").count() == 0
    assert feed.drop("late", body([event("u", 15, 1, "n15", ["t15"])])) == RowCounts(unchanged=1)
    assert rows(feed)[1] == ("n20", ["t10"], 20)


@pytest.mark.parametrize("way", ["renamed", "dropped", "restored", "cloned"])
def test_kept_values_follow_the_columns_of_their_table(way: str) -> None:
    feed = notes(NOTES.set(1, pa.field("note", pa.string())))
    feed.drop("a", body([FIRST, event("u", 30, 1, "n30")]))
    db, expected = feed.place.db, (["t20"], 30)
    table = db.table("t")
    match way:
        case "renamed":
            table.rename_column("note", "comment")
            table.add_column("note", pa.string())
            table.drop_column("comment")
        case "dropped":
            table.drop_column("tags")
            table.add_column("tags", pa.list_(pa.string()))
            expected = (None, 30)
        case "restored":
            version = db.version
            feed.drop("b", body([gone(40, 1)]))
            table.restore(version)
        case "cloned":
            db.clone("t", "copy")
            feed.table = "copy"
    feed.drop("late", body([event("u", 20, 1, "n20", ["t20"])]))
    feed.drop("later", body([event("u", 50, 2, "n50", ["t50"]), event("u", 60, 2)]))
    (row,) = db.table(feed.table).scan(where="id = 1").to_arrow().to_pylist()
    assert (row["tags"], row["lsn"]) == expected
    assert db.verify(deep=True).ok
