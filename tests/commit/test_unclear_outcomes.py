"""What a writer says of its commit when the store's answers are lost, late, doubled or wrong."""

from __future__ import annotations

import pytest

from dolmen.base.runtime import POINTER_PUT
from dolmen.entries.segments.live import LiveFiles
from dolmen.errors import AccessDeniedError, StoreUnavailableError, UnknownOutcomeError
from dolmen.format.layout import POINTER
from support.commit_world import (
    World,
    append,
    deny,
    is_refused,
    land_late,
    lose_the_request,
    lose_the_response,
    meanwhile,
    paths,
    refuse_409,
    retry_below,
    table,
)


def test_a_lost_response_is_not_reported_as_failure(world: World) -> None:
    writer = world.writer()
    writer.store.script.append(lose_the_response)
    done = writer.commit(append(table(world), "a"))
    assert done.manifest is not None
    assert (done.manifest.version, done.attempts) == (2, 1)
    assert paths(table(world)) == ["a"]


def test_a_lost_request_is_sent_again_with_the_same_body(world: World) -> None:
    writer = world.writer()
    writer.store.script += [lose_the_request, lose_the_request]
    done = writer.commit(append(table(world), "a"))
    assert done.manifest is not None
    assert len(writer.store.pointer_puts) == 3
    assert len(set(writer.store.pointer_puts)) == 1
    assert paths(table(world)) == ["a"]


def test_a_412_from_the_own_earlier_write_is_recognised(world: World) -> None:
    writer = world.writer()
    writer.store.script.append(retry_below)
    done = writer.commit(append(table(world), "a"))
    assert done.manifest is not None
    assert done.manifest.version == 2
    assert [manifest.version for manifest in world.chain()] == [1, 2]


def test_a_late_put_that_lands_during_the_resend_is_recognised(world: World) -> None:
    writer = world.writer()
    writer.store.script += [land_late, meanwhile(lambda: writer.store.land())]
    done = writer.commit(append(table(world), "a"))
    assert done.manifest is not None
    assert paths(table(world)) == ["a"]
    assert world.newest.version == 2


def test_a_late_put_cannot_land_after_the_resend_did(world: World) -> None:
    writer = world.writer()
    writer.store.script.append(land_late)
    writer.commit(append(table(world), "a"))
    assert is_refused(writer.store.land())
    assert paths(table(world)) == ["a"]


def test_a_409_means_that_nothing_landed_and_is_tried_again(world: World) -> None:
    writer = world.writer()
    writer.store.script += [refuse_409, refuse_409]
    assert writer.commit(append(table(world), "a")).manifest is not None
    writer.store.script += [refuse_409] * POINTER_PUT.tries
    with pytest.raises(StoreUnavailableError):
        writer.commit(append(table(world), "b"))
    assert paths(table(world)) == ["a"]


def test_a_commit_without_any_answer_is_unknown_and_may_still_land(world: World) -> None:
    writer = world.writer()
    writer.store.script += [land_late] + [lose_the_request] * (POINTER_PUT.tries - 1)
    with pytest.raises(UnknownOutcomeError) as caught:
        writer.commit(append(table(world), "a"))
    assert paths(table(world)) == []
    writer.store.land()
    assert paths(table(world)) == ["a"]
    assert world.newest.commit_id == caught.value.commit_id


def test_nothing_is_cleaned_up_after_an_unknown_outcome(world: World) -> None:
    writer = world.writer()
    writer.store.script += [lose_the_request] * POINTER_PUT.tries
    before = set(world.bucket.objects)
    with pytest.raises(UnknownOutcomeError):
        writer.commit(append(table(world), "a"))
    assert before < set(world.bucket.objects)


def test_an_error_while_an_earlier_put_is_unknown_is_unknown_too(world: World) -> None:
    writer = world.writer()
    writer.store.script += [land_late, deny]
    with pytest.raises(UnknownOutcomeError):
        writer.commit(append(table(world), "a"))
    writer.store.land()
    assert paths(table(world)) == ["a"]


def test_an_error_of_the_first_put_is_raised_as_it_is(world: World) -> None:
    writer = world.writer()
    writer.store.script.append(deny)
    with pytest.raises(AccessDeniedError):
        writer.commit(append(table(world), "a"))
    assert world.newest.version == 1


def test_a_409_after_an_unknown_put_does_not_make_it_known(world: World) -> None:
    writer = world.writer()
    writer.store.script += [land_late] + [refuse_409] * (POINTER_PUT.tries - 1)
    with pytest.raises(UnknownOutcomeError):
        writer.commit(append(table(world), "a"))


