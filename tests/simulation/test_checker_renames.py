"""Tables are followed by what they are: of what is done to another one of their name the judge says so, and of what a
version tells falsely of its deeds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dolmen_simulator.actors.writers import SPARE, arrow
from dolmen_simulator.judge import model
from dolmen_simulator.judge.altering import AlterEffect
from dolmen_simulator.judge.effects import SHAPES
from dolmen_simulator.judge.model import SCHEMA
from dolmen_simulator.judge.never import Never, ViolationError
from simulation.judged import Document, World, check_forgery


def rename(world: World, name: str, to: str) -> None:
    world.do("rename", [model.RenameEffect(name, to)], lambda: world.db.rename_table(name, to))


def new(world: World, name: str) -> None:
    world.do("create", [model.CreateEffect(name)], lambda: world.db.create_table(name, SCHEMA, primary_key="k"))


def late_append(world: World, meanwhile: Callable[[], None]) -> None:
    """An append that was made before something happened, and lands after it."""
    rows = world.rows(8)
    run = world.begin("append", model.AppendEffect("left", rows))
    run.first_put = world.ledger.version
    meanwhile()
    world.operation, world.store.run = run.operation, run
    world.db.table("left").append(arrow(rows))


def test_a_table_goes_by_its_new_name_with_all_that_it_has(world: World) -> None:
    rename(world, "left", SPARE)
    new(world, "left")
    world.append(8, table=SPARE)
    world.append(9)
    assert sorted(row.k for row in world.ledger.states[-1][SPARE].rows) == [1, 2, 3, 4, 5, 6, 7, 8]
    world.ledger.check_isolation()


def test_rows_that_were_meant_for_a_table_of_that_name_have_strayed(world: World) -> None:
    def another_takes_its_name() -> None:
        rename(world, "left", SPARE)
        new(world, "left")

    with pytest.raises(ViolationError, match="name") as caught:
        late_append(world, another_takes_its_name)
    assert caught.value.never is Never.STRAYED


def test_a_table_that_was_renamed_away_and_back_is_the_same(world: World) -> None:
    def away_and_back() -> None:
        rename(world, "left", SPARE)
        rename(world, SPARE, "left")

    late_append(world, away_and_back)
    assert world.ledger.states[-1]["left"].rows[-1].k == 8
    world.ledger.check_isolation()


def test_a_rename_that_makes_another_table_is_found(world: World) -> None:
    world.store.forgery = lambda manifest: manifest["tables"][SPARE].update(uuid="f" * 32)
    with pytest.raises(ViolationError, match=f"calls another table '{SPARE}'") as caught:
        rename(world, "left", SPARE)
    assert caught.value.never is Never.STRAYED


def test_a_rename_that_takes_the_name_of_another_table_loses_that(world: World) -> None:
    new(world, "right")
    run = world.begin("rename", model.RenameEffect("left", "right"))
    run.first_put = world.ledger.version
    with pytest.raises(ViolationError, match="the name of 'right'") as caught:
        model.fold(world.ledger.states, run, {}, world.ledger.version + 1)
    assert caught.value.never is Never.LOST


# ---- deeds -----------------------------------------------------------------------------------------------------------


def one(document: Document) -> Document:
    deed: Document = document["did"][0]
    return deed


@pytest.mark.parametrize(
    ("forgery", "told"),
    [
        (lambda manifest: manifest["did"].clear(), "changed"),
        (lambda manifest: one(manifest).update(what="delete"), "did not do"),
        (lambda manifest: one(manifest).update(table="right"), "changed|did not"),
        (lambda manifest: one(manifest).update(over=["alice@example.com"]), "alice"),
        (lambda manifest: manifest["did"].append({"table": "left", "what": "drop"}), "did not do"),
        (lambda manifest: manifest.update(did_more=2), " 2"),
        (lambda manifest: manifest.update(message="what others said"), "message"),
        (lambda manifest: manifest["history"][-1]["did"].clear(), "chain"),
        (lambda manifest: manifest["history"][-1].update(message="later"), "chain"),
    ],
)
def test_a_deed_that_is_not_told_as_it_was_is_found(
    world: World, forgery: Callable[[Document], object], told: str
) -> None:
    def forge(manifest: Document) -> None:
        forgery(manifest)

    check_forgery(world, forge, Never.MISREPORTED, told)


def test_a_rename_that_is_not_told_of_is_found(world: World) -> None:
    world.store.forgery = lambda manifest: manifest["did"].clear()
    with pytest.raises(ViolationError, match="Rename") as caught:
        rename(world, "left", SPARE)
    assert caught.value.never is Never.MISREPORTED


def test_a_deed_may_hold_the_terms_of_a_sort_key(world: World) -> None:
    key = SHAPES[2].sort_key
    world.do("alter", [AlterEffect("left", shape=2)], lambda: world.db.table("left").set_sort_key(key))
    assert world.db.history()[0].did[0].over == key


def test_an_applied_id_that_is_acknowledged_for_other_content_is_found(world: World) -> None:
    world.apply("a", 9)
    run = world.begin(
        "say again", model.AppendEffect("left", world.rows(3), "a"), digests={"a": "digest of other rows"}
    )
    run.base = world.ledger.version
    with pytest.raises(ViolationError, match=r"\['a'\]") as caught:
        world.ledger.check_acknowledged(world.operation, run, None)
    assert caught.value.never is Never.TWICE
