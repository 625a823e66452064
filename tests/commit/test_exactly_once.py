"""Applied ids: a request is applied once, however often and in whatever company it comes."""

from __future__ import annotations

import pytest

from dolmen.base.records import replace
from dolmen.base.runtime import POINTER_PUT
from dolmen.commit.statements.row_changes import Write
from dolmen.errors import AppliedIdError, ConflictError, UnknownOutcomeError
from support.commit_world import (
    World,
    append,
    delete,
    dependency,
    is_refused,
    land_late,
    lose_the_request,
    meanwhile,
    paths,
    table,
)


def test_a_request_that_was_applied_is_a_no_op_that_names_its_version(world: World) -> None:
    first, second = world.writer(), world.writer()
    first.commit(append(table(world), "a", request="r"), applied={"r": "digest"})
    first.commit(append(table(world), "b"))
    puts = len(second.store.puts)
    done = second.commit(append(table(world), "a2", request="r"), applied={"r": "digest"})
    assert (done.manifest, done.already) == (None, {"r": 2})
    assert len(second.store.puts) == puts
    assert paths(table(world)) == ["a", "b"]


def test_of_a_batch_half_applied_before_only_the_other_half_is_applied(world: World) -> None:
    first, second = world.writer(), world.writer()
    entry = table(world)
    first.commit(append(entry, "a", request="ra"), applied={"ra": "da"})
    done = second.commit(
        append(entry, "a2", request="ra"),
        append(entry, "b", request="rb"),
        delete(entry, request="ra"),
        applied={"ra": "da", "rb": "db"},
    )
    assert done.already == {"ra": 2}
    assert paths(table(world)) == ["a", "b"]
    assert table(world).tombstones == ()
    assert [(each.id, each.version) for each in world.newest.applied] == [("ra", 2), ("rb", 3)]


def test_half_a_batch_applied_between_two_attempts_is_left_out_of_the_second(world: World) -> None:
    writer, other = world.writer(), world.writer()
    entry = table(world)
    writer.head.refresh()
    writer.store.script.append(meanwhile(lambda: other.commit(append(entry, "a", request="ra"), applied={"ra": "da"})))
    done = writer.commit(
        append(entry, "a2", request="ra"), append(entry, "b", request="rb"), applied={"ra": "da", "rb": "db"}
    )
    assert done.already == {"ra": 2}
    assert paths(table(world)) == ["a", "b"]


def test_a_whole_batch_applied_between_two_attempts_makes_no_version(world: World) -> None:
    writer, other = world.writer(), world.writer()
    entry = table(world)
    writer.head.refresh()
    writer.store.script.append(meanwhile(lambda: other.commit(append(entry, "a", request="ra"), applied={"ra": "da"})))
    done = writer.commit(append(entry, "a2", request="ra"), applied={"ra": "da"})
    assert (done.manifest, done.already) == (None, {"ra": 2})
    assert world.newest.version == 2


def mixed(world: World, name: str, *requests: str) -> Write:
    return replace(append(table(world), name), requests=frozenset(requests))


def test_requests_whose_rows_stand_mixed_are_applied_together_or_not_at_all(world: World) -> None:
    writer, other = world.writer(), world.writer()
    both = {"ra": "da", "rb": "db"}
    writer.head.refresh()
    other.commit(append(table(world), "a", request="ra"), applied={"ra": "da"})
    with pytest.raises(ConflictError, match="1 of 2 requests, 'ra'"):
        writer.commit(mixed(world, "mixed", "ra", "rb"), applied=both)
    assert paths(table(world)) == ["a"]
    writer.commit(mixed(world, "alone", "rb"), applied={"rb": "db"})
    done = writer.commit(mixed(world, "again", "ra", "rb"), applied=both)
    assert (done.manifest, done.already) == (None, {"ra": 2, "rb": 3})
    assert paths(table(world)) == ["a", "alone"]


