"""Checks of small objects, of listings and of deletes."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from dolmen.base.runtime import Runtime
from dolmen.base.units import MINUTE_US
from dolmen.errors import CorruptionError, InputError, ObjectChangedError, ObjectNotFoundError
from dolmen.service.check_store.contract import Grant, Sandbox, check, delete, equal, expect, keys, put, raises
from dolmen.store.base import Buffer, ObjectStore, PreconditionFailed, Stored, create

ODD_KEYS = (
    "plain",
    "with space",
    "plus+and%20percent",
    "quote'\"&<>;=,$@:()[]{}|~`^",
    "hash#question?x=y&z",
    "ünïcödé/名前/🗿.parquet",
    "combining/e\u0301",
    "-dash",
    ".hidden/.file",
    "tab\tand\nnewline",
    "*star*",
    "deep/" + "/".join("abcdefghij"),
    "long/" + "x" * 200,
)

_LISTS = "gc and ingest list objects: some would never be deleted or ingested. Reads and commits don't list"

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
    equal(store.head("a/b").size, 7, "the size in a HEAD")


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


@check(_NO_REPLACE, needs=[Grant.DELETE])
def a_deleted_key_can_be_created_but_not_replaced(sandbox: Sandbox) -> None:
    """Conditions take account of deletes."""
    store = sandbox.store
    etag = put(store, "dir/key", b"x")
    delete(store, "dir/key")
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
            expect(found.body == body, f"{size} bytes come back as {len(found.body)} bytes, or with other content")
            equal(sandbox.store.head(f"{kind}/{size}").etag, found.etag, "the ETag of a HEAD")


@check("scans read ranges of files: they would fail or read wrong rows")
def a_range_excludes_its_end_and_stops_at_the_objects(sandbox: Sandbox) -> None:
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
        calls = {
            "get": lambda key=key: store.get(key),
            "head": lambda key=key: store.head(key),
            "open": lambda key=key: store.open_input(key),
            "an empty range": lambda key=key: store.get(key, (0, 0)),
            "a range": lambda key=key: store.get(key, (5, 9)),
        }
        for verb, call in calls.items():
            error = raises(ObjectNotFoundError, f"{verb} of {key!r}", call)
            equal(getattr(error, "key", None), key, "the key that is not found")
            expect(isinstance(error, LookupError), "what is not found is not a LookupError")


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


@check("a notice of an upload names a version: another one might be ingested in its place", is_harmless=True)
def a_version_that_the_store_does_not_keep_is_not_found(sandbox: Sandbox) -> None:
    """A version that does not exist is not found."""
    store = sandbox.store
    put(store, "key", b"x")
    version = "3HL4kqtJlcpXroDTDmJ-rmSpXd3dIbrHY"
    raises(ObjectNotFoundError, "get", lambda: store.get("key", version=version))
    raises(ObjectNotFoundError, "head", lambda: store.head("key", version=version))
    raises(ObjectNotFoundError, "open", lambda: store.open_input("key", version=version))


@check("a bug in dolmen: please report it")
def an_empty_key_is_refused(sandbox: Sandbox) -> None:
    """An empty key is an input error."""
    raises(InputError, "putting it", lambda: sandbox.store.put("", b"x"))
    raises(InputError, "streaming to it", lambda: sandbox.store.open_output(""))


@check("after a lost response, a writer could not tell its own object from another's")
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
    store = sandbox.reopen(runtime)
    equal(store.clock.reading(), (0, float("inf")), "before any answer the clock shows")
    verbs: dict[str, Callable[[], object]] = {
        "a get of what is not there": lambda: raises(ObjectNotFoundError, "get", lambda: store.get("absent")),
        "a put": lambda: store.put("key", b"x"),
        "a put that is refused": lambda: store.put("key", b"x"),
        "a replacement of what is not there": lambda: store.put("absent", b"x", if_match='"0"'),
        "a get": lambda: store.get("key"),
        "a head": lambda: store.head("key"),
    }
    for verb, call in verbs.items():
        _expect_date(store, runtime, verb, call)


@check("commit times and the age of garbage come from the store's clock", needs=[Grant.LIST, Grant.DELETE])
def listings_and_deletes_show_it_too(sandbox: Sandbox) -> None:
    """Responses to a listing and to a delete have a Date header."""
    runtime = Runtime()
    store = sandbox.reopen(runtime)
    put(store, "key")
    _expect_date(store, runtime, "a listing", lambda: keys(store))
    _expect_date(store, runtime, "a delete", lambda: store.delete(["key"]))


def _expect_date(store: ObjectStore, runtime: Runtime, verb: str, call: Callable[[], object]) -> None:
    began = runtime.monotonic()
    call()
    now_us, age = store.clock.reading()
    expect(age <= runtime.monotonic() - began, f"the answer to {verb} has no Date")
    off = (now_us - runtime.clock_us()) / 60e6
    expect(abs(off) < _SIGNED_MINUTES, f"the clock of the store is {off:.0f} minutes off this machine's")


@check(_LISTS, needs=[Grant.LIST])
def a_listing_is_in_key_order_with_sizes_and_times(sandbox: Sandbox) -> None:
    """Objects are listed in the order of their keys' bytes, as a get and a HEAD show them."""
    before = sandbox.reopen(None)
    put(before, "b")
    began_us = before.clock.now_us
    names = ["b", "a/b/c", "a-b/x", "a/b-c", "a.x", "a/z", "a0", "B", "é", "z/1", "z/10", "z/2", "a/b/d/e", "aa/x"]
    sizes = {name: number or 1 for number, name in enumerate(names)} | {"large": 100_000}
    etags = {name: put(sandbox.store, name, bytes(size)) for name, size in sizes.items() if name != "b"}
    found = list(sandbox.store.list(""))
    equal([info.key for info in found], sorted(sizes), "the keys")
    equal({info.key: info.size for info in found}, sizes, "the sizes")
    equal({info.key: info.etag for info in found if info.key != "b"}, etags, "the ETags")
    for info in found:
        late = info.last_modified_us - began_us
        expect(
            -2 * MINUTE_US < late < _SIGNED_MINUTES * MINUTE_US,
            f"{info.key!r} was written {late / 1e6:.0f} s after it was",
        )


