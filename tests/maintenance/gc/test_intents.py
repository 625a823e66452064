"""Jobs that write many objects say so; what a dead one leaves is removed at once, and it can't commit any more."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pytest

from dolmen import Database
from dolmen.base.records import replace
from dolmen.commit.loop import submit
from dolmen.commit.statements.background import MoveFence
from dolmen.commit.statements.row_changes import Write
from dolmen.commit.uploads import BEAT_SECONDS, Heartbeat, Intent, parse_intent_key
from dolmen.errors import ConflictError, CorruptionError, StaleWriterError, StoreUnavailableError, UnknownOutcomeError
from dolmen.format.layout import POINTER
from dolmen.rows.write.data_file import write_data_files
from dolmen.rows.write.runs import WriteOptions
from dolmen.store.base import PutOutcome, Unknown
from dolmen.store.memory import MemoryStore
from dolmen.transactions import row_statements
from dolmen_simulator.counting import CountingStore
from support.aging import DEFAULTS, HOUR_US, SCHEMA, Place, rows
from support.written import SMALL_RUNS, entry_for, events

FILE_ROWS = 1_000


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    options = WriteOptions(file_bytes=1, run_rows=FILE_ROWS)
    monkeypatch.setattr(row_statements, "write_data_files", partial(write_data_files, options=options))
    place = Place()
    place.db.create_table("t", SCHEMA)
    return place


def many_files() -> pa.Table:
    """Rows for two files."""
    count = 2 * FILE_ROWS
    return pa.table([pa.array(range(count)), pa.array([0.0] * count)], SCHEMA)


# ---- what a writer does ----------------------------------------------------------------------------------------------


def test_an_append_of_one_file_has_no_intent_and_is_three_puts(place: Place) -> None:
    store = CountingStore(MemoryStore(place.bucket, place.runtime()))
    table = place.open(store).table("t")
    store.reset()
    table.append(rows(1, 2, 3))
    assert store.puts == 3
    assert place.there("intent/") == set()


def test_an_append_of_many_files_names_all_but_the_first_after_its_intent_and_says_it_is_done(
    place: Place,
) -> None:
    store = CountingStore(MemoryStore(place.bucket, place.runtime()))
    table = place.open(store).table("t")
    store.reset()
    table.append(many_files())
    files = place.manifest.table("t").files
    assert len(files) == 2
    assert len(files[0].uuid) == 32
    txid, _, uuid = files[1].uuid.partition("-")
    assert len(txid) == len(uuid) == 32
    assert place.there("intent/") == {f"intent/{txid}/0.json", f"intent/{txid}/done"}
    assert store.puts == 3 + 1 + 2  # one file more, the heartbeat and the done
    assert table.count() == 2 * FILE_ROWS
    assert table.scan(where="k = 999").to_arrow().num_rows == 1


def test_a_transaction_writes_all_it_has_under_one_intent(place: Place) -> None:
    with place.db.transaction() as tx:
        for _ in range(2):
            tx.table("t").append(many_files())
    names = [file.uuid.split("-") for file in place.manifest.table("t").files]
    assert [len(parts) for parts in names] == [1, 2, 1, 2]
    assert names[1][0] == names[3][0]
    assert len({key.split("/")[1] for key in place.there("intent/")}) == 1


def test_a_heartbeat_follows_every_ten_minutes_and_tells_what_it_is_for(place: Place) -> None:
    store, runtime = MemoryStore(place.bucket, place.runtime()), place.runtime()
    store.head(POINTER)
    begun = place.now_us
    intent = Intent.begin(store, runtime, "compact t", ["t"])
    for _ in range(30):
        place.pass_hours(1 / 60)
        intent.beat()
    key = f"intent/{intent.txid}/3.json"
    assert place.there("intent/") == {f"intent/{intent.txid}/{n}.json" for n in range(4)}
    last = Heartbeat.decode(place.bucket.objects[key].body, key)
    assert (last.txid, last.n, last.what, last.tables, last.started_us) == (intent.txid, 3, "compact t", ("t",), begun)
    assert last.now_us > begun
    assert BEAT_SECONDS == 600


def test_a_long_stream_shows_that_it_is_alive(place: Place) -> None:
    runtime = place.runtime()
    store = MemoryStore(place.bucket, runtime)
    table = events(20_000)
    entry = entry_for(table.schema)
    intent = Intent.begin(store, runtime, "test", ["events"])

    def slow():  # type: ignore[no-untyped-def]
        for batch in table.cast(entry.schema.arrow).to_batches(max_chunksize=1_000):
            place.pass_hours(0.1)
            yield batch

    options = replace(SMALL_RUNS, file_bytes=64 << 10)
    files = write_data_files(store, "events", entry, slow(), runtime, options, intent.name, intent.beat)
    assert len(files) > 3
    assert {file.uuid.split("-")[0] for file in files} == {intent.txid}
    assert len(place.there("intent/")) >= 6, "two hours of work"


def test_a_damaged_heartbeat_is_refused(place: Place) -> None:
    intent = Intent.begin(MemoryStore(place.bucket, place.runtime()), place.runtime(), "x")
    key = f"intent/{intent.txid}/0.json"
    body = place.bucket.objects[key].body
    with pytest.raises(CorruptionError):
        Heartbeat.decode(body.replace(b'"x"', b'"y"'), key)
    assert parse_intent_key(key) == (intent.txid, False)
    assert parse_intent_key(f"intent/{intent.txid}/done") == (intent.txid, True)
    assert parse_intent_key("intent/x/0.json") is None


class PointerStore(MemoryStore):
    """Does something else with puts of the pointer, and of ``done``."""

    def __init__(self, place: Place) -> None:
        super().__init__(place.bucket, place.runtime())
        self.deaf = self.full = False

    def put(self, key, body, *, if_match=None) -> PutOutcome:  # type: ignore[no-untyped-def]
        if key.endswith("/done") and self.full:
            raise StoreUnavailableError("full")
        if key == POINTER and self.deaf:
            return Unknown("lost")
        return super().put(key, body, if_match=if_match)

    def get(self, key, byte_range=None, *, etag=None, version=None):  # type: ignore[no-untyped-def]
        if key == POINTER and self.deaf:
            raise StoreUnavailableError("no answer")
        return super().get(key, byte_range, etag=etag, version=version)


def test_nobody_calls_a_job_done_whose_outcome_is_unknown(place: Place) -> None:
    store = PointerStore(place)
    table = place.open(store).table("t")
    store.deaf = True
    with pytest.raises(UnknownOutcomeError):
        table.append(many_files())
    assert [key.rpartition("/")[2] for key in place.there("intent/")] == ["0.json"]


def test_a_commit_that_landed_is_reported_though_its_done_could_not_be_written(place: Place) -> None:
    store = PointerStore(place)
    table = place.open(store).table("t")
    store.full = True
    assert table.append(many_files()).rows == 2 * FILE_ROWS


def test_what_a_failed_commit_wrote_can_still_be_found_by_its_intent(place: Place) -> None:
    tx = place.open().transaction()
    tx.table("t").append(many_files())
    place.db.drop_table("t")
    place.db.create_table("t", SCHEMA)
    with pytest.raises(ConflictError):
        tx.commit()
    assert [key.rpartition("/")[2] for key in place.there("intent/")] == ["0.json"]
    place.pass_hours(3)
    place.collect(DEFAULTS)
    assert len([key for key in place.there("data/") if "-" in key]) == 0


# ---- what collection does --------------------------------------------------------------------------------------------


def job(place: Place, files: int = 3, tables: tuple[str, ...] = ("t",)) -> tuple[Intent, list[str], Database]:
    """A job that has written some objects under an intent, in the present hour."""
    db = place.open()
    store, runtime = db._context.store, db._context.runtime
    store.head(POINTER)
    intent = Intent.begin(store, runtime, "a job", tables)
    entry = place.manifest.table("t")
    batches = rows(1, 2).cast(entry.schema.arrow).to_batches()
    keys = [
        file.path
        for _ in range(files)
        for file in write_data_files(store, "t", entry, batches, runtime, WriteOptions(), intent.name, intent.beat)
    ]
    return intent, keys, db


@pytest.mark.parametrize("tables", [("t",), ()])
def test_what_a_dead_job_left_goes_at_once_and_then_its_intent(place: Place, tables: tuple[str, ...]) -> None:
    intent, keys, _ = job(place, tables=tables)
    place.pass_hours(0.9)
    assert place.collect(DEFAULTS).revoked == ()
    assert set(keys) <= place.there()
    place.pass_hours(1.2)
    done = place.collect(DEFAULTS)
    assert done.revoked == (intent.txid,)
    assert done.deleted["revoked"].objects == 3
    assert done.deleted["revoked"].bytes > 0
    assert place.there() == set()


def test_a_job_whose_heartbeat_goes_on_is_left_alone_however_long_it_takes(place: Place) -> None:
    intent, keys, _ = job(place)
    for _ in range(60):
        place.pass_hours(0.8)
        intent.beat()
        assert place.collect(DEFAULTS).revoked == ()
    assert set(keys) <= place.there()


def test_a_job_that_was_taken_for_dead_cannot_commit_any_more(place: Place) -> None:
    intent, keys, db = job(place)
    entry = place.manifest.table("t")
    write = Write("t", entry.uuid, files=())
    first_upload_us = place.now_us
    place.pass_hours(2.2)
    place.collect(DEFAULTS)
    assert not set(keys) & place.there()
    with pytest.raises(StaleWriterError, match="revoked"):
        submit(db._context.head, "append", [write], first_upload_us=first_upload_us, txid=intent.txid)


def test_what_a_job_committed_stays_though_it_was_taken_for_dead(place: Place) -> None:
    store = PointerStore(place)
    store.full = True  # it commits, and dies before it can say so
    place.open(store).table("t").append(many_files())
    files = {file.path for file in place.manifest.table("t").files}
    place.pass_hours(3)
    done = place.collect(DEFAULTS)
    assert len(done.revoked) == 1
    assert place.there() == files


def test_intents_of_jobs_that_are_done_are_removed_without_revoking_anybody(place: Place) -> None:
    place.db.table("t").append(many_files())
    version = place.db.refresh()
    done = place.collect(DEFAULTS)
    assert (done.revoked, done.deleted["intents"].objects) == ((), 2)
    assert place.there("intent/") == set()
    assert place.db.refresh() == version, "that needs no commit"


def test_a_revoked_id_leaves_the_list_once_the_fence_has_passed_it(place: Place) -> None:
    intent, _, _ = job(place)
    place.pass_hours(3)
    place.collect(DEFAULTS)
    assert place.manifest.revoked_intents.keys() == {intent.txid}
    for day in range(8):
        place.pass_hours(24)
        place.orphan(f"data/t/2025/10/{10 + day}/00/{day:032x}.parquet")
        place.collect(replace(DEFAULTS, orphan_age_us=6 * 24 * HOUR_US))
    assert place.manifest.revoked_intents == {}
    assert place.manifest.orphan_cutoff > 0


def test_objects_of_the_last_hour_before_the_revocation_wait_for_the_fence(place: Place) -> None:
    """Clocks of servers differ: what is as young as that may belong to whoever is still going on."""
    intent, early, db = job(place)
    place.pass_hours(1.5)
    late = place.orphan(f"data/t/2025/10/09/10/{intent.name()}.parquet")
    place.pass_hours(0.5)
    place.collect(DEFAULTS)
    assert intent.txid in place.manifest.revoked_intents
    assert place.there() == {late}
    assert early
    assert db


def test_a_damaged_intent_does_not_stop_collection(place: Place) -> None:
    intent, keys, _ = job(place)
    key = f"intent/{intent.txid}/0.json"
    place.bucket.objects[key] = replace(place.bucket.objects[key], body=b"{}")
    place.pass_hours(2.2)
    place.collect(DEFAULTS)
    assert place.there() == set()
    assert keys


def test_the_fence_revokes_nobody_twice(place: Place) -> None:
    intent, _, _ = job(place)
    head = place.context().head
    manifest = head.refresh().manifest
    seen = (manifest.horizon, manifest.orphan_cutoff)
    first = submit(head, "gc", [MoveFence(seen, 0, 0, (intent.txid,))]).manifest
    assert first is not None
    place.pass_hours(1)
    assert submit(head, "gc", [MoveFence(seen, 0, 0, (intent.txid,))]).manifest is None
    assert place.manifest.revoked_intents == first.revoked_intents
