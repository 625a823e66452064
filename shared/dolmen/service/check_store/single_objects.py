"""Checks of single objects: conditions, reading back, ranges, ETags, the clock."""

from __future__ import annotations

import random

from dolmen.base.runtime import Runtime
from dolmen.errors import CorruptionError, InputError, ObjectChangedError, ObjectNotFoundError
from dolmen.service.check_store.contract import (
    Check,
    Need,
    Sandbox,
    collector,
    equal,
    errors,
    expect,
    keys,
    put,
    raises,
)
from dolmen.store.base import Buffer, ObjectStore, PreconditionFailed, Stored, create

CHECKS: list[Check] = []
check = collector(CHECKS)

_NO_CREATE = "If-None-Match is ignored: a commit could replace another one's manifest. Do not use this store"
_NO_REPLACE = "If-Match is ignored: of two commits at once one would be lost. Do not use this store"
_SIGNED_MINUTES = 15


@check("conditional writes do not work: commits would be lost. Do not use this store")
def a_new_object_can_be_created_and_read(sandbox: Sandbox) -> None:
    """An object is read back as it was put, with the same ETag from every verb."""
    store = sandbox.store
    etag = put(store, "a/b", b"content")
    equal(store.get("a/b").body, b"content", "what was put comes back as")
    found = [store.get("a/b").etag, store.head("a/b").etag]
    equal(found, [etag] * 2, "ETags of get and head")
    equal(store.head("a/b").size, 7, "the size that a HEAD tells")


@check(_NO_CREATE)
def create_needs_a_free_key(sandbox: Sandbox) -> None:
    """A put with If-None-Match: * is refused where an object exists, and changes nothing."""
    store = sandbox.store
    put(store, "key", b"first")
    equal(store.put("key", b"second"), PreconditionFailed(), "creating it again")
    equal(store.put("key", b"first"), PreconditionFailed(), "creating it again with the same body")
    equal(store.get("key").body, b"first", "afterwards it holds")


@check(_NO_REPLACE)
def a_replacement_needs_the_etag_that_is_there(sandbox: Sandbox) -> None:
    """A put with If-Match replaces exactly the object with that ETag."""
    store = sandbox.store
    first = put(store, "key", b"first")
    second = put(store, "key", b"second", first)
    equal(store.put("key", b"third", if_match=first), PreconditionFailed(), "replacing what was replaced")
    equal(store.get("key").body, b"second", "afterwards it holds")
    put(store, "key", b"third", second)
    equal(store.get("key").body, b"third", "after a replacement it holds")


@check(_NO_REPLACE)
def if_match_on_an_absent_key_is_refused(sandbox: Sandbox) -> None:
    """A put with If-Match creates no object."""
    etag = put(sandbox.store, "other", b"x")
    equal(sandbox.store.put("absent", b"x", if_match=etag), PreconditionFailed(), "replacing what is not there")
    raises(ObjectNotFoundError, "reading it", lambda: sandbox.store.get("absent"))


@check(_NO_REPLACE, needs=[Need.DELETE])
def a_deleted_key_can_be_created_but_not_replaced(sandbox: Sandbox) -> None:
    """Conditions take account of deletes."""
    store = sandbox.store
    etag = put(store, "dir/key", b"x")
    equal(errors(store.delete(["dir/key"])), [None], "deleting it")
    equal(store.put("dir/key", b"y", if_match=etag), PreconditionFailed(), "replacing what was deleted")
    put(store, "dir/key", b"z")
    equal(store.get("dir/key").body, b"z", "created again it holds")


@check("a reader could take a new commit for the one it knows: commits would be missed")
def different_bodies_never_share_an_etag(sandbox: Sandbox) -> None:
    """Objects that replace each other in quick succession have different ETags, whether small or large."""
    for key, size in (("pointer", 1), ("large", 10_000)):
        seen = {etag := put(sandbox.store, key, bytes(size))}
        for number in range(1, 30):
            etag = put(sandbox.store, key, bytes([number]) * size, etag)
            expect(etag not in seen, f"the {number + 1}th body of {key!r} has the ETag {etag} of an earlier one")
            seen.add(etag)


@check("data would come back damaged. Do not use this store")
def bodies_of_any_size_keep_their_bytes(sandbox: Sandbox) -> None:
    """Empty, small and large bodies of every buffer type come back as they were."""
    for size in (0, 1, 4096, 4097, 100_000):
        body = random.Random(size).randbytes(size)
        kinds: dict[str, Buffer] = {"bytes": body, "array": bytearray(body), "view": memoryview(body)}
        for kind, buffer in kinds.items():
            outcome = sandbox.store.put(f"{kind}/{size}", buffer)
            expect(isinstance(outcome, Stored), f"putting {size} bytes: {outcome}")
            found = sandbox.store.get(f"{kind}/{size}")
            expect(found.body == body, f"{size} bytes come back as {len(found.body)}, or others")
            equal(sandbox.store.head(f"{kind}/{size}").etag, found.etag, "the ETag of a HEAD")


