"""The judge of histories is itself judged: of each forgery it says what has happened, and which of the seven it is."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from dolmen.database import Database
from dolmen.errors import ConflictError, TableNotFoundError, UnknownOutcomeError
from dolmen.format.layout import POINTER
from dolmen.maintenance.collection import collect
from dolmen.maintenance.compaction import CompactionOptions, compact
from dolmen.maintenance.resolution import resolve
from dolmen.results import Commit
from dolmen.runtime import Runtime
from dolmen.store.base import Buffer, Deleted, PutOutcome, Stored
from dolmen.store.memory import MemoryBucket, MemoryStore
from dolmen.testing import model
from dolmen.testing.actors import arrow
from dolmen.testing.ledger import Ledger
from dolmen.testing.model import SCHEMA, Effect, Operation, Row, Run
from dolmen.testing.never import Never, ViolationError, named, readable, unexpected
from dolmen.testing.scheduler import START_US
from dolmen.testing.seen import check_one_of, check_rows

DAY_US = 86_400_000_000
Document = dict[str, Any]
Forgery = Callable[[Document], None]


class Judged(MemoryStore):
    """A store all of whose puts and deletes are judged, and in which the next manifest can be forged."""

    def __init__(self, bucket: MemoryBucket, runtime: Runtime, ledger: Ledger) -> None:
        super().__init__(bucket, runtime)
        self.ledger, self.run = ledger, Run(Operation("nothing", "nobody", 0, 0))
        self.forgery: Forgery | None = None

    def put(self, key: str, body: Buffer, *, if_match: str | None = None) -> PutOutcome:
        content = bytes(body)
        if self.run.first_put is None:
            self.run.first_put = self.ledger.version
        self.run.puts(key)
        if key.startswith("manifest/") and self.forgery:
            document = msgspec.json.decode(content)
            self.forgery(document)
            content = msgspec.json.encode(document)
        if key == POINTER:
            self.ledger.sent(content, self.run)
        outcome = super().put(key, content, if_match=if_match)
        if key == POINTER and isinstance(outcome, Stored):
            self.ledger.landed(content, self.bucket.clock_us())
        return outcome

    def delete(self, keys: Sequence[str]) -> Sequence[Deleted]:
        for key in keys:
            self.ledger.retention.deleting(key, self.bucket.clock_us())
        return super().delete(keys)


class World:
    """A database under a judge's eyes, one call after the other."""

    def __init__(self) -> None:
        self.now_us = START_US
        self.bucket = MemoryBucket(lambda: self.now_us, "checked")
        self.ledger = Ledger(self.bucket, Counter())
        runtime = Runtime(
            clock_us=lambda: self.now_us,
            monotonic=lambda: self.now_us / 1e6,
            sleep=lambda seconds: None,
            random=random.Random(1),
            threads=1,
        )
        self.store = Judged(self.bucket, runtime, self.ledger)
        self.db = Database(self.store, runtime)
        self._given_out = 0
        self.operation = self.store.run.operation

    def rows(self, *keys: int) -> tuple[Row, ...]:
        """New rows with these keys."""
        self._given_out += len(keys)
        return tuple(Row(k, k * 10, self._given_out - len(keys) + n, None) for n, k in enumerate(keys, 1))

    def begin(self, kind: str, *effects: Effect, **said: Any) -> Run:
        """What the next commit will be."""
        self.now_us += 1_000_000
        version = self.ledger.version
        self.operation = Operation(kind, "tester", version, version, began_us=self.now_us, **said)
        self.store.run = Run(self.operation, list(effects))
        return self.store.run

    def do(self, kind: str, effects: Sequence[Effect], call: Callable[[], Any], **said: Any) -> Any:
        """One call, judged."""
        run = self.begin(kind, *effects, **said)
        done = call()
        self.ledger.acknowledged(self.operation, run, done if isinstance(done, Commit) else None)
        return done

    def create(self) -> None:
        self.do("create", [model.Create("left")], lambda: self.db.create_table("left", SCHEMA, primary_key="k"))

    def append(self, *keys: int, table: str = "left", **said: Any) -> tuple[Row, ...]:
        rows = self.rows(*keys)
        self.do("append", [model.Append(table, rows)], lambda: self.db.table(table).append(arrow(rows)), **said)
        return rows

    def delete(self, k: int) -> None:
        effect = model.Delete("left", lambda row: row.k == k)
        self.do("delete", [effect], lambda: self.db.table("left").delete({"k": k}))

    def delete_positions(self, k: int) -> None:
        effect = model.DeletePositions("left", lambda row: row.k == k)
        self.do("delete", [effect], lambda: self.db.table("left").delete({"k": k}, mode="positions"))

    def apply(self, id_: str, *keys: int) -> tuple[Row, ...]:
        """An append with an applied id."""
        rows = self.rows(*keys)

        def block() -> Commit:
            with self.db.transaction() as transaction:
                transaction.bind(id_, f"digest of {id_}")
                transaction.table("left").append(arrow(rows), request=id_)
                return transaction.commit()

        self.do("batch", [model.Append("left", rows, id_)], block, digests={id_: f"digest of {id_}"})
        return rows

    def upkeep(self, kind: str, call: Callable[[], Any]) -> None:
        self.do(kind, [], call, upkeep=True)

    def set(self, **settings: Any) -> None:
        self.do("set", [model.Settings("", settings)], lambda: self.db.set(**settings))

    @property
    def table(self) -> Document:
        """What the newest manifest says of the table."""
        key = self.ledger.chain[-1].key
        table: Document = msgspec.json.decode(self.bucket.objects[key].body)["tables"]["left"]
        return table


