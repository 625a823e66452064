"""The judge says what is wrong where erased rows are seen, or where others are missing."""

from __future__ import annotations

import pytest

from dolmen_simulator.judge.erasing import EraseEffect, ForgetEffect
from dolmen_simulator.judge.ingesting import IngestEffect
from dolmen_simulator.judge.model import Effect, SettingsEffect
from dolmen_simulator.judge.never import Never, ViolationError
from dolmen_simulator.judge.past import CloneEffect, RestoreEffect
from dolmen_simulator.judge.replica import FedRow, TableCopy, fed_rows, follow_feed
from dolmen_simulator.judge.seen import check_rows, rows_from
from simulation.judged import Document, Forgery, World, left

KEY = frozenset("k")
OLD = 4
"""A version from before all erasures, with all rows."""


def erase(world: World, k: int) -> None:
    effect = EraseEffect("left", lambda row: row.k == k, KEY)
    world.do("erase", [effect], lambda: world.db.table("left").erase({"k": k}).commit)


def clone(world: World, name: str = "copy") -> None:
    effect = CloneEffect(name, "left", world.ledger.version, world.ledger)
    world.do("clone", [effect], lambda: world.db.clone("left", name))


def restore(world: World, version: int) -> None:
    effect = RestoreEffect("left", version, world.ledger)
    world.do("restore", [effect], lambda: world.db.table("left").restore(version))


def check_found_in(world: World, forgery: Forgery, never: Never, words: str, call: str = "erase") -> None:
    """Lets an erasure or a restore land whose manifest is forged, and sees what the judge says of it."""
    world.store.forgery = forgery
    with pytest.raises(ViolationError, match=words) as caught:
        erase(world, 5) if call == "erase" else restore(world, OLD)
    assert caught.value.never is never, caught.value


def test_a_history_with_erasures_is_not_found_fault_with(world: World) -> None:
    clone(world)
    world.do("set", [SettingsEffect("left", {"subject": "k"})], lambda: world.db.table("left").set(subject="k"))
    erase(world, 4)
    world.do("forget", [ForgetEffect(5)], lambda: world.db.forget(5).commit)
    restore(world, OLD)
    clone(world, "again")
    assert {row.k for row in world.ledger.states[-1]["left"].rows} == {1, 2, 3, 6, 7}
    for name in ("left", "copy", "again"):
        check_rows(world.ledger, rows_from(world.db.table(name).to_arrow()), world.ledger.version, name, "a scan")


def test_an_older_version_is_seen_without_erased_rows_by_who_knows_the_erasure(world: World) -> None:
    all_rows = world.ledger.states[OLD]["left"].rows
    erase(world, 4)
    now = world.ledger.version
    found = rows_from(world.db.at(OLD).table("left").to_arrow())
    check_rows(world.ledger, found, OLD, "left", "version 4", now)
    check_rows(world.ledger, all_rows, OLD, "left", "version 4, pinned before,", OLD)
    with pytest.raises(ViolationError, match="k=4") as caught:
        check_rows(world.ledger, all_rows, OLD, "left", "version 4", now)
    assert caught.value.never is Never.SEEN
    with pytest.raises(ViolationError, match="k=4") as caught:
        check_rows(world.ledger, found, OLD, "left", "version 4, pinned before,", OLD)
    assert caught.value.never is Never.LOST


def test_an_erasure_that_a_version_does_not_list_is_seen_in_earlier_ones(world: World) -> None:
    check_found_in(world, lambda manifest: manifest.pop("erasures"), Never.SEEN, "erasures")


def test_an_erasure_that_is_listed_no_more_is_seen(world: World) -> None:
    erase(world, 4)

    def forget_it(manifest: Document) -> None:
        manifest["erasures"] = manifest["erasures"][1:]

    check_found_in(world, forget_it, Never.SEEN, "does not list")


def test_an_erasure_that_leaves_a_clone_out_is_seen(world: World) -> None:
    clone(world)
    forgery: Forgery = lambda manifest: manifest["tables"]["copy"].pop("tombstones")  # noqa: E731
    check_found_in(world, forgery, Never.SEEN, "'copy'")


def test_a_restore_that_brings_an_erased_row_back_is_seen(world: World) -> None:
    erase(world, 4)
    check_found_in(world, lambda manifest: left(manifest).pop("tombstones"), Never.SEEN, "k=4", call="restore")


def test_late_rows_are_left_out_if_they_were_dropped_before_the_request_or_nobody_knows_when(world: World) -> None:
    table, rows = world.ledger.states[-1]["left"], world.rows(4, 8)
    erase(world, 4)
    [erasure] = world.ledger.erasures
    second, now = 1_000_000, world.ledger.version + 1
    effects = {
        us: IngestEffect("left", rows, "drop", None, us, world.ledger.erasures)
        for us in (None, erasure.requested_at, erasure.requested_at + second, erasure.requested_at + second + 1)
    }
    assert [[row.k for row in each.rows_left(table, now)] for each in effects.values()] == [[8], [8], [8], [4, 8]]
    before: Effect = effects[None]
    assert isinstance(before, IngestEffect)
    assert before.rows_left(table, erasure.version) == rows


def feed(world: World, since: int) -> tuple[TableCopy, list[FedRow]]:
    table = world.ledger.states[since]["left"]
    return TableCopy(table.identity, since, table.rows), fed_rows(world.db.table("left").changes(since))


@pytest.mark.parametrize("net", [False, True])
def test_a_feed_over_an_erasure_is_followed(world: World, net: bool) -> None:
    table = world.ledger.states[OLD]["left"]
    world.append(4, 9)
    erase(world, 4)
    world.append(4)
    copy = TableCopy(table.identity, OLD, table.rows)
    fed = fed_rows(world.db.table("left").changes(OLD, net=net))
    assert [row.row.k for row in fed if row.row.u is None] == ([4] if net else [4, 4])
    now = follow_feed(world.ledger, copy, world.ledger.version, fed, net=net)
    assert set(now.rows) == set(world.ledger.states[-1]["left"].rows)


def test_a_feed_that_keeps_an_erasure_to_itself_is_found(world: World) -> None:
    erase(world, 4)
    copy, fed = feed(world, OLD)
    with pytest.raises(ViolationError, match="should not be there") as caught:
        follow_feed(world.ledger, copy, world.ledger.version, [row for row in fed if row.row.u is not None])
    assert caught.value.never is Never.MISFED


def test_a_feed_that_tells_of_an_erased_row_is_found(world: World) -> None:
    [row] = world.append(9)
    erase(world, 9)
    copy, fed = feed(world, OLD)
    assert not [one for one in fed if one.row == row]
    told = FedRow("insert", OLD + 1, world.ledger.chain[OLD + 1].commit_ts, row)
    with pytest.raises(ViolationError, match="erased") as caught:
        follow_feed(world.ledger, copy, world.ledger.version, [told, *fed])
    assert caught.value.never is Never.SEEN


def test_nobody_deletes_a_receipt(world: World) -> None:
    world.bucket.objects["receipt/0.json"] = world.bucket.objects[world.ledger.chain[1].key]
    with pytest.raises(ViolationError, match=r"receipt/0\.json was deleted") as caught:
        world.ledger.retention.check_delete("receipt/0.json", world.now_us)
    assert caught.value.never is Never.COLLECTED
