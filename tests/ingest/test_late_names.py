"""Files dropped before an erasure, over changes of the columns: no erased row comes back, and no other is lost.

Each history renames, drops, adds, moves and widens columns, erases rows, and drops files, which are ingested late. A
file has the columns of the time at which it is dropped, under their names then, or under names from before (a producer
that lags). A model goes by ids of columns.
"""

from __future__ import annotations

import io
import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dolmen
from dolmen.base.runtime import Runtime
from dolmen.commit.head import context_of
from dolmen.commit.statements import catalog as schema_statement
from dolmen.errors import Error, InputError
from dolmen.format.column_history import MOST_FORMER_NAMES
from dolmen.ingest.announcements import Drop
from dolmen.ingest.drops.drop_outcomes import DropOutcome
from dolmen.ingest.drops.ingest_drops import ingest_drops
from dolmen.ingest.landing import Landing
from dolmen.ingest.reject_listing import list_rejects, retry
from dolmen.ingest.rejects import ROWS_SUFFIX
from dolmen.store import open_store

SEED = int(os.environ.get("DOLMEN_TEST_SEED", random.SystemRandom().randrange(2**32)))
HISTORIES = 1_000 if os.environ.get("DOLMEN_LONG") else 30
NAMES = ("email", "mail", "contact", "code")
TEXTS = ("ada", "bob", "7", "007", None)
NUMBERS = (7, 8, 9, None)
SECOND = 1_000_000


class Column(NamedTuple):
    """A column of the model: a name that changes, and a type."""

    id: int
    name: str
    type: pa.DataType


class Row(NamedTuple):
    """A row of a file: values by id of the column."""

    uid: int
    values: dict[int, Any]


class File(NamedTuple):
    """A dropped file, and whether its time and its names tell exactly which of its columns is which."""

    drop: Drop
    at_us: int
    rows: tuple[Row, ...]
    is_exact: bool


class Erased(NamedTuple):
    """An erasure by the value of a column."""

    at_us: int
    column: int
    value: Any