@pytest.fixture
def world() -> World:
    """One table with three files: keys 1 to 3, 4 to 6, and 7."""
    world = World()
    world.create()
    for keys in ((1, 2, 3), (4, 5, 6), (7,)):
        world.append(*keys)
    return world


def forged(world: World, forgery: Forgery, never: Never, told: str) -> None:
    """Lets a commit land whose manifest is forged, and sees what the judge says of it."""
    world.store.forgery = forgery
    with pytest.raises(ViolationError, match=told) as caught:
        world.append(8)
    assert caught.value.never is never, caught.value


def left(document: Document) -> Document:
    table: Document = document["tables"]["left"]
    return table


# ---- what versions hold ----------------------------------------------------------------------------------------------


def test_a_history_without_forgeries_is_not_found_fault_with(world: World) -> None:
    world.delete(1)
    world.delete_positions(5)
    world.apply("a", 9)
    world.upkeep("resolve", lambda: resolve(world.db._context, "left"))
    world.upkeep("compact", lambda: compact(world.db._context, "left"))
    world.append(10)
    world.ledger.check_isolation()
    world.ledger.check_dates()


def test_a_file_that_a_version_leaves_out_is_a_lost_row(world: World) -> None:
    forged(world, lambda manifest: left(manifest)["files"].pop(2), Never.LOST, r"missing: \[Row\(k=7")


def test_a_file_that_stands_there_twice_is_a_row_there_twice(world: World) -> None:
    forged(world, lambda manifest: left(manifest)["files"].append(left(manifest)["files"][2]), Never.LOST, "twice")


def test_a_tombstone_that_is_dropped_too_early_is_a_revived_row(world: World) -> None:
    world.delete(4)
    forged(world, lambda manifest: left(manifest).pop("tombstones"), Never.REVIVED, r"should not be there: \[Row\(k=4")


def test_a_file_that_claims_to_know_more_deletes_than_it_does_is_a_revived_row(world: World) -> None:
    world.delete(4)

    def forgery(manifest: Document) -> None:
        left(manifest)["files"][1]["applied_through"] = manifest["commit_ts"]

    forged(world, forgery, Never.REVIVED, r"should not be there: \[Row\(k=4")


def test_a_vector_that_is_dropped_is_a_revived_row(world: World) -> None:
    world.delete_positions(5)
    forged(world, lambda manifest: left(manifest)["files"][1].pop("vector"), Never.REVIVED, "k=5")


def test_an_older_vector_that_counts_again_is_a_revived_row(world: World) -> None:
    world.delete_positions(5)
    old = left({"tables": {"left": world.table}})["files"][1]["vector"]
    world.delete_positions(6)

    def forgery(manifest: Document) -> None:
        left(manifest)["files"][1]["vector"] = old

    forged(world, forgery, Never.REVIVED, "k=6")


def test_a_vector_of_another_file_is_a_lost_row(world: World) -> None:
    world.delete_positions(5)

    def forgery(manifest: Document) -> None:
        files = left(manifest)["files"]
        files[0]["vector"] = files[1].pop("vector")

    forged(world, forgery, Never.LOST, "k=2")


