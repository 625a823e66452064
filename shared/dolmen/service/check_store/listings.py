"""Checks of many objects: listings, deletes, and unusual keys."""

from __future__ import annotations

import random
from functools import partial

from dolmen.base.units import MINUTE_US
from dolmen.errors import ObjectNotFoundError
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
from dolmen.store.base import ObjectStore

CHECKS: list[Check] = []
check = collector(CHECKS)

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

_LISTS = (
    "gc and ingest list objects: some would be missed, and never be deleted or ingested. Reads and commits don't list"
)
_SIGNED_US = 15 * MINUTE_US


@check(_LISTS, needs=[Need.LIST])
def a_listing_is_in_key_order_with_sizes_and_times(sandbox: Sandbox) -> None:
    """Objects are listed in the order of their keys' bytes, as a get and a HEAD show them."""
    before = sandbox.again(None)
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
        expect(-2 * MINUTE_US < late < _SIGNED_US, f"{info.key!r} was written {late / 1e6:.0f} s after it was")


@check(_LISTS, needs=[Need.LIST])
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


@check(_LISTS, needs=[Need.LIST])
def start_after_names_the_last_key_that_is_not_wanted(sandbox: Sandbox) -> None:
    """A listing may begin after any text, whether it is a key or not."""
    names = sorted(["a/1", "a/2", "a/22/3", "a-1", "b/1/2/3", "b/1/2/4", "b/2", "c"])
    for name in names:
        put(sandbox.store, name)
    for start in [*names, "", "a", "a/", "a/2x", "b/1", "b/1/", "b/1/2/3x", "b/1/z", "zz", "0"]:
        after = [name for name in names if name > start]
        equal(keys(sandbox.store, "", start), after, f"after {start!r}")
        under = [name for name in after if name.startswith("b/")]
        equal(keys(sandbox.store, "b/", start), under, f"b/* after {start!r}")


@check(_LISTS, needs=[Need.LIST])
def a_listing_of_random_keys_is_what_a_sorted_set_gives(sandbox: Sandbox) -> None:
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


@check(_LISTS, needs=[Need.LIST, Need.DELETE])
def a_listing_of_several_pages_is_whole_and_so_is_a_delete(sandbox: Sandbox) -> None:
    """A listing and a delete cover all objects, even if these do not fit into one response."""
    names = [f"page/{number:05}" for number in range(sandbox.load.listed)]

    def create(number: int) -> None:
        for name in names[number :: sandbox.load.writers]:
            sandbox.go_on()
            put(sandbox.store, name)

    sandbox.at_once(create, sandbox.load.writers)
    equal(keys(sandbox.store, "page/"), names, "the listing")
    equal(set(errors(sandbox.store.delete(names))), {None}, "deleting all of them")
    equal(keys(sandbox.store), [], "afterwards there are")


@check("a fault of dolmen: please report it", needs=[Need.LIST, Need.DELETE])
def an_empty_store_lists_nothing_and_is_not_made_by_reading(sandbox: Sandbox) -> None:
    """A listing of an unused prefix is empty, and reading creates nothing."""
    equal(keys(sandbox.store), [], "a listing of nothing")
    raises(ObjectNotFoundError, "reading", lambda: sandbox.store.get("_latest_manifest"))
    equal(errors(sandbox.store.delete(["x"])), [None], "deleting what is not there")
    equal(keys(sandbox.store), [], "afterwards")


@check(
    "files with such names could not be ingested; dolmen's own names are plain",
    harmless=True,
    needs=[Need.LIST, Need.DELETE],
)
def odd_keys_survive_every_verb(sandbox: Sandbox) -> None:
    """Keys with spaces, signs, control characters and any script stay the same."""
    store = sandbox.store
    for number, key in enumerate(ODD_KEYS):
        put(store, key, str(number).encode())
    equal(keys(store), sorted(ODD_KEYS), "the listing")
    for number, key in enumerate(ODD_KEYS):
        _survives(store, key, str(number).encode())
    equal(errors(store.delete(ODD_KEYS)), [None] * len(ODD_KEYS), "deleting them")
    equal(keys(store), [], "afterwards there are")


def _survives(store: ObjectStore, key: str, body: bytes) -> None:
    equal(store.get(key).body, body, f"{key!r} holds")
    equal(store.head(key).key, key, "the key of a HEAD")
    equal(keys(store, key), [key], f"{key!r}*")
    equal(keys(store, "", key), [name for name in sorted(ODD_KEYS) if name > key], f"after {key!r}")
    with store.open_input(key) as file:
        equal(file.read(), body, f"{key!r} as a file holds")


@check("gc would take objects for deleted that are still there, and paid for", needs=[Need.DELETE, Need.LIST])
def each_key_of_a_delete_has_its_outcome_in_order(sandbox: Sandbox) -> None:
    """A delete of many keys reports on each; absent keys count as deleted."""
    store = sandbox.store
    for name in ("a", "b/c", "d"):
        put(store, name)
    outcomes = [(each.key, each.error) for each in store.delete(["d", "absent", "b/c", "d"])]
    equal(outcomes, [("d", None), ("absent", None), ("b/c", None), ("d", None)], "the outcomes")
    equal(keys(store), ["a"], "what is left")
    equal(list(store.delete([])), [], "deleting nothing")