class History:
    """A table whose columns change, and the files that are dropped for it."""

    def __init__(self, seed: int, place: Path) -> None:
        self.random, self.place, self.offset = random.Random(seed), place, 0
        self.db = dolmen.open(str(place / "db"), runtime=Runtime(clock_us=self.now))
        self.kind = self.random.choice(("csv", "jsonl", "parquet", "avro"))
        self.setting = self.random.choice(("add", "ignore", "reject"))
        self.mode = self.random.choice(("append", "append", "upsert", "cdc", "debezium"))
        if self.mode == "debezium":
            self.kind = "jsonl"
        self.columns = [Column(1, "email", pa.string()), Column(2, "code", pa.int32())]
        self.next_column, self.next_uid = 3, 1
        self.files: list[File] = []
        self.erased: list[Erased] = []
        self.had: dict[int, list[str]] = {1: ["email"], 2: ["code"]}
        fixed = [pa.field("uid", pa.int64(), nullable=False), ("seq", pa.int64())]
        fields = [(column.name, column.type) for column in self.columns]
        settings: dict[str, Any] = {"ingest_new_columns": self.setting, "ingest_mode": "append"}
        settings["ingest_on_bad_row"] = self.random.choice(("quarantine", "reject_file"))
        if self.random.random() < 0.5:
            settings["subject"] = "email"
        if self.mode in ("cdc", "debezium"):
            settings |= {"ingest_mode": "cdc", "cdc_sequence": "seq", "cdc_envelope": "flat"}
            if self.mode == "debezium":
                settings |= {"cdc_envelope": "debezium", "cdc_sequence_from": "source.lsn"}
        elif self.mode == "upsert":
            settings["ingest_mode"] = "upsert"
        self.table = self.db.create_table("t", pa.schema([*fixed, *fields]), primary_key="uid", properties=settings)
        self.landing = Landing("", "landing/", str(place / "bucket"), str(place / "rejected"), Runtime())

    def now(self) -> int:
        """The server's clock."""
        return time.time_ns() // 1_000 + self.offset

    def step(self) -> None:
        """One random thing."""
        self.offset += self.random.choice((0, 2 * SECOND, 5 * SECOND, 60 * SECOND))
        changes = (self.rename, self.rename, self.remove, self.add, self.move, self.widen)
        self.random.choice((self.drop, self.drop, self.erase, *changes))()

    def drop(self) -> None:
        """Drops a file of rows with the columns of today, or some of them; now and then under older names."""
        columns = [column for column in self.columns if self.random.random() < 0.9]
        names = {column.id: column.name for column in columns}
        is_exact = self.random.random() < 0.8  # else its time is not clear of those of other things
        self.offset += 3 * SECOND * is_exact
        if self.random.random() < 0.2 and columns:
            lagging = self.random.choice(columns)
            older = [name for name in self.had[lagging.id] if name not in {each.name for each in self.columns}]
            if older:
                names[lagging.id], is_exact = self.random.choice(older), False
        rows = []
        for _ in range(self.random.randint(1, 6)):
            values = {each.id: self.random.choice(NUMBERS if each.type != pa.string() else TEXTS) for each in columns}
            rows.append(Row(self.next_uid, values))
            self.next_uid += 1
        fields = [("uid", pa.int64()), *((names[each.id], each.type) for each in columns)]
        schema = pa.schema(fields)
        records = [{"uid": row.uid, **{names[id_]: value for id_, value in row.values.items()}} for row in rows]
        body = self.write(schema, records)
        key = f"landing/t/{len(self.files)}.{self.kind}"
        path = self.place / "bucket" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        info = next(iter(open_store(str(self.place / "bucket"), Runtime()).list(key)))
        at_us = self.now()
        known = at_us if self.random.random() < 0.85 else None
        drop = Drop("landing", key, info.size, info.etag, created_us=known)
        self.files.append(File(drop, at_us, tuple(rows), is_exact and known is not None))
        self.offset += 3 * SECOND * is_exact

    def write(self, schema: pa.Schema, records: list[dict[str, Any]]) -> bytes:
        """The bytes of a file."""
        if self.mode in ("cdc", "debezium"):
            schema = schema.append(pa.field("seq", pa.int64())).append(pa.field("Op", pa.string()))
            records = [{**record, "seq": record["uid"], "Op": "I"} for record in records]
        else:
            schema = schema.append(pa.field("seq", pa.int64()))
            records = [{**record, "seq": record["uid"]} for record in records]
        if self.mode == "debezium":
            without = [{name: value for name, value in each.items() if name not in ("seq", "Op")} for each in records]
            records = [{"before": None, "after": each, "op": "c", "source": {"lsn": each["uid"]}} for each in without]
        if self.kind == "csv":
            cells = [["" if each[name] is None else str(each[name]) for name in schema.names] for each in records]
            return "".join(",".join(line) + "\n" for line in [schema.names, *cells]).encode()
        if self.kind == "jsonl":
            return "".join(json.dumps(each) + "\n" for each in records).encode()
        target = io.BytesIO()
        if self.kind == "parquet":
            pq.write_table(pa.Table.from_pylist(records, schema=schema), target)
            return target.getvalue()
        kinds = {pa.string(): "string", pa.int64(): "long", pa.int32(): "int"}
        fields = [{"name": each.name, "type": ["null", kinds[each.type]]} for each in schema]
        fastavro.writer(target, fastavro.parse_schema({"type": "record", "name": "r", "fields": fields}), records)
        return target.getvalue()

    def erase(self) -> None:
        """Erases the rows of a column's value, or forgets a subject."""
        subject = self.table.settings().get("subject")
        column = self.random.choice(self.columns)
        value = self.random.choice((TEXTS if column.type == pa.string() else NUMBERS)[:-1])
        named = next((each for each in self.columns if each.name == subject), None)
        if named is not None and self.random.random() < 0.5:
            column, value = named, self.random.choice(TEXTS[:-1])
            self.db.forget(value)
        else:
            self.table.erase({column.name: value})
        self.erased.append(Erased(self.now(), column.id, value))

    def rename(self) -> None:
        """Renames a column to a name that is free."""
        column = self.random.choice(self.columns)
        self.change(column, self.random.choice(NAMES))

    def change(self, column: Column, name: str) -> None:
        """Gives a column a name, if it is free."""
        if any(each.name == name for each in self.table_columns()):
            return
        self.table.rename_column(column.name, name)
        self.columns[self.columns.index(column)] = column._replace(name=name)
        self.had[column.id].append(name)

    def table_columns(self) -> Iterator[pa.Field]:
        """The columns of the table, those that files have added included."""
        yield from self.table.schema

    def remove(self) -> None:
        """Drops a column."""
        column = self.random.choice(self.columns)
        if len(self.columns) > 1 and column.name != self.table.settings().get("subject"):
            self.table.drop_column(column.name)
            self.columns.remove(column)

    def add(self) -> None:
        """Adds a column, often under a name that another one had."""
        name = self.random.choice(NAMES)
        if all(each.name != name for each in self.table_columns()):
            column = Column(self.next_column, name, self.random.choice((pa.string(), pa.string(), pa.int32())))
            self.next_column += 1
            self.table.add_column(name, column.type)
            self.columns.append(column)
            self.had[column.id] = [name]

    def move(self) -> None:
        """Swaps the names of two columns, or moves one into the place of another."""
        if len(self.columns) < 2:
            return
        one, other = self.random.sample(self.columns, 2)
        self.change(one, "aside")
        self.change(other, one.name)
        if self.random.random() < 0.5 and (aside := [each for each in self.columns if each.name == "aside"]):
            self.change(aside[0], other.name)

    def widen(self) -> None:
        """Gives a column of numbers a wider type."""
        narrow = [each for each in self.columns if each.type == pa.int32()]
        if narrow:
            column = self.random.choice(narrow)
            self.table.widen_column(column.name, pa.int64())
            self.columns[self.columns.index(column)] = column._replace(type=pa.int64())

    def ingest(self, drops: list[Drop]) -> list[DropOutcome]:
        """Ingests files, each in a commit of its own."""
        outcomes = [one for drop in drops for one in ingest_drops(self.db, self.landing, [drop]).outcomes]
        assert all(one.status in ("ingested", "rejected") for one in outcomes), outcomes
        assert all(one.error is None or isinstance(one.error, InputError) for one in outcomes), outcomes
        return outcomes

    def end(self) -> None:
        """Ingests all files late, and compares; then puts all rejects back, and compares again."""
        self.offset += 10 * SECOND
        outcomes = self.ingest([file.drop for file in self.files])
        self.compare(outcomes)
        rejected = open_store(str(self.place / "rejected"), Runtime())
        again = []
        for reject in list_rejects(rejected):
            if not reject.key.endswith(ROWS_SUFFIX):
                done = retry(rejected, reject.key, Runtime(), landing=str(self.place / "bucket" / "landing"))
                again.append(done.url)
        store = open_store(str(self.place / "bucket"), Runtime())
        infos = [info for info in store.list("landing/") if "-retry-" in info.key]
        drops = [Drop("landing", info.key, info.size, info.etag, created_us=self.now()) for info in infos]
        assert len(drops) == len(again)
        self.ingest(drops)
        self.compare(None)

    def compare(self, outcomes: list[DropOutcome] | None) -> None:
        """No erased row is visible; with outcomes, each other row is visible or rejected, or its file is."""
        visible = set(self.table.to_arrow()["uid"].to_pylist())
        for place, file in enumerate(self.files):
            gone = {row.uid for row in file.rows if self.is_erased(file, row)}
            assert not visible & gone, (file, visible & gone, self.erased)
            if outcomes is None:
                continue
            counts = outcomes[place].counts
            if outcomes[place].status == "ingested":
                here = {row.uid for row in file.rows} & visible
                assert len(here) == counts.ingested
                assert counts.ingested + counts.erased + counts.quarantined == len(file.rows)
                if file.is_exact:
                    assert counts.erased <= len(gone), (file, counts, self.erased)

    def is_erased(self, file: File, row: Row) -> bool:
        """Whether a row matches an erasure that came after its file."""
        return any(
            erased.at_us >= file.at_us and erased.column in row.values and row.values[erased.column] == erased.value
            for erased in self.erased
        )