def test_a_file_whose_values_are_others_is_a_lost_row(world: World) -> None:
    path = world.table["files"][2]["path"]
    other = world.table["files"][1]["path"]
    world.bucket.objects[path], kept = world.bucket.objects[other], world.bucket.objects[path]
    assert kept.body != world.bucket.objects[path].body
    world.ledger.content._data.clear()
    world.ledger.content._shown.clear()
    with pytest.raises(ViolationError, match="k=7") as caught:
        world.append(8)
    assert caught.value.never is Never.LOST


def test_a_row_whose_commit_timestamp_changes_is_found(world: World) -> None:
    def forgery(manifest: Document) -> None:
        left(manifest)["files"][0]["row_ts"] += 1

    forged(world, forgery, Never.HALF, "_commit_ts")


def test_a_table_that_a_version_leaves_out_is_lost(world: World) -> None:
    forged(world, lambda manifest: manifest["tables"].pop("left"), Never.LOST, "has tables")


def test_settings_that_a_version_forgets_are_lost(world: World) -> None:
    world.set(keep_versions=5)
    forged(world, lambda manifest: manifest.pop("properties"), Never.LOST, "has settings")


def test_a_commit_that_hides_that_it_changed_rows_misreports(world: World) -> None:
    forged(world, lambda manifest: manifest.update(data_change=False), Never.MISREPORTED, "says that it did not")


# ---- the chain -------------------------------------------------------------------------------------------------------


def test_a_commit_timestamp_that_does_not_grow_is_found(world: World) -> None:
    forged(world, lambda manifest: manifest.update(commit_ts=1), Never.REVIVED, "commit_ts")


def test_a_created_at_that_goes_back_is_found(world: World) -> None:
    forged(world, lambda manifest: manifest.update(created_at=1), Never.UNREADABLE, "created_at")


def test_a_version_that_follows_another_one_than_the_newest_loses_it(world: World) -> None:
    before = world.ledger.chain[-2].key
    forged(world, lambda manifest: manifest.update(previous=before), Never.LOST, "does not follow")


def test_a_history_that_leaves_commits_out_is_found(world: World) -> None:
    forged(world, lambda manifest: manifest["history"].pop(0), Never.MISREPORTED, "history")


def test_a_manifest_that_is_not_there_makes_its_version_unreadable(world: World) -> None:
    pointer = msgspec.json.encode({"version": 5, "manifest": "manifest/v5", "commit_id": "x"})
    world.begin("append")
    world.ledger.sent(pointer, world.store.run)
    with pytest.raises(ViolationError, match="not there") as caught:
        world.ledger.landed(pointer, world.now_us)
    assert caught.value.never is Never.UNREADABLE


def test_a_version_whose_object_is_missing_is_unreadable(world: World) -> None:
    def forgery(manifest: Document) -> None:
        path = left(manifest)["files"][-1]["path"]
        del world.bucket.objects[path]

    forged(world, forgery, Never.UNREADABLE, "data/left.*is not there")


# ---- what a version promises to those after it -----------------------------------------------------------------------


def rewritten(world: World, forgery: Forgery, told: str, never: Never = Never.REVIVED) -> None:
    """Lets a compaction land whose manifest is forged."""
    world.delete_positions(1)
    world.store.forgery = forgery
    options = CompactionOptions(deleted_share=0.01)
    with pytest.raises(ViolationError, match=told) as caught:
        world.upkeep("compact", lambda: compact(world.db._context, "left", options=options))
    assert caught.value.never is never, caught.value


def test_a_compaction_that_takes_its_own_time_is_found_before_a_delete_comes_in_between(world: World) -> None:
    def forgery(manifest: Document) -> None:
        for file in left(manifest)["files"]:
            file["applied_through"] = manifest["commit_ts"]

    rewritten(world, forgery, "claims to know deletes|goes from the pair")


def test_an_epoch_that_background_work_changes_is_found(world: World) -> None:
    rewritten(world, lambda manifest: left(manifest).update(epoch=manifest["version"]), "has epoch")


def test_a_new_file_with_another_time_than_its_statement_is_found(world: World) -> None:
    def forgery(manifest: Document) -> None:
        file = left(manifest)["files"][-1]
        file["applied_through"] = file["row_ts"] - 1

    forged(world, forgery, Never.REVIVED, "not the timestamp of its statement")


