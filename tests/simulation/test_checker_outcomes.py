"""The judge notices events that are applied twice, and callers and readers who are told wrong things."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from dolmen import Commit
from dolmen.errors import ConflictError, TableNotFoundError, UnknownOutcomeError
from dolmen_simulator.actors.writers import arrow
from dolmen_simulator.judge import model
from dolmen_simulator.judge.model import OperationRun, Row
from dolmen_simulator.judge.never import Never, ViolationError, raising_unreadable, unexpected_error, violated_promise
from dolmen_simulator.judge.seen import check_one_of, check_rows
from simulation.judged import Document, World, check_forgery

# ---- events ----------------------------------------------------------------------------------------------------------


def test_an_id_that_a_version_tells_of_twice_is_found(world: World) -> None:
    world.apply("a", 9)
    check_forgery(
        world, lambda manifest: manifest["applied"].append(manifest["applied"][0]), Never.TWICE, "an id twice"
    )


def test_an_id_that_is_forgotten_could_be_applied_twice(world: World) -> None:
    world.apply("a", 9)
    check_forgery(world, lambda manifest: manifest.pop("applied"), Never.TWICE, "id a")


def test_an_id_that_is_applied_by_nobody_is_found(world: World) -> None:
    def forgery(manifest: Document) -> None:
        manifest["applied"] = [{"id": "b", "digest": "d", "version": manifest["version"]}]

    check_forgery(world, forgery, Never.TWICE, "applied ids")


def test_a_batch_of_which_an_id_is_missing_is_applied_by_half(world: World) -> None:
    rows = world.rows(8)
    world.store.forgery = lambda manifest: manifest["applied"].clear()

    def block() -> Commit:
        with world.db.transaction() as transaction:
            transaction.bind("a", "d")
            transaction.table("left").append(arrow(rows), request="a")
            return transaction.commit()

    with pytest.raises(ViolationError, match=r"\['a'\]") as caught:
        world.do("batch", [model.AppendEffect("left", rows, "a")], block, digests={"a": "d"})
    assert caught.value.never is Never.TWICE


def test_an_event_that_is_applied_again_under_no_id_is_there_twice(world: World) -> None:
    rows = world.apply("a", 9)
    again = [model.AppendEffect("left", rows, "a")]
    with pytest.raises(ViolationError) as caught:
        world.do("batch", again, lambda: world.db.table("left").append(arrow(rows)), digests={"a": "digest of a"})
    assert caught.value.never in (Never.TWICE, Never.LOST)


def test_an_operation_that_lands_twice_is_found(world: World) -> None:
    rows = world.rows(8)
    world.begin("append", model.AppendEffect("left", rows))
    world.db.table("left").append(arrow(rows))
    world.store.run = OperationRun(world.operation, [model.AppendEffect("left", rows)], first_put=world.ledger.version)
    with pytest.raises(ViolationError, match="committed twice") as caught:
        world.db.table("left").append(arrow(rows))
    assert caught.value.never is Never.TWICE


def test_a_commit_id_of_two_runs_is_found(world: World) -> None:
    body = msgspec.json.encode({"version": 6, "manifest": "manifest/v6", "commit_id": "same"})
    world.ledger.record_sent(body, world.begin("append"))
    with pytest.raises(ViolationError, match="two runs") as caught:
        world.ledger.record_sent(body, world.begin("append"))
    assert caught.value.never is Never.TWICE


# ---- what callers are told -------------------------------------------------------------------------------------------


def check_misreported(call: Callable[[], object], told: str) -> None:
    with pytest.raises(ViolationError, match=told) as caught:
        call()
    assert caught.value.never is Never.MISREPORTED


def test_success_for_what_did_not_land_is_misreported(world: World) -> None:
    rows = world.rows(8)
    world.begin("append", model.AppendEffect("left", rows))
    commit = world.db.table("left").append(arrow(rows))
    other = world.begin("append", model.AppendEffect("left", rows))
    check_misreported(lambda: world.ledger.check_acknowledged(world.operation, other, commit), "None")


def test_nothing_to_do_for_what_had_something_to_do_is_misreported(world: World) -> None:
    run = world.begin("append", model.AppendEffect("left", world.rows(8)))
    run.base = world.ledger.version
    check_misreported(lambda: world.ledger.check_acknowledged(world.operation, run, None), "to do")


def test_nothing_to_do_without_a_look_at_any_version_is_misreported(world: World) -> None:
    run = world.begin("append", model.AppendEffect("left", world.rows(8)))
    check_misreported(lambda: world.ledger.check_acknowledged(world.operation, run, None), "no version")


def test_an_error_that_hides_a_commit_is_misreported(world: World) -> None:
    rows = world.rows(8)
    run = world.begin("append", model.AppendEffect("left", rows))
    world.db.table("left").append(arrow(rows))
    error = ConflictError("commit")
    check_misreported(lambda: world.ledger.check_refused(world.operation, run, error), "failed")


def test_a_commit_that_lands_after_its_error_is_misreported(world: World) -> None:
    rows = world.rows(8)
    run = world.begin("append", model.AppendEffect("right", rows), reads=True)
    world.ledger.check_refused(world.operation, run, TableNotFoundError("right"))
    run.effects[:] = [model.AppendEffect("left", rows)]
    check_misreported(lambda: world.db.table("left").append(arrow(rows)), "failed")


def test_an_error_without_a_reason_is_misreported(world: World) -> None:
    run = world.begin("append", model.AppendEffect("left", world.rows(8)))
    check_misreported(lambda: world.ledger.check_refused(world.operation, run, TableNotFoundError("left")), "reason")
    run = world.begin("append", model.AppendEffect("left", world.rows(8)))
    check_misreported(lambda: world.ledger.check_refused(world.operation, run, ConflictError("x")), "reason")


def test_an_outcome_that_is_unknown_though_nothing_was_lost_is_misreported() -> None:
    assert unexpected_error("a commit", UnknownOutcomeError("c", "no answer")).never is Never.MISREPORTED
    assert unexpected_error("a read", KeyError("k")).never is Never.UNREADABLE


def test_a_caller_that_is_told_to_look_for_another_commit_than_its_own_is_misled(world: World) -> None:
    rows = world.rows(8)
    world.begin("append", model.AppendEffect("left", rows))
    commit = world.db.table("left").append(arrow(rows))
    world.ledger.record_unknown(world.operation, commit.commit_id)
    world.ledger.check_unknown()
    world.ledger.record_unknown(world.operation, "another")
    check_misreported(world.ledger.check_unknown, "another")


def test_a_reader_that_crashes_is_told_as_a_version_that_cannot_be_read() -> None:
    with pytest.raises(ViolationError, match="version 3: KeyError") as caught, raising_unreadable("version 3"):
        raise KeyError("x")
    assert caught.value.never is violated_promise(caught.value) is Never.UNREADABLE
    assert violated_promise(ValueError()) is None


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
    ledger.timestamp_answers.append((ledger.chain[2].created_at, 2))
    ledger.check_dates()
    ledger.timestamp_answers.append((ledger.chain[3].created_at, 2))
    with pytest.raises(ViolationError, match="now it is 3") as caught:
        ledger.check_dates()
    assert caught.value.never is Never.HALF