@check(_LISTS, needs=[Grant.LIST])
def a_prefix_is_of_the_key_and_not_of_a_directory(sandbox: Sandbox) -> None:
    """A prefix may end in the middle of a name."""
    for name in ("data/t1/a", "data/t1/b", "data/t10/c", "data/t", "database/x", "dat"):
        put(sandbox.store, name)
    listed = partial(keys, sandbox.store)
    equal(listed("data/t1/"), ["data/t1/a", "data/t1/b"], "data/t1/*")
    equal(listed("data/t1"), ["data/t1/a", "data/t1/b", "data/t10/c"], "data/t1*")
    equal(listed("data/t1/a"), ["data/t1/a"], "data/t1/a*")
    equal(listed("data"), ["data/t", "data/t1/a", "data/t1/b", "data/t10/c", "database/x"], "data*")
    equal(listed("nothing/here"), [], "nothing/here*")
    equal(listed("data/t1/a/"), [], "data/t1/a/*")


@check(_LISTS, needs=[Grant.LIST])
def a_listing_begins_after_any_text(sandbox: Sandbox) -> None:
    """A listing begins after the given text, whether that is a key or not."""
    names = sorted(["a/1", "a/2", "a/22/3", "a-1", "b/1/2/3", "b/1/2/4", "b/2", "c"])
    for name in names:
        put(sandbox.store, name)
    for start in [*names, "", "a", "a/", "a/2x", "b/1", "b/1/", "b/1/2/3x", "b/1/z", "zz", "0"]:
        after = [name for name in names if name > start]
        equal(keys(sandbox.store, "", start), after, f"after {start!r}")
        under = [name for name in after if name.startswith("b/")]
        equal(keys(sandbox.store, "b/", start), under, f"b/* after {start!r}")


