"""What each operation costs on the wire: requests counted by a proxy outside the process, retries and all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

import dolmen
from dolmen.base.runtime import Runtime
from dolmen.rows.scan.scan import plan_of
from support.proxy import Proxy, Request

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("user_id", pa.int64()), ("amount", pa.float64())])


def rows(first: int, count: int) -> pa.Table:
    ids = np.arange(first, first + count)
    amounts = np.random.default_rng(first).random(count)
    return pa.table({"id": ids, "user_id": ids % 997, "amount": amounts}, SCHEMA)


class Wire:
    """What passes through the proxy during one call."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    def of(self, call: Callable[[], object], lists: int = 0) -> list[Request]:
        self._proxy.forget_requests()
        call()
        found = self._proxy.requests()
        assert all(request.status in (200, 206) for request in found), found
        assert sum("list-type" in request.query for request in found) == lists, "nothing is ever listed"
        return found

    def verbs(self, call: Callable[[], object]) -> dict[str, int]:
        return dict(Counter(request.method for request in self.of(call)))


@pytest.fixture
def wire(proxy: Proxy) -> Wire:
    return Wire(proxy)


@pytest.fixture
def db(wire: Wire, s3_url: str) -> dolmen.Database:
    found = dolmen.open(s3_url)
    found.refresh()
    return found


@pytest.fixture
def table(db: dolmen.Database) -> dolmen.Table:
    return db.create_table("events", SCHEMA, primary_key="id", sort_key="id")


def test_create_is_2_puts(db: dolmen.Database, wire: Wire) -> None:
    # The first commit of all looks for a lost pointer, and lists for once.
    first = wire.of(lambda: db.create_table("first", SCHEMA), lists=1)
    assert Counter(request.method for request in first) == {"GET": 1, "PUT": 2}
    assert wire.verbs(lambda: db.create_table("events", SCHEMA)) == {"PUT": 2}
    assert wire.verbs(lambda: db.drop_table("events")) == {"PUT": 2}


def test_open_asks_nothing_and_the_first_use_2_gets(table: dolmen.Table, wire: Wire, s3_url: str) -> None:
    opened = dolmen.open(s3_url, runtime=Runtime())  # of another process
    assert wire.verbs(lambda: dolmen.open(s3_url)) == {}
    assert wire.verbs(opened.refresh) == {"GET": 2}


def test_append_is_3_puts(table: dolmen.Table, wire: Wire) -> None:
    for first in (0, 1000):
        found = wire.of(lambda first=first: table.append(rows(first, 1000)))
        assert [request.method for request in found] == ["PUT"] * 3
        kinds = [request.key.split("/")[2] for request in found]
        assert (sorted(kinds[:2]), kinds[2]) == (["data", "manifest"], "_latest_manifest"), "the first two at once"
        assert all(request.condition for request in found), "every PUT is conditional"


@pytest.mark.parametrize(
    "delete",
    [
        lambda t: t.delete("user_id = 42 AND amount < 3"),
        lambda t: t.delete({"user_id": 42}),
        lambda t: t.delete(keys=list(range(0, 1000, 2))),
        lambda t: t.delete("TRUE"),
    ],
)
def test_delete_is_3_puts_and_reads_nothing(
    table: dolmen.Table, wire: Wire, delete: Callable[[dolmen.Table], object]
) -> None:
    table.append(rows(0, 1000))
    assert wire.verbs(lambda: delete(table)) == {"PUT": 3}


def test_upsert_is_4_puts(table: dolmen.Table, wire: Wire) -> None:
    table.append(rows(0, 1000))
    assert wire.verbs(lambda: table.upsert(rows(500, 1000))) == {"PUT": 4}


def test_a_transaction_over_k_tables_is_its_objects_and_2_puts(db: dolmen.Database, wire: Wire) -> None:
    names = ["a", "b", "c"]
    for name in names:
        db.create_table(name, SCHEMA)

    def transact() -> None:
        with db.transaction() as tx:
            for name in names:
                tx.table(name).append(rows(0, 10))  # 3 data files
                tx.table(name).delete("id = 3")  # 3 .del objects, each with
                tx.table(name).delete("id = 4 OR amount > 7")  # both deletes of its table

    assert wire.verbs(transact) == {"GET": 1, "PUT": 3 + 3 + 2}