@pytest.mark.slow
@pytest.mark.timeout(7_200 if HISTORIES > 100 else 600)
def test_no_erased_row_comes_back_whatever_its_column_was_called(tmp_path: Path) -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    files = erased = 0
    for number in range(HISTORIES):
        history = History(SEED + number, tmp_path / str(number))
        try:
            for _ in range(14):
                history.step()
            history.end()
        except (AssertionError, Error):
            print(f"history {SEED + number}: {history.kind}, {history.setting}, {history.mode}")
            raise
        files, erased = files + len(history.files), erased + len(history.erased)
    assert files > HISTORIES
    assert erased > HISTORIES


class Late:
    """A table with a subject, and files that were dropped for it an hour ago."""

    def __init__(self, place: Path, **settings: Any) -> None:
        self.db = dolmen.open(str(place / "db"))
        schema = pa.schema([("uid", pa.int64()), ("email", pa.string()), ("note", pa.string())])
        properties = {"ingest_new_columns": "ignore", "subject": "email", **settings}
        self.table = self.db.create_table("t", schema, properties=properties)
        self.landing = Landing("", "landing/", str(place / "bucket"), str(place / "rejected"), Runtime())
        self.store = open_store(str(place / "bucket"), Runtime())

    def ingest(self, body: bytes | str, name: str = "a.csv", *, hours: float = 1) -> DropOutcome:
        """Ingests a file that was dropped some hours ago."""
        self.store.put(f"landing/t/{name}", body.encode() if isinstance(body, str) else body)
        [info] = list(self.store.list(f"landing/t/{name}"))
        at_us = time.time_ns() // 1_000 - int(hours * 3_600 * SECOND)
        drop = Drop("landing", info.key, info.size, info.etag, created_us=at_us)
        [outcome] = ingest_drops(self.db, self.landing, [drop]).outcomes
        return outcome

    def uids(self) -> list[int]:
        """Keys of the rows that are visible."""
        found: list[int] = self.table.to_arrow()["uid"].to_pylist()
        return sorted(found)