def test_a_new_tombstone_with_a_time_of_before_is_found(world: World) -> None:
    def forgery(manifest: Document) -> None:
        left(manifest)["tombstones"][-1]["ts"] -= 10_000_000
        left(manifest)["tombstones"][-1]["columns"] = [1, 2]

    world.store.forgery = forgery
    with pytest.raises(ViolationError, match="new tombstone") as caught:
        world.do("delete", [model.Delete("left", lambda row: False)], lambda: world.db.table("left").delete("k > 99"))
    assert caught.value.never is Never.REVIVED


def test_a_pair_that_gets_smaller_is_found_though_a_tombstone_hides_the_rows_still(world: World) -> None:
    world.delete_positions(5)
    world.delete(5)
    forged(world, lambda manifest: left(manifest)["files"][1].pop("vector"), Never.REVIVED, "goes from the pair")


def test_a_delete_that_is_not_noted_would_be_a_lost_update(world: World) -> None:
    def forgery(manifest: Document) -> None:
        left(manifest)["last_delete_ts"] = 0

    world.store.forgery = forgery
    with pytest.raises(ViolationError, match="says that the last delete was at 0") as caught:
        world.delete(2)
    assert caught.value.never is Never.HALF


def test_a_delete_without_a_tombstone_that_is_not_noted_would_be_a_lost_update(world: World) -> None:
    def forgery(manifest: Document) -> None:
        left(manifest)["unseen_delete_ts"] = 0

    world.store.forgery = forgery
    with pytest.raises(ViolationError, match="does not say so") as caught:
        world.delete_positions(2)
    assert caught.value.never is Never.HALF


def test_a_tombstone_that_is_dropped_and_not_noted_would_be_a_lost_update(world: World) -> None:
    world.delete(2)

    def forgery(manifest: Document) -> None:
        left(manifest)["unseen_delete_ts"] = 0

    world.store.forgery = forgery
    with pytest.raises(ViolationError, match="drops a tombstone") as caught:
        world.upkeep("resolve", lambda: resolve(world.db._context, "left"))
    assert caught.value.never is Never.HALF


def test_a_commit_whose_objects_are_behind_the_fence_or_gone_is_found(world: World) -> None:
    def aged(manifest: Document) -> None:
        key = left(manifest)["files"][-1]["path"]
        there = world.bucket.objects[key]
        world.bucket.objects[key] = dataclasses.replace(there, last_modified_us=there.last_modified_us - 30 * DAY_US)

    world.set(retention="1d", keep_versions=2, reader_grace="1h", orphan_age="2d")
    world.now_us += 10 * DAY_US
    world.upkeep("gc", lambda: collect(world.db._context))
    forged(world, aged, Never.COLLECTED, "is behind the fence")


# ---- events ----------------------------------------------------------------------------------------------------------


def test_an_id_that_a_version_tells_of_twice_is_found(world: World) -> None:
    world.apply("a", 9)
    forged(world, lambda manifest: manifest["applied"].append(manifest["applied"][0]), Never.TWICE, "an id twice")


def test_an_id_that_is_forgotten_could_be_applied_twice(world: World) -> None:
    world.apply("a", 9)
    forged(world, lambda manifest: manifest.pop("applied"), Never.TWICE, "forgot that id a")


def test_an_id_that_is_applied_by_nobody_is_found(world: World) -> None:
    def forgery(manifest: Document) -> None:
        manifest["applied"] = [{"id": "b", "digest": "d", "version": manifest["version"]}]

    forged(world, forgery, Never.TWICE, "applied ids")


def test_a_batch_of_which_an_id_is_missing_is_applied_by_half(world: World) -> None:
    rows = world.rows(8)
    world.store.forgery = lambda manifest: manifest["applied"].clear()

    def block() -> Commit:
        with world.db.transaction() as transaction:
            transaction.bind("a", "d")
            transaction.table("left").append(arrow(rows), request="a")
            return transaction.commit()

    with pytest.raises(ViolationError, match=r"applied ids \[\], not \['a'\]") as caught:
        world.do("batch", [model.Append("left", rows, "a")], block, digests={"a": "d"})
    assert caught.value.never is Never.TWICE


def test_an_event_that_is_applied_again_under_no_id_is_there_twice(world: World) -> None:
    rows = world.apply("a", 9)
    again = [model.Append("left", rows, "a")]
    with pytest.raises(ViolationError) as caught:
        world.do("batch", again, lambda: world.db.table("left").append(arrow(rows)), digests={"a": "digest of a"})
    assert caught.value.never in (Never.TWICE, Never.LOST)