def test_landed_then_overtaken_by_another_writer_is_still_ours(world: World) -> None:
    writer, other = world.writer(), world.writer()
    writer.store.script.append(
        lambda store, perform: (lose_the_response(store, perform), other.commit(append(table(world), "b")))[0]
    )
    done = writer.commit(append(table(world), "a"))
    assert done.manifest is not None
    assert done.manifest.version == 2
    assert paths(table(world)) == ["a", "b"]


def test_overtaken_without_landing_is_theirs_and_rebased(world: World) -> None:
    writer, other = world.writer(), world.writer()
    writer.store.script.append(meanwhile(lambda: other.commit(append(table(world), "b")), then=lose_the_request))
    done = writer.commit(append(table(world), "a"))
    assert done.manifest is not None
    assert (done.manifest.version, done.attempts) == (3, 2)
    assert paths(table(world)) == ["b", "a"]


@pytest.mark.parametrize("more", [1, 63, 64, 65, 300])
def test_a_lost_response_followed_by_many_commits_is_found_in_history(world: World, more: int) -> None:
    world.shrink_roots()
    writer, other = world.writer(), world.writer()

    def overtaken(store: object, perform: object) -> object:
        outcome = lose_the_response(store, perform)  # type: ignore[arg-type]
        for number in range(more):
            other.commit(append(table(world), f"b{number}"))
        return outcome

    writer.store.script.append(overtaken)  # type: ignore[arg-type]
    done = writer.commit(append(table(world), "a"))
    assert done.manifest is not None
    assert done.manifest.version == 3
    assert sum(each.uuid == "a" for each in LiveFiles.of(table(world), other.head.segments)) == 1
    assert world.newest.version == 3 + more


def test_what_the_unreadable_chain_hides_is_unknown_and_never_theirs(world: World) -> None:
    world.shrink_roots()
    writer, other = world.writer(), world.writer()
    newest: list[str] = []

    def overtaken(store: object, perform: object) -> object:
        outcome = lose_the_response(store, perform)  # type: ignore[arg-type]
        for number in range(200):
            other.commit(append(table(world), f"b{number}"))
        newest.append(world.newest.key)
        return outcome

    writer.head.refresh()
    writer.store.script.append(overtaken)  # type: ignore[arg-type]
    writer.store.unreadable = lambda key: bool(newest) and key not in (POINTER, newest[0])
    with pytest.raises(UnknownOutcomeError):
        writer.commit(append(table(world), "a"))
    assert sum(each.uuid == "a" for each in LiveFiles.of(table(world), other.head.segments)) == 1


def test_an_unreadable_pointer_after_a_refusal_proves_nothing(world: World) -> None:
    writer = world.writer()
    writer.head.refresh()

    def broken(store: object, perform: object) -> object:
        outcome = retry_below(store, perform)  # type: ignore[arg-type]
        writer.store.unreadable = lambda key: True
        return outcome

    writer.store.script.append(broken)  # type: ignore[arg-type]
    with pytest.raises(UnknownOutcomeError):
        writer.commit(append(table(world), "a"))
    assert paths(table(world)) == ["a"]


def test_the_first_commit_of_a_database_survives_a_lost_response() -> None:
    world = World()
    writer = world.writer()
    writer.store.script.append(lose_the_response)
    writer.create()
    assert world.newest.version == 1


def test_two_first_commits_make_two_versions() -> None:
    world = World()
    first, second = world.writer(), world.writer()
    second.head.refresh()
    first.create("a")
    second.create("b")
    assert sorted(world.newest.tables) == ["a", "b"]
    assert world.newest.version == 2


def test_a_manifest_whose_put_got_no_answer_is_sent_again(world: World) -> None:
    writer = world.writer()
    writer.head.refresh()
    lost: list[str] = []
    put = writer.store.put

    def flaky(key: str, body: bytes, *, if_match: str | None = None) -> object:
        outcome = put(key, body, if_match=if_match)
        if key.startswith("manifest/") and not lost:
            lost.append(key)
            return lose_the_request(writer.store, lambda: outcome)
        return outcome

    writer.store.put = flaky  # type: ignore[method-assign, assignment]
    assert writer.commit(append(table(world), "a")).manifest is not None
    assert writer.store.puts.count(lost[0]) == 2
    assert paths(table(world)) == ["a"]
