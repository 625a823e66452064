"""Changes that wait for the pointer at the same time in one process become one version; each keeps its own outcome."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from dolmen.base.runtime import POINTER_PUT
from dolmen.commit.change import Note
from dolmen.commit.loop import MOST_CHANGES, Committed, Leader, Member, commit
from dolmen.commit.statements.background import SetProperties
from dolmen.commit.statements.catalog import CreateTable, DropTable
from dolmen.errors import (
    AppliedIdError,
    ConflictError,
    Error,
    InputError,
    StaleWriterError,
    StoreUnavailableError,
    TableExistsError,
    TableNotFoundError,
    UnknownOutcomeError,
)
from dolmen.format.del_object import decode_vector
from dolmen.format.layout import POINTER
from dolmen.format.manifest import Counts, TableEntry
from dolmen.store.base import PutOutcome
from support.commit_world import (
    SCHEMA,
    Perform,
    ScriptedStore,
    World,
    Writer,
    append,
    delete,
    delete_positions,
    dependency,
    land_late,
    lose_the_request,
    lose_the_response,
    meanwhile,
    paths,
    table,
)
from support.groups import commit_together, version_of


@pytest.fixture
def writer(world: World) -> Writer:
    writer = world.writer()
    writer.head.refresh()
    return writer


def appends(world: World, writer: Writer, *names: str) -> list[Committed | Error]:
    """Commits an append for each name, all together."""
    return commit_together(writer, *(writer.change(append(table(world), name)) for name in names))


def test_changes_that_wait_together_cost_one_manifest_and_one_pointer(world: World, writer: Writer) -> None:
    gets = len(writer.store.gets)
    outcomes = appends(world, writer, "a", "b", "c")
    assert {version_of(each).version for each in outcomes} == {2}
    assert writer.store.puts == [world.newest.key, POINTER]
    assert len(writer.store.gets) == gets
    assert paths(table(world)) == ["a", "b", "c"]


def test_a_change_alone_is_as_if_there_were_no_groups(world: World, writer: Writer) -> None:
    change = writer.change(append(table(world), "a"), note=Note("why"))
    [outcome] = commit_together(writer, change)
    assert writer.store.puts == [world.newest.key, POINTER]
    assert (world.newest.commit_id, world.newest.message) == (change.commit_id, "why")
    assert isinstance(outcome, Committed)
    assert outcome.entry == world.newest.as_history()


def test_each_change_has_timestamps_of_its_own_in_the_order_in_which_they_came(world: World, writer: Writer) -> None:
    before = world.newest.commit_ts
    entry = table(world)
    first = writer.change(append(entry, "a"), append(entry, "b"))
    second = writer.change(append(entry, "c"))
    outcomes = commit_together(writer, first, second)
    stamps = [each.row_ts for each in table(world).files]
    assert stamps == [stamps[0], stamps[0] + 1, stamps[0] + 2]
    assert stamps[0] > before
    own = [each.entry.commit_ts for each in outcomes if isinstance(each, Committed) and each.entry]
    assert own == [stamps[1], stamps[2]]
    assert world.newest.commit_ts == stamps[2]


def test_each_change_is_told_what_it_did_itself(world: World, writer: Writer) -> None:
    entry = table(world)
    added = writer.change(append(entry, "a", "b"), operation="append", note=Note("mine"))
    deleted = writer.change(delete(entry), operation="delete", note=Note("yours"))
    first, second = commit_together(writer, added, deleted)
    assert isinstance(first, Committed)
    assert isinstance(second, Committed)
    assert first.entry
    assert second.entry
    assert (first.entry.operation, first.entry.counts, first.entry.message) == (
        "append",
        Counts(rows_added=20, files_added=2),
        "mine",
    )
    assert (second.entry.operation, second.entry.counts, second.entry.message) == (
        "delete",
        Counts(tombstones_added=1),
        "yours",
    )
    assert [each.what for each in first.entry.did] == ["append"]
    newest = world.newest
    assert newest.counts == Counts(rows_added=20, files_added=2, tombstones_added=1)
    assert (newest.operation, newest.message) == ("group", "mine; yours")
    assert [each.what for each in newest.did] == ["append", "delete"]
    assert first.entry.commit_id == second.entry.commit_id == newest.commit_id


def test_changes_of_one_operation_give_it_to_their_version(world: World, writer: Writer) -> None:
    entry = table(world)
    commit_together(writer, *(writer.change(append(entry, name), operation="append") for name in "ab"))
    assert world.newest.operation == "append"


def test_a_delete_hides_the_rows_of_appends_before_it_and_not_of_those_after_it(world: World, writer: Writer) -> None:
    entry = table(world)
    changes = [append(entry, "before"), delete(entry), append(entry, "after")]
    commit_together(writer, *map(writer.change, changes))
    now = table(world)
    [tombstone] = now.tombstones
    assert [each.applied_through < tombstone.ts for each in now.files] == [True, False]


def test_a_change_that_fails_leaves_the_others(world: World, writer: Writer) -> None:
    entry = table(world)
    there = writer.change(CreateTable("t", TableEntry(uuid="u", epoch=0, schema=SCHEMA)))
    first, failed, last = commit_together(
        writer, writer.change(append(entry, "a")), there, writer.change(append(entry, "b"))
    )
    assert isinstance(failed, TableExistsError)
    assert version_of(first) is version_of(last)
    assert world.newest.version == 2


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_error_is_told_after_a_look_at_the_newest_version_wherever_its_change_stands(
    world: World, writer: Writer, place: int
) -> None:
    """The table that was there when this process looked is gone: whoever creates it anew is right."""
    entry = table(world)
    other = world.writer()
    other.commit(DropTable("t", entry.uuid))
    other.create("u")
    create = writer.change(CreateTable("t", TableEntry(uuid="new", epoch=0, schema=SCHEMA)))
    u = world.newest.tables["u"]
    changes = [writer.change(append(u, name, name="u")) for name in "ab"]
    changes.insert(place, create)
    outcomes = commit_together(writer, *changes)
    assert all(isinstance(each, Committed) for each in outcomes), outcomes
    assert world.newest.tables["t"].uuid == "new"
    assert paths(world.newest.tables["u"]) == ["a", "b"]


def test_a_read_that_an_earlier_change_of_the_group_changes_is_a_conflict(world: World, writer: Writer) -> None:
    entry, base = table(world), world.newest
    first = writer.change(append(entry, "a"), dependencies=(dependency(entry, base),))
    second = writer.change(append(entry, "b"), dependencies=(dependency(entry, base),))
    done, refused = commit_together(writer, first, second)
    assert version_of(done).version == 2
    assert isinstance(refused, ConflictError)
    assert paths(table(world)) == ["a"]


def test_a_read_that_no_earlier_change_concerns_is_committed_with_it(world: World, writer: Writer) -> None:
    entry, base = table(world), world.newest
    first = writer.change(append(entry, "a"))
    second = writer.change(append(entry, "b"), dependencies=(dependency(entry, base, may_match=False),))
    outcomes = commit_together(writer, first, second)
    assert {version_of(each).version for each in outcomes} == {2}


def test_what_depends_on_a_change_that_loses_its_place_is_not_told_too_early(world: World, writer: Writer) -> None:
    """The first change creates a table, the second one, too. Another process creates it before: both are refused."""
    creates = [writer.change(CreateTable("n", TableEntry(uuid=name, epoch=0, schema=SCHEMA))) for name in "xy"]
    writer.store.script.append(meanwhile(lambda: world.writer().create("n")))
    outcomes = commit_together(writer, *creates)
    assert [type(each) for each in outcomes] == [TableExistsError, TableExistsError]
    assert world.newest.version == 2


def test_two_creations_of_one_table_make_one(world: World, writer: Writer) -> None:
    creates = [writer.change(CreateTable("n", TableEntry(uuid=name, epoch=0, schema=SCHEMA))) for name in "xy"]
    first, second = commit_together(writer, *creates)
    assert version_of(first).tables["n"].uuid == "x"
    assert isinstance(second, TableExistsError)


def test_rows_for_a_table_that_an_earlier_change_drops_are_refused(world: World, writer: Writer) -> None:
    entry = table(world)
    done, refused = commit_together(
        writer, writer.change(DropTable("t", entry.uuid)), writer.change(append(entry, "a"))
    )
    assert version_of(done).version == 2
    assert isinstance(refused, TableNotFoundError)


def test_a_lost_answer_is_read_back_for_all(world: World, writer: Writer) -> None:
    writer.store.script.append(lose_the_response)
    outcomes = appends(world, writer, "a", "b")
    assert [version_of(each).version for each in outcomes] == [2, 2]
    assert [each.attempts for each in outcomes if isinstance(each, Committed)] == [1, 1]


def test_a_group_that_may_have_landed_is_unknown_to_all_of_it(world: World, writer: Writer) -> None:
    writer.store.script += [lose_the_request] * (POINTER_PUT.tries + 1)
    outcomes = appends(world, writer, "a", "b")
    assert [type(each) for each in outcomes] == [UnknownOutcomeError] * 2
    assert outcomes[0] is not outcomes[1]
    [id_] = {each.commit_id for each in outcomes if isinstance(each, UnknownOutcomeError)}
    assert len(id_) == 32
    assert world.newest.version == 1


def test_a_group_that_lands_late_is_found_in_the_history_by_the_id_in_the_errors(world: World, writer: Writer) -> None:
    writer.store.script += [land_late, *[lose_the_request] * POINTER_PUT.tries]
    outcomes = appends(world, writer, "a", "b")
    writer.store.land()
    assert [each.commit_id for each in outcomes if isinstance(each, UnknownOutcomeError)] == [
        world.newest.commit_id
    ] * 2
    assert paths(table(world)) == ["a", "b"]


def test_a_group_that_loses_is_applied_to_the_version_of_the_winner(world: World, writer: Writer) -> None:
    entry, other = table(world), world.writer()
    writer.store.script.append(meanwhile(lambda: other.commit(append(entry, "theirs"))))
    outcomes = appends(world, writer, "a", "b")
    assert {version_of(each).version for each in outcomes} == {3}
    assert [each.attempts for each in outcomes if isinstance(each, Committed)] == [2, 2]
    stamps = [each.row_ts for each in table(world).files]
    assert paths(table(world)) == ["theirs", "a", "b"]
    assert sorted(stamps) == stamps


def test_a_change_that_comes_while_a_group_loses_goes_with_its_next_attempt(world: World, writer: Writer) -> None:
    entry, other = table(world), world.writer()
    late = Member(writer.change(append(entry, "late")), writer.uploads(), threading.Event())

    def win() -> None:
        other.commit(append(entry, "theirs"))
        assert not writer.head.queue.join(late)

    writer.store.script.append(meanwhile(win))
    [outcome] = appends(world, writer, "a")
    assert version_of(outcome) is version_of(late.result())


def test_a_request_that_is_there_twice_is_applied_once(world: World, writer: Writer) -> None:
    entry = table(world)
    changes = [writer.change(append(entry, name, request="r"), applied={"r": "d"}) for name in "ab"]
    first, second, third = commit_together(writer, *changes, writer.change(append(entry, "c")))
    assert version_of(first) is version_of(third)
    assert isinstance(second, Committed)
    assert (second.manifest, second.already) == (None, {"r": 2})
    assert paths(table(world)) == ["a", "c"]
    assert [each.id for each in world.newest.applied] == ["r"]


def test_a_request_that_is_there_twice_and_loses_is_applied_once(world: World, writer: Writer) -> None:
    entry, other = table(world), world.writer()
    changes = [writer.change(append(entry, name, request="r"), applied={"r": "d"}) for name in "ab"]
    writer.store.script.append(meanwhile(lambda: other.commit(append(entry, "theirs"))))
    first, second = commit_together(writer, *changes)
    assert version_of(first).version == 3
    assert isinstance(second, Committed)
    assert (second.manifest, second.already) == (None, {"r": 3})


def test_a_request_that_another_process_applies_meanwhile_is_left_out(world: World, writer: Writer) -> None:
    entry, other = table(world), world.writer()
    changes = [writer.change(append(entry, name, request=name), applied={name: "d"}) for name in "ab"]
    theirs = append(entry, "theirs", request="b")
    writer.store.script.append(meanwhile(lambda: other.commit(theirs, applied={"b": "d"})))
    first, second = commit_together(writer, *changes)
    assert version_of(first).version == 3
    assert isinstance(second, Committed)
    assert (second.manifest, second.already) == (None, {"b": 2})
    assert paths(table(world)) == ["theirs", "a"]


def test_other_content_under_the_id_of_an_earlier_change_is_refused(world: World, writer: Writer) -> None:
    entry = table(world)
    changes = [writer.change(append(entry, name, request="r"), applied={"r": name}) for name in "ab"]
    done, refused = commit_together(writer, *changes)
    assert version_of(done).version == 2
    assert isinstance(refused, AppliedIdError)


def test_a_change_that_excludes_a_request_of_the_group_is_refused(world: World, writer: Writer) -> None:
    entry = table(world)
    first = writer.change(append(entry, "a", request="r"), applied={"r": "d"})
    second = writer.change(append(entry, "b"), excluded_by=frozenset({"r"}))
    done, refused = commit_together(writer, first, second)
    assert version_of(done).version == 2
    assert isinstance(refused, ConflictError)


def test_deletes_of_positions_in_one_file_are_merged(world: World, writer: Writer) -> None:
    entry = writer.commit(append(table(world), "a")).manifest
    assert entry is not None
    there = table(world)
    changes = [writer.change(delete_positions(there, {"a": [at]})) for at in (1, 7, 3)]
    outcomes = commit_together(writer, *changes)
    assert {version_of(each).version for each in outcomes} == {3}
    [file] = table(world).files
    assert file.vector is not None
    body = world.bucket.objects[file.vector.object].body[file.vector.offset :][: file.vector.length]
    assert list(decode_vector(body, file.vector, file.rows)) == [1, 3, 7]
    assert world.newest.counts.rows_deleted == 3
    assert [each.entry.counts.rows_deleted for each in outcomes if isinstance(each, Committed) and each.entry] == [
        1,
        1,
        1,
    ]


def test_deletes_of_positions_are_merged_anew_after_a_lost_race(world: World, writer: Writer) -> None:
    writer.commit(append(table(world), "a"))
    there, other = table(world), world.writer()
    writer.store.script.append(meanwhile(lambda: other.commit(delete_positions(there, {"a": [5]}))))
    commit_together(writer, *(writer.change(delete_positions(there, {"a": [at]})) for at in (1, 7)))
    [file] = table(world).files
    assert file.vector is not None
    body = world.bucket.objects[file.vector.object].body[file.vector.offset :][: file.vector.length]
    assert list(decode_vector(body, file.vector, file.rows)) == [1, 5, 7]


def test_background_work_goes_alone_and_makes_no_version_without_need(world: World, writer: Writer) -> None:
    entry = table(world)
    nothing = writer.change(is_background=True)
    first, second, third = commit_together(
        writer, writer.change(append(entry, "a")), nothing, writer.change(append(entry, "b"))
    )
    assert version_of(first) is version_of(third)
    assert isinstance(second, Committed)
    assert second.manifest is None
    assert world.newest.version == 2


def test_a_change_whose_objects_may_be_gone_leaves_the_others(world: World, writer: Writer) -> None:
    entry = table(world)
    world.put_by_hand(orphan_cutoff=world.now_us - 10)
    stale = writer.change(append(entry, "old"), first_upload_us=world.now_us - 20)
    done, refused = commit_together(writer, writer.change(append(entry, "new")), stale)
    assert isinstance(done, Committed)
    assert isinstance(refused, StaleWriterError)
    assert paths(table(world)) == ["new"]


def test_a_version_that_no_one_could_read_is_the_error_of_its_change_alone(world: World, writer: Writer) -> None:
    entry = table(world)
    harmful = writer.change(SetProperties(None, "", {"retention": 10**5000}))
    for place in (0, 1):
        changes = [writer.change(append(entry, f"{place}"))]
        changes.insert(place, harmful)
        outcomes = commit_together(writer, *changes)
        assert isinstance(outcomes.pop(place), InputError)
        assert isinstance(outcomes[0], Committed)
    assert paths(table(world)) == ["0", "1"]


def test_a_store_that_cannot_be_reached_is_everybody_s_error_at_once(world: World, writer: Writer) -> None:
    writer.store.unreadable = lambda key: key == POINTER
    world.pass_minutes(10)
    outcomes = appends(world, writer, "a", "b", "c")
    assert [type(each) for each in outcomes] == [StoreUnavailableError] * 3
    assert writer.store.gets[-2:].count(POINTER) == 1, "asked once for all"


def interrupt(before: bool) -> Callable[[ScriptedStore, Perform], PutOutcome]:
    """A put of the pointer during which the user interrupts the thread."""

    def behaviour(store: ScriptedStore, perform: Perform) -> PutOutcome:
        if not before:
            perform()
        raise KeyboardInterrupt

    return behaviour


@pytest.mark.parametrize("before", [True, False])
def test_an_interrupted_leader_leaves_the_outcome_of_the_others_unknown(
    world: World, writer: Writer, before: bool
) -> None:
    writer.store.script.append(interrupt(before))
    entry = table(world)
    first, second = (Member(writer.change(append(entry, name)), writer.uploads(), threading.Event()) for name in "ab")
    assert writer.head.queue.join(first)
    writer.head.queue.join(second)
    with pytest.raises(KeyboardInterrupt):
        Leader(writer.head, first).lead()
    writer.head.queue.leave(first)
    assert isinstance(second.outcome, UnknownOutcomeError)
    assert (world.newest.commit_id == second.outcome.commit_id) is not before
    writer.commit(append(entry, "c"))
    assert paths(table(world)) == ["c"] if before else ["a", "b", "c"]


def test_a_leader_that_is_interrupted_before_it_sends_anything_leaves_the_others_waiting(
    world: World, writer: Writer
) -> None:
    def stop(key: str) -> bool:
        raise KeyboardInterrupt

    entry = table(world)
    first, second = (Member(writer.change(append(entry, name)), writer.uploads(), threading.Event()) for name in "ab")
    writer.head.queue.join(first)
    writer.head.queue.join(second)
    world.pass_minutes(10)
    writer.store.unreadable = stop
    with pytest.raises(KeyboardInterrupt):
        Leader(writer.head, first).lead()
    writer.store.unreadable = lambda key: False
    writer.head.queue.leave(first)
    assert second.signal.wait(0)
    assert second.outcome is None, "it leads now"
    Leader(writer.head, second).lead()
    writer.head.queue.leave(second)
    assert version_of(second.result()).version == 2
    assert paths(table(world)) == ["b"]


def test_a_group_has_a_bound(world: World, writer: Writer) -> None:
    names = [f"f{number}" for number in range(MOST_CHANGES + 1)]
    outcomes = appends(world, writer, *names)
    assert [version_of(each).version for each in outcomes] == [2] * MOST_CHANGES + [3]
    assert paths(table(world)) == names


def test_messages_that_do_not_fit_wait_for_the_next_version(world: World, writer: Writer) -> None:
    entry = table(world)
    messages = ["x" * 200, "y" * 54, "z", "x" * 200]
    changes = [writer.change(append(entry, message[0]), note=Note(message)) for message in messages]
    outcomes = commit_together(writer, *changes)
    assert [version_of(each).version for each in outcomes] == [2, 2, 3, 2]
    assert version_of(outcomes[0]).message == f"{messages[0]}; {messages[1]}"


def test_metadata_that_contradicts_waits_for_the_next_version(world: World, writer: Writer) -> None:
    entry = table(world)
    notes = [Note("", metadata) for metadata in ({"job": "a"}, {"job": "b"}, {"run": "1"}, {}, {"job": "a", "x": "y"})]
    changes = [writer.change(append(entry, f"f{number}"), note=note) for number, note in enumerate(notes)]
    outcomes = commit_together(writer, *changes)
    assert [version_of(each).version for each in outcomes] == [2, 3, 2, 2, 2]
    assert version_of(outcomes[0]).metadata == {"job": "a", "run": "1", "x": "y"}
    told = [each.entry for each in outcomes if isinstance(each, Committed)]
    assert [each.metadata for each in told if each] == [note.metadata for note in notes]


def test_threads_that_commit_at_the_same_time_all_commit(world: World, writer: Writer) -> None:
    """The first one's pointer waits until all others have joined: one group of all of them follows."""
    entry, done = table(world), list[int]()
    changes = [writer.change(append(entry, f"f{number}")) for number in range(16)]

    def work(number: int) -> None:
        manifest = commit(writer.head, changes[number], writer.uploads()).manifest
        assert manifest is not None
        done.append(manifest.version)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 16)]

    def join_all() -> None:
        for thread in threads:
            thread.start()
        while writer.head.queue.last_number < 16:
            threading.Event().wait(0.001)

    writer.store.script.append(meanwhile(join_all))
    work(0)
    for thread in threads:
        thread.join()
    assert sorted(done) == [2] + [3] * 15
    assert len(paths(table(world))) == 16
    assert len(writer.store.puts) == 4