def drop_subject(late: Late) -> None:
    late.db.forget("ada")
    late.table.set(subject=None)
    late.table.drop_column("email")


def replace_subject(late: Late) -> None:
    drop_subject(late)
    late.table.add_column("email", pa.string())


def move_into_place(late: Late) -> None:
    late.table.rename_column("email", "old")
    late.table.rename_column("note", "email")
    late.db.forget("ada")


def restore_names(late: Late) -> None:
    then = late.db.version
    late.table.rename_column("email", "mail")
    late.table.rename_column("note", "email")
    late.db.forget("ada")
    late.table.restore(then)


def recreate(late: Late) -> None:
    late.db.forget("ada")
    late.db.drop_table("t")
    schema = pa.schema([("uid", pa.int64()), ("mail", pa.string())])
    late.table = late.db.create_table("t", schema, properties={"ingest_new_columns": "ignore", "subject": "mail"})


CHANGES = (drop_subject, replace_subject, move_into_place, restore_names)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("header", ["uid,email,note", "Uid,EMAIL,Note"])
def test_a_late_file_is_held_against_an_erasure_by_the_names_of_its_time(
    tmp_path: Path, change: Any, header: str
) -> None:
    late = Late(tmp_path)
    change(late)
    outcome = late.ingest(f"{header}\n1,ada,x\n2,bob,y\n")
    assert (outcome.status, outcome.counts.erased, late.uids()) == ("ingested", 1, [2])


@pytest.mark.parametrize("header", ["uid,email,note", "uid,email,email", "uid,email,"])
def test_a_late_file_in_a_dialect_is_held_against_an_erasure(tmp_path: Path, header: str) -> None:
    late = Late(tmp_path, ingest_names="number", ingest_ragged="fill", ingest_comment="#", ingest_skip_lines=1)
    drop_subject(late)
    outcome = late.ingest(f"a report\n{header}\n# by mail\n1,ada\n2,bob,y\n")
    assert (outcome.status, outcome.counts.erased, late.uids()) == ("ingested", 1, [2])


def test_a_file_of_an_earlier_table_of_the_name_is_rejected_if_it_names_a_forgotten_person(tmp_path: Path) -> None:
    late = Late(tmp_path)
    recreate(late)
    outcome = late.ingest("uid,email,note\n1,ada,x\n2,bob,y\n")
    assert (outcome.status, late.uids()) == ("rejected", [])
    assert "row 1" in str(outcome.error)
    assert "ada" not in str(outcome.error)
    assert late.ingest("uid,email\n2,bob\n", "b.csv").status == "ingested"


def test_rows_that_are_erased_ones_only_under_the_names_of_today_are_kept_aside(tmp_path: Path) -> None:
    late = Late(tmp_path, ingest_on_bad_row="quarantine")
    late.table.rename_column("email", "aside")
    late.table.rename_column("note", "email")
    late.table.rename_column("aside", "note")
    late.table.erase("note = 'ada'")
    outcome = late.ingest("uid,email,note\n1,ada,x\n2,bob,ada\n3,eve,y\n")
    assert (outcome.counts.erased, outcome.counts.quarantined, late.uids()) == (1, 1, [3])