def test_reading_in_a_transaction_costs_no_put(db: dolmen.Database, table: dolmen.Table, wire: Wire) -> None:
    def transact() -> None:
        with db.transaction() as tx:
            tx.table("events").count()

    assert wire.verbs(transact) == {"GET": 1}


@pytest.mark.slow
def test_a_scan_of_a_million_rows_fetches_footer_and_coalesced_ranges(
    table: dolmen.Table, wire: Wire, s3_url: str
) -> None:
    table.append(rows(0, 1_000_000))
    table.delete({"user_id": 5})  # stands inline
    reader = dolmen.open(s3_url, runtime=Runtime()).table("events")
    plan = plan_of(reader.scan(columns=["id", "amount"]))
    (entry,) = (file.file for file in plan.files)
    found = wire.of(lambda: reader.scan(columns=["id", "amount"]).to_arrow())
    assert {request.method for request in found} == {"GET"}
    assert found[0].key.endswith("_latest_manifest")
    data = found[1:]
    assert all("/data/" in request.key for request in data)
    offset, length, _ = entry.footer
    assert data[0].range == f"bytes={offset}-{entry.size}", "a byte more than there should be: tells a longer object"
    assert data[0].bytes_down == length
    ranges = sorted(tuple(map(int, request.range.removeprefix("bytes=").split("-"))) for request in data[1:])  # type: ignore[union-attr]
    assert all(later[0] - earlier[1] - 1 > 0 for earlier, later in pairwise(ranges)), "no overlap"
    told = dolmen.open(s3_url, runtime=Runtime()).table("events").scan(columns=["id", "amount"]).explain()
    assert (told.data_fetch.requests, told.footer_fetch.requests, told.tombstone_fetch.requests) == (
        len(data) - 1,
        1,
        0,
    )
    assert told.data_fetch.bytes == sum(request.bytes_down for request in data[1:])
    assert len(data) - 1 <= 2, "near ranges are fetched together"
    again = wire.of(lambda: reader.scan(columns=["amount"]).to_arrow())
    assert [request.key for request in again] == [found[0].key], "the pointer alone"


def test_metadata_answers_a_count(table: dolmen.Table, wire: Wire) -> None:
    table.append(rows(0, 1000))
    table.delete("id > 5000")  # no file can match
    assert wire.verbs(lambda: table.count()) == {"GET": 1}
    assert wire.verbs(lambda: table.count("id < 2000")) == {"GET": 1}


def test_a_deleted_range_of_100_000_rows_uploads_under_20_kb(table: dolmen.Table, wire: Wire) -> None:
    table.append(rows(0, 300_000))
    found = wire.of(lambda: table.delete("id BETWEEN 100000 AND 199999"))
    assert [request.method for request in found] == ["PUT"] * 3
    assert sum(request.bytes_up for request in found) < 20_000
    assert table.count() == 200_000


def test_100_000_random_ids_of_12_million_upload_under_a_fifth_of_a_megabyte(table: dolmen.Table, wire: Wire) -> None:
    table.append(rows(0, 1000))
    ids = np.random.default_rng(1).choice(12_000_000, 100_000, replace=False)
    found = wire.of(lambda: table.delete(keys=pa.table({"id": ids})))
    assert [request.method for request in found] == ["PUT"] * 3
    assert sum(request.bytes_up for request in found) <= 200_000


@pytest.mark.slow
def test_an_old_version_is_opened_through_its_history(table: dolmen.Table, wire: Wire, s3_url: str) -> None:
    for first in range(3):
        table.append(rows(first, 1))
    reader = dolmen.open(s3_url, runtime=Runtime())
    reader.refresh()
    assert wire.verbs(lambda: reader.table("events").at(version=2).count()) == {"GET": 2}
    assert wire.verbs(lambda: reader.table("events").at(version=2).count()) == {"GET": 1}