@check(_LISTS, needs=[Grant.LIST])
def a_listing_of_random_keys_equals_a_sorted_set(sandbox: Sandbox) -> None:
    """A listing is complete and in order for any keys, prefixes and starts."""
    dice = random.Random(7)
    files = {
        "/".join(dice.choice(["a", "b", "a-", "a.b", "é", "a0"]) for _ in range(dice.randint(1, 4))) for _ in range(60)
    }
    names = sorted(name for name in files if not any(other.startswith(name + "/") for other in files))
    for name in names:
        put(sandbox.store, name)
    for _ in range(30):
        prefix, start = (dice.choice(names)[: dice.randint(0, 6)] for _ in range(2))
        expected = [n for n in names if n.startswith(prefix) and n > start]
        equal(keys(sandbox.store, prefix, start), expected, f"{prefix!r}* after {start!r}")


@check(_LISTS, needs=[Grant.LIST, Grant.DELETE])
def a_listing_of_several_pages_is_whole_and_so_is_a_delete(sandbox: Sandbox) -> None:
    """A listing and a delete cover all objects, even if these do not fit into one response."""
    names = [f"page/{number:05}" for number in range(sandbox.load.listed)]

    def create(number: int) -> None:
        for name in names[number :: sandbox.load.writers]:
            sandbox.raise_if_stopped()
            put(sandbox.store, name)

    sandbox.run_threads(create, sandbox.load.writers)
    equal(keys(sandbox.store, "page/"), names, "the listing")
    delete(sandbox.store, *names)
    equal(keys(sandbox.store), [], "afterwards there are")


@check("a bug in dolmen: please report it", needs=[Grant.LIST, Grant.DELETE])
def an_empty_store_lists_nothing_and_is_not_made_by_reading(sandbox: Sandbox) -> None:
    """A listing of an unused prefix is empty, and reading creates nothing."""
    equal(keys(sandbox.store), [], "a listing of nothing")
    raises(ObjectNotFoundError, "reading", lambda: sandbox.store.get("_latest_manifest"))
    delete(sandbox.store, "x")
    equal(keys(sandbox.store), [], "afterwards")


@check(
    "files with such names could not be ingested; dolmen's own names are plain",
    is_harmless=True,
    needs=[Grant.LIST, Grant.DELETE],
)
def odd_keys_survive_every_verb(sandbox: Sandbox) -> None:
    """Keys with spaces, signs, control characters and any script stay the same."""
    store = sandbox.store
    for number, key in enumerate(ODD_KEYS):
        put(store, key, str(number).encode())
    equal(keys(store), sorted(ODD_KEYS), "the listing")
    for number, key in enumerate(ODD_KEYS):
        _survives(store, key, str(number).encode())
    delete(store, *ODD_KEYS)
    equal(keys(store), [], "afterwards there are")


def _survives(store: ObjectStore, key: str, body: bytes) -> None:
    equal(store.get(key).body, body, f"{key!r} holds")
    equal(store.head(key).key, key, "the key of a HEAD")
    equal(keys(store, key), [key], f"{key!r}*")
    equal(keys(store, "", key), [name for name in sorted(ODD_KEYS) if name > key], f"after {key!r}")
    with store.open_input(key) as file:
        equal(file.read(), body, f"{key!r} as a file holds")


@check("gc would take objects for deleted that are still there, and paid for", needs=[Grant.DELETE, Grant.LIST])
def each_key_of_a_delete_has_its_outcome_in_order(sandbox: Sandbox) -> None:
    """A delete of many keys reports on each; absent keys count as deleted."""
    store = sandbox.store
    for name in ("a", "b/c", "d"):
        put(store, name)
    outcomes = [(each.key, each.error) for each in store.delete(["d", "absent", "b/c", "d"])]
    equal(outcomes, [("d", None), ("absent", None), ("b/c", None), ("d", None)], "the outcomes")
    equal(keys(store), ["a"], "what is left")
    equal(list(store.delete([])), [], "deleting nothing")