def test_an_operation_that_lands_twice_is_found(world: World) -> None:
    rows = world.rows(8)
    world.begin("append", model.Append("left", rows))
    world.db.table("left").append(arrow(rows))
    world.store.run = Run(world.operation, [model.Append("left", rows)], first_put=world.ledger.version)
    with pytest.raises(ViolationError, match="committed twice") as caught:
        world.db.table("left").append(arrow(rows))
    assert caught.value.never is Never.TWICE


def test_a_commit_id_of_two_runs_is_found(world: World) -> None:
    body = msgspec.json.encode({"version": 6, "manifest": "manifest/v6", "commit_id": "same"})
    world.ledger.sent(body, world.begin("append"))
    with pytest.raises(ViolationError, match="two runs") as caught:
        world.ledger.sent(body, world.begin("append"))
    assert caught.value.never is Never.TWICE


# ---- what callers are told -------------------------------------------------------------------------------------------


def misreported(call: Callable[[], object], told: str) -> None:
    with pytest.raises(ViolationError, match=told) as caught:
        call()
    assert caught.value.never is Never.MISREPORTED


def test_success_for_what_did_not_land_is_misreported(world: World) -> None:
    rows = world.rows(8)
    world.begin("append", model.Append("left", rows))
    commit = world.db.table("left").append(arrow(rows))
    other = world.begin("append", model.Append("left", rows))
    misreported(lambda: world.ledger.acknowledged(world.operation, other, commit), "landed as None")


def test_nothing_to_do_for_what_had_something_to_do_is_misreported(world: World) -> None:
    run = world.begin("append", model.Append("left", world.rows(8)))
    run.base = world.ledger.version
    misreported(lambda: world.ledger.acknowledged(world.operation, run, None), "though it had something to do")


def test_an_error_that_hides_a_commit_is_misreported(world: World) -> None:
    rows = world.rows(8)
    run = world.begin("append", model.Append("left", rows))
    world.db.table("left").append(arrow(rows))
    error = ConflictError("another commit")
    misreported(lambda: world.ledger.refused(world.operation, run, error), "was reported as failed")


def test_a_commit_that_lands_after_its_error_is_misreported(world: World) -> None:
    rows = world.rows(8)
    run = world.begin("append", model.Append("right", rows), reads=True)
    world.ledger.refused(world.operation, run, TableNotFoundError("right"))
    run.effects[:] = [model.Append("left", rows)]
    misreported(lambda: world.db.table("left").append(arrow(rows)), "reported as failed")


def test_an_error_without_a_reason_is_misreported(world: World) -> None:
    run = world.begin("append", model.Append("left", world.rows(8)))
    misreported(lambda: world.ledger.refused(world.operation, run, TableNotFoundError("left")), "without a reason")
    run = world.begin("append", model.Append("left", world.rows(8)))
    misreported(lambda: world.ledger.refused(world.operation, run, ConflictError("x")), "without a reason")


def test_an_outcome_that_is_unknown_though_nothing_was_lost_is_misreported() -> None:
    assert unexpected("a commit", UnknownOutcomeError("c", "no answer")).never is Never.MISREPORTED
    assert unexpected("a read", KeyError("k")).never is Never.UNREADABLE


def test_a_caller_that_is_told_to_look_for_another_commit_than_its_own_is_misled(world: World) -> None:
    rows = world.rows(8)
    world.begin("append", model.Append("left", rows))
    commit = world.db.table("left").append(arrow(rows))
    world.ledger.unknown(world.operation, commit.commit_id)
    world.ledger.check_unknown()
    world.ledger.unknown(world.operation, "another")
    misreported(world.ledger.check_unknown, "commit another may have landed")


def test_a_reader_that_crashes_is_told_as_a_version_that_cannot_be_read() -> None:
    with pytest.raises(ViolationError, match="version 3: KeyError") as caught, readable("version 3"):
        raise KeyError("x")
    assert caught.value.never is named(caught.value) is Never.UNREADABLE
    assert named(ValueError()) is None


# ---- what readers see ------------------------------------------------------------------------------------------------