def as_older_dolmen(monkeypatch: pytest.MonkeyPatch, change: Any, late: Late) -> None:
    """Changes columns as a dolmen does that records no names."""
    with monkeypatch.context() as patch:
        patch.setattr(schema_statement, "record_names", lambda before, after, ts: after)
        change(late)


def test_names_that_an_older_dolmen_did_not_record_reject_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Late(tmp_path)
    as_older_dolmen(monkeypatch, lambda late: late.table.rename_column("email", "mail"), late)
    late.db.forget("ada")
    outcome = late.ingest("uid,email,note\n1,ada,x\n2,bob,y\n")
    assert outcome.status == "rejected"
    assert "'mail'" in str(outcome.error)
    assert late.ingest("uid,mail\n1,ada\n2,bob\n", "b.csv").counts.erased == 1
    late.table.rename_column("mail", "contact")
    assert late.ingest("uid,email\n1,ada\n", "c.csv").status == "rejected"
    assert late.ingest("uid,contact\n3,ada\n4,eve\n", "d.csv", hours=-1).status == "ingested"
    assert late.uids() == [2, 3, 4]


def test_names_between_a_version_and_a_drop_of_the_table_reject_the_file(tmp_path: Path) -> None:
    late = Late(tmp_path)
    then = late.db.version
    late.table.rename_column("email", "mail")
    late.db.drop_table("t")
    late.db.restore(then)
    late.table = late.db.table("t")
    late.db.forget("ada")
    assert late.ingest("uid,mail\n1,ada\n").status == "rejected"
    assert late.ingest("uid,email\n1,ada\n2,bob\n", "b.csv").status == "ingested"
    assert late.uids() == [2]


def test_more_names_than_are_kept_reject_the_file(tmp_path: Path) -> None:
    late = Late(tmp_path)
    with late.db.transaction() as transaction:
        table = transaction.table("t")
        for number in range(MOST_FORMER_NAMES + 1):
            table.rename_column("email" if not number else f"name{number - 1}", f"name{number}")
    assert len(context_of(late.db).head.refresh().manifest.tables["t"].schema.former) == MOST_FORMER_NAMES
    late.db.forget("ada")
    assert late.ingest("uid,email\n1,ada\n").status == "rejected"


def test_a_value_that_is_none_of_the_column_of_then_rejects_the_file(tmp_path: Path) -> None:
    target = io.BytesIO()
    pq.write_table(pa.table({"uid": [1], "code": ["x"]}), target)
    late = Late(tmp_path)
    late.table.add_column("code", pa.int64(), default=5)
    late.table.erase("code = 7")
    late.table.drop_column("code")
    late.table.add_column("code", pa.string())
    outcome = late.ingest(target.getvalue(), "a.parquet")
    assert outcome.status == "rejected"
    assert "code" in str(outcome.error)
    assert late.ingest("uid,code\n1,7\n2,x\n", "b.csv").status == "rejected"
    assert late.uids() == []


@pytest.mark.parametrize("is_moved", [False, True], ids=["added", "moved"])
def test_a_file_without_a_header_is_rejected_if_columns_have_moved_since(tmp_path: Path, is_moved: bool) -> None:
    late = Late(tmp_path, ingest_header="false")
    late.table.rename_column("email", "mail")
    if is_moved:
        late.table.reorder(["uid", "note", "mail"])
    late.db.forget("ada")
    outcome = late.ingest("1,ada,x\n2,bob,y\n")
    assert (outcome.status, late.uids()) == (("rejected", []) if is_moved else ("ingested", [2]))


def test_a_reject_that_is_put_back_is_as_old_as_its_first_drop(tmp_path: Path) -> None:
    late = Late(tmp_path)
    assert late.ingest("uid,email\n1,ada\nx,bob\n").status == "rejected"
    late.db.forget("ada")
    rejected = late.landing.rejects_store(Drop("landing", "landing/t/x", 0, "-"))
    [reject] = list_rejects(rejected)
    late.table.set(ingest_on_bad_row="quarantine")
    done = retry(rejected, reject.key, Runtime())
    name = done.url.rpartition("/")[2]
    assert late.ingest(late.store.get(f"landing/t/{name}").body, name, hours=0).counts.erased == 1
    assert late.uids() == []