@check("scans read ranges of files: they would fail or read wrong rows")
def a_range_ends_before_its_end_and_is_cut_at_the_objects(sandbox: Sandbox) -> None:
    """Ranges give exactly their bytes, and nothing beyond the object's end."""
    store = sandbox.store
    etag = put(store, "digits", b"0123456789")
    ranges = [(0, 3), (3, 7), (0, 10), (9, 10), (7, 50), (10, 20), (30, 40), (0, 0), (4, 4)]
    for first, end in ranges:
        for found in (store.get("digits", (first, end)), store.get("digits", (first, end), etag=etag)):
            equal((found.body, found.etag), (b"0123456789"[first:end], etag), f"bytes {first} to {end} of 10")
    for wrong in ((-1, 3), (5, 4)):
        raises(InputError, f"a range {wrong}", lambda wrong=wrong: store.get("digits", wrong))  # type: ignore[misc]
    etag = put(store, "empty", b"")
    equal(store.get("empty", (0, 100)), store.get("empty"), "a range of an empty object")
    equal(store.get("empty").etag, etag, "the ETag of an empty object")


@check("what is not there would look like damage, or the other way round")
def an_absent_object_is_not_found_by_any_verb(sandbox: Sandbox) -> None:
    """A missing object is reported as missing, and not as any other error."""
    store = sandbox.store
    put(store, "there/is", b"x")
    for key in ("absent", "there", "there/is/not", "there/i"):
        asked = {
            "get": lambda key=key: store.get(key),
            "head": lambda key=key: store.head(key),
            "open": lambda key=key: store.open_input(key),
            "an empty range": lambda key=key: store.get(key, (0, 0)),
            "a range": lambda key=key: store.get(key, (5, 9)),
        }
        for verb, ask in asked.items():
            error = raises(ObjectNotFoundError, f"{verb} of {key!r}", ask)
            equal(getattr(error, "key", None), key, "the key that is not found")
            expect(isinstance(error, LookupError), "what is not found is no LookupError")


@check("files that are overwritten while they are read might be mixed up")
def get_by_etag_reads_only_that_object(sandbox: Sandbox) -> None:
    """A get with If-Match is refused once the object was replaced."""
    store = sandbox.store
    old = put(store, "key", b"old")
    equal(store.get("key", etag=old).body, b"old", "by its ETag it is")
    new = put(store, "key", b"new", old)
    for part in (None, (0, 2), (1, 1), (7, 9)):
        raises(ObjectChangedError, f"{part} of what was replaced", lambda part=part: store.get("key", part, etag=old))  # type: ignore[misc]
    equal(store.get("key", (0, 2), etag=new).body, b"ne", "by its new ETag it is")


@check("a notice of an upload names a version: another one might be ingested in its place", harmless=True)
def a_version_that_the_store_does_not_keep_is_not_found(sandbox: Sandbox) -> None:
    """A version that does not exist is not found."""
    store = sandbox.store
    put(store, "key", b"x")
    version = "3HL4kqtJlcpXroDTDmJ-rmSpXd3dIbrHY"
    raises(ObjectNotFoundError, "get", lambda: store.get("key", version=version))
    raises(ObjectNotFoundError, "head", lambda: store.head("key", version=version))
    raises(ObjectNotFoundError, "open", lambda: store.open_input("key", version=version))


@check("a fault of dolmen: please report it")
def an_empty_key_is_refused(sandbox: Sandbox) -> None:
    """An empty key is an input error."""
    raises(InputError, "putting it", lambda: sandbox.store.put("", b"x"))
    raises(InputError, "streaming to it", lambda: sandbox.store.open_output(""))


@check("a writer whose answer was lost could not tell its own object from another's")
def create_makes_an_object_once_and_knows_its_own(sandbox: Sandbox) -> None:
    """Creating an object twice with the same bytes is one creation; with other bytes it is an error."""
    create(sandbox.store, "mine", b"body", Runtime())
    create(sandbox.store, "mine", b"body", Runtime())
    raises(CorruptionError, "creating it with other bytes", lambda: create(sandbox.store, "mine", b"other", Runtime()))
    equal(sandbox.store.get("mine").body, b"body", "afterwards it holds")


@check("commit times and the age of garbage come from the store's clock: commits would be refused")
def every_answer_shows_the_servers_clock(sandbox: Sandbox) -> None:
    """Each response has a Date header, errors included, and it is close to this machine's time."""
    runtime = Runtime()
    store = sandbox.again(runtime)
    equal(store.clock.reading(), (0, float("inf")), "before any answer the clock shows")
    verbs = {
        "a get of what is not there": lambda: raises(ObjectNotFoundError, "get", lambda: store.get("absent")),
        "a put": lambda: store.put("key", b"x"),
        "a put that is refused": lambda: store.put("key", b"x"),
        "a replacement of what is not there": lambda: store.put("absent", b"x", if_match='"0"'),
        "a get": lambda: store.get("key"),
        "a head": lambda: store.head("key"),
    }
    for verb, call in verbs.items():
        _check_dated(store, runtime, verb, call)


@check("commit times and the age of garbage come from the store's clock", needs=[Need.LIST, Need.DELETE])
def listings_and_deletes_show_it_too(sandbox: Sandbox) -> None:
    """Responses to a listing and to a delete have a Date header."""
    runtime = Runtime()
    store = sandbox.again(runtime)
    put(store, "key")
    _check_dated(store, runtime, "a listing", lambda: keys(store))
    _check_dated(store, runtime, "a delete", lambda: store.delete(["key"]))


def _check_dated(store: ObjectStore, runtime: Runtime, verb: str, call: object) -> None:
    began = runtime.monotonic()
    assert callable(call)
    call()
    now_us, age = store.clock.reading()
    expect(age <= runtime.monotonic() - began, f"the answer to {verb} has no Date")
    off = (now_us - runtime.clock_us()) / 60e6
    expect(abs(off) < _SIGNED_MINUTES, f"the clock of the store is {off:.0f} minutes off this machine's")