def test_what_readers_see_is_named_by_what_is_wrong_with_it(world: World) -> None:
    ledger, newest = world.ledger, world.ledger.version
    rows = list(ledger.states[newest]["left"].rows)
    check_rows(ledger, rows, newest, "left", "a scan")
    world.delete(1)
    after = list(ledger.states[-1]["left"].rows)
    later = world.append(8)
    both = range(newest, ledger.version + 1)
    for found, never in (
        (rows[1:], None),
        (rows[2:], Never.LOST),
        ([*after, after[-1]], Never.LOST),
        ([rows[0], *after, *later], Never.HALF),
        ([*after, Row(8, 0, 10**6)], Never.HALF),
    ):
        if never is None:
            check_one_of(ledger, found, both, "left", "a scan")
            continue
        with pytest.raises(ViolationError) as caught:
            check_one_of(ledger, found, both, "left", "a scan")
        assert caught.value.never is never, found
    with pytest.raises(ViolationError) as caught:
        check_rows(ledger, rows, newest + 1, "left", "a scan")
    assert caught.value.never is Never.REVIVED


def test_an_answer_to_a_time_that_changes_later_is_found(world: World) -> None:
    ledger = world.ledger
    ledger.dated.append((ledger.chain[2].created_at, 2))
    ledger.check_dates()
    ledger.dated.append((ledger.chain[3].created_at, 2))
    with pytest.raises(ViolationError, match="now it is 3") as caught:
        ledger.check_dates()
    assert caught.value.never is Never.HALF


# ---- collection ------------------------------------------------------------------------------------------------------


@pytest.fixture
def expiring(world: World) -> World:
    """Versions expire after a day, orphans after two, readers have an hour."""
    world.set(retention="1d", keep_versions=2, reader_grace="1h", orphan_age="2d")
    return world


def collected(call: Callable[[], object], told: str) -> None:
    with pytest.raises(ViolationError, match=told) as caught:
        call()
    assert caught.value.never is Never.COLLECTED


def test_what_a_version_needs_may_not_be_deleted(expiring: World) -> None:
    path = expiring.table["files"][0]["path"]
    collected(lambda: expiring.store.delete([path]), "which version 5 needs")
    collected(lambda: expiring.store.delete([expiring.ledger.chain[1].key]), "which version 1 needs")
    collected(lambda: expiring.store.delete([POINTER]), "was deleted")


def test_what_an_expired_version_needs_may_not_be_deleted_before_its_readers_are_gone(expiring: World) -> None:
    old = [file["path"] for file in expiring.table["files"]]
    rows = expiring.rows(1)
    overwrite = model.Overwrite("left", rows, force=True)
    expiring.do("overwrite", [overwrite], lambda: expiring.db.table("left").overwrite(arrow(rows), force=True))
    expiring.append(2)
    expiring.now_us += 2 * DAY_US
    expiring.append(3)
    expiring.append(4)
    expiring.upkeep("gc", lambda: collect(expiring.db._context))
    assert expiring.ledger.retention.horizon > 6
    assert old[0] in expiring.bucket.objects
    collected(lambda: expiring.store.delete(old[:1]), "before the grace")
    expiring.now_us += 7_200_000_000
    expiring.store.delete(old[:1])


def test_an_orphan_that_a_commit_may_still_name_may_not_be_deleted(expiring: World) -> None:
    expiring.store.put("data/left/2026/01/01/00/orphan.parquet", b"rows of a commit under way")
    collected(lambda: expiring.store.delete(["data/left/2026/01/01/00/orphan.parquet"]), "may still land")


def test_a_fence_or_a_horizon_that_moves_too_far_or_back_is_found(expiring: World) -> None:
    now_us = expiring.now_us
    forgeries: list[tuple[Forgery, str]] = [
        (lambda manifest: manifest.update(orphan_cutoff=now_us), "fence too far"),
        (lambda manifest: manifest.update(horizon=3, horizon_at=manifest["created_at"]), "expires too early"),
        (lambda manifest: manifest.update(horizon=7, horizon_at=manifest["created_at"]), "are kept"),
        (lambda manifest: manifest.update(freed=99), "has freed 99"),
    ]
    for forgery, told in forgeries:
        world = World()
        world.create()
        for k in range(4):
            world.append(k)
        world.set(retention="1d", keep_versions=2, reader_grace="1h", orphan_age="2d")
        forged(world, forgery, Never.COLLECTED, told)


def test_what_a_version_lets_go_of_without_saying_so_is_found(expiring: World) -> None:
    rows = expiring.rows(1)
    overwrite = model.Overwrite("left", rows, force=True)
    expiring.store.forgery = lambda manifest: manifest.pop("released")
    table = expiring.db.table("left")
    collected(
        lambda: expiring.do("overwrite", [overwrite], lambda: table.overwrite(arrow(rows), force=True)), "let go of"
    )