def test_one_of_mixed_requests_applied_between_two_attempts_is_a_conflict(world: World) -> None:
    writer, other = world.writer(), world.writer()
    entry = table(world)
    writer.head.refresh()
    writer.store.script.append(meanwhile(lambda: other.commit(append(entry, "a", request="ra"), applied={"ra": "da"})))
    with pytest.raises(ConflictError, match="applied meanwhile"):
        writer.commit(mixed(world, "mixed", "ra", "rb"), append(entry, "b"), applied={"ra": "da", "rb": "db"})
    assert paths(table(world)) == ["a"]


def test_a_read_of_rows_that_an_applied_request_changed_names_the_request(world: World) -> None:
    writer, other = world.writer(), world.writer()
    entry, read = table(world), dependency(table(world), world.newest)
    both = append(entry, "a", request="r"), append(entry, "b")
    writer.head.refresh()
    writer.store.script.append(meanwhile(lambda: other.commit(both[0], applied={"r": "d"})))
    with pytest.raises(ConflictError, match=r"table 't': another writer has applied request 'r', on whose rows"):
        writer.commit(*both, applied={"r": "d"}, dependencies=(read,))
    assert writer.commit(both[0], applied={"r": "d"}, dependencies=(read,)).already == {"r": 2}
    assert paths(table(world)) == ["a"]


def test_the_same_id_with_another_body_is_an_error(world: World) -> None:
    writer = world.writer()
    entry = table(world)
    writer.commit(append(entry, "a", request="r"), applied={"r": "one"})
    with pytest.raises(AppliedIdError, match=r"'r'.*version 2"):
        writer.commit(append(entry, "b", request="r"), applied={"r": "other"})
    assert paths(table(world)) == ["a"]


def test_the_same_id_with_another_body_is_found_out_on_rebase_too(world: World) -> None:
    writer, other = world.writer(), world.writer()
    entry = table(world)
    writer.head.refresh()
    writer.store.script.append(meanwhile(lambda: other.commit(append(entry, "a", request="r"), applied={"r": "one"})))
    with pytest.raises(AppliedIdError):
        writer.commit(append(entry, "b", request="r"), applied={"r": "other"})
    assert paths(table(world)) == ["a"]


def test_a_request_that_has_nothing_to_do_is_remembered_all_the_same(world: World) -> None:
    writer = world.writer()
    assert writer.commit(applied={"r": "d"}).manifest is not None
    assert writer.commit(applied={"r": "d"}).already == {"r": 2}
    assert world.newest.version == 2


def test_a_first_attempt_that_lands_late_is_not_applied_again_by_the_second_delivery(world: World) -> None:
    first, second = world.writer(), world.writer()
    entry = table(world)
    first.store.script += [land_late] + [lose_the_request] * (POINTER_PUT.tries - 1)
    with pytest.raises(UnknownOutcomeError):
        first.commit(append(entry, "a", request="r"), applied={"r": "d"})
    second.head.refresh()
    second.store.script.append(meanwhile(first.store.land))
    done = second.commit(append(entry, "a2", request="r"), applied={"r": "d"})
    assert done.already == {"r": 2}
    assert paths(table(world)) == ["a"]


def test_the_second_delivery_shuts_out_a_first_attempt_that_is_still_under_way(world: World) -> None:
    first, second = world.writer(), world.writer()
    entry = table(world)
    first.store.script += [land_late] + [lose_the_request] * (POINTER_PUT.tries - 1)
    with pytest.raises(UnknownOutcomeError):
        first.commit(append(entry, "a", request="r"), applied={"r": "d"})
    second.commit(append(entry, "a2", request="r"), applied={"r": "d"})
    assert is_refused(first.store.land())
    assert paths(table(world)) == ["a2"]


def test_an_attempt_that_lands_late_after_being_overtaken_is_not_applied_twice(world: World) -> None:
    """The commit id is the same in all attempts: had it changed, the late first one would read as theirs."""
    writer, other = world.writer(), world.writer()
    entry = table(world)
    writer.store.script += [
        land_late,
        meanwhile(lambda: (writer.store.land(), other.commit(append(entry, "b")))),
    ]
    done = writer.commit(append(entry, "a"))
    assert done.manifest is not None
    assert done.manifest.version == 2
    assert paths(table(world)) == ["a", "b"]
