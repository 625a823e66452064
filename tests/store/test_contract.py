"""Every promise of ``dolmen.store.base``, on every store."""

from __future__ import annotations

import io
import random
import time
from contextlib import suppress
from pathlib import Path

import pytest

from dolmen.errors import CorruptionError, InputError, ObjectChangedError, ObjectNotFoundError
from dolmen.runtime import Runtime
from dolmen.store import ObjectStore, PreconditionFailed, Stored, create
from support.stores import KINDS, PART_BYTES, at_once, keys, make_store, put, reopened

ODD_KEYS = [
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
]


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return make_store(request.param, tmp_path, lambda server: request.getfixturevalue(f"{server}_url"))


# ---- get and head


def test_what_was_put_is_read_back_with_its_etag(store: ObjectStore) -> None:
    etag = put(store, "a/b", b"content")
    assert store.get("a/b").body == b"content"
    assert store.get("a/b").etag == store.head("a/b").etag == next(store.list("a")).etag == etag
    assert store.head("a/b").size == next(store.list("a")).size == 7


@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 100_000])
def test_bodies_of_any_size_and_buffer_type_keep_their_bytes_and_etag(store: ObjectStore, size: int) -> None:
    body = random.Random(size).randbytes(size)
    outcomes = [store.put("bytes", body), store.put("array", bytearray(body)), store.put("view", memoryview(body))]
    for key, outcome in zip(["bytes", "array", "view"], outcomes, strict=True):
        assert isinstance(outcome, Stored)
        assert store.get(key).body == body
        assert {store.get(key).etag, store.head(key).etag, next(store.list(key)).etag} == {outcome.etag}


@pytest.mark.parametrize(
    ("byte_range", "expected"),
    [
        ((0, 3), b"012"),
        ((3, 7), b"3456"),
        ((0, 10), b"0123456789"),
        ((9, 10), b"9"),
        ((7, 50), b"789"),
        ((10, 20), b""),
        ((30, 40), b""),
        ((0, 0), b""),
        ((4, 4), b""),
    ],
)
def test_a_range_ends_before_its_end_and_is_cut_at_the_objects(
    store: ObjectStore, byte_range: tuple[int, int], expected: bytes
) -> None:
    etag = put(store, "digits", b"0123456789")
    found = store.get("digits", byte_range)
    assert (found.body, found.etag) == (expected, etag)
    assert store.get("digits", byte_range, etag=etag).body == expected


def test_a_range_of_an_empty_object_is_empty(store: ObjectStore) -> None:
    etag = put(store, "empty", b"")
    assert store.get("empty", (0, 100)) == store.get("empty")
    assert store.get("empty").etag == etag


@pytest.mark.parametrize("byte_range", [(-1, 3), (5, 4)])
def test_a_range_that_is_none_is_refused(store: ObjectStore, byte_range: tuple[int, int]) -> None:
    put(store, "digits", b"0123456789")
    with pytest.raises(InputError):
        store.get("digits", byte_range)


def test_an_absent_object_is_not_found_by_any_verb(store: ObjectStore) -> None:
    put(store, "there/is", b"x")
    for key in ("absent", "there", "there/is/not", "there/i"):
        for ask in (
            store.get,
            store.head,
            store.open_input,
            lambda k: store.get(k, (0, 0)),
            lambda k: store.get(k, (5, 9)),
        ):
            with pytest.raises(ObjectNotFoundError) as caught:
                ask(key)
            assert caught.value.key == key
            assert isinstance(caught.value, LookupError)


def test_a_version_that_the_store_does_not_keep_is_not_found(store: ObjectStore) -> None:
    put(store, "key", b"x")
    for ask in (store.get, store.head, store.open_input):
        with pytest.raises(ObjectNotFoundError):
            ask("key", version="3HL4kqtJlcpXroDTDmJ-rmSpXd3dIbrHY")  # type: ignore[operator]


def test_get_by_etag_reads_only_that_object(store: ObjectStore) -> None:
    old = put(store, "key", b"old")
    assert store.get("key", etag=old).body == b"old"
    new = store.put("key", b"new", if_match=old)
    assert isinstance(new, Stored)
    for byte_range in (None, (0, 2), (1, 1), (7, 9)):
        with pytest.raises(ObjectChangedError):
            store.get("key", byte_range, etag=old)
    assert store.get("key", (0, 2), etag=new.etag).body == b"ne"


# ---- put


def test_create_needs_a_free_key_and_a_refused_one_changes_nothing(store: ObjectStore) -> None:
    put(store, "key", b"first")
    assert store.put("key", b"second") == PreconditionFailed()
    assert store.put("key", b"first") == PreconditionFailed()
    assert store.get("key").body == b"first"


def test_a_replacement_needs_the_etag_that_is_there(store: ObjectStore) -> None:
    first = put(store, "key", b"first")
    second = store.put("key", b"second", if_match=first)
    assert isinstance(second, Stored)
    assert store.put("key", b"third", if_match=first) == PreconditionFailed()
    assert store.get("key").body == b"second"
    assert isinstance(store.put("key", b"third", if_match=second.etag), Stored)
    assert store.get("key").body == b"third"


def test_if_match_on_an_absent_key_is_a_failed_precondition(store: ObjectStore) -> None:
    etag = put(store, "other", b"x")
    assert store.put("absent", b"x", if_match=etag) == PreconditionFailed()
    assert keys(store) == ["other"]


def test_a_deleted_key_can_be_created_but_not_replaced(store: ObjectStore) -> None:
    etag = put(store, "dir/key", b"x")
    store.delete(["dir/key"])
    assert store.put("dir/key", b"y", if_match=etag) == PreconditionFailed()
    assert isinstance(store.put("dir/key", b"z"), Stored)
    assert store.get("dir/key").body == b"z"


def test_small_objects_with_different_bodies_never_share_an_etag(store: ObjectStore) -> None:
    seen = {etag := put(store, "pointer", b"{0}")}
    for number in range(1, 30):
        outcome = store.put("pointer", b"{%d}" % number, if_match=etag)
        assert isinstance(outcome, Stored)
        etag = outcome.etag
        assert etag not in seen
        seen.add(etag)


def test_large_objects_replaced_in_quick_succession_do_not_either(store: ObjectStore) -> None:
    seen = {etag := put(store, "large", bytes(10_000))}
    for number in range(1, 30):
        outcome = store.put("large", bytes([number]) * 10_000, if_match=etag)
        assert isinstance(outcome, Stored)
        etag = outcome.etag
        assert etag not in seen
        seen.add(etag)


def test_an_empty_key_is_refused(store: ObjectStore) -> None:
    with pytest.raises(InputError):
        store.put("", b"x")
    with pytest.raises(InputError):
        store.open_output("")


# ---- list


def test_a_listing_is_in_key_order_with_sizes_and_times(store: ObjectStore) -> None:
    before = time.time()
    names = ["b", "a/b/c", "a-b/x", "a/b-c", "a.x", "a/z", "a0", "B", "é", "z/1", "z/10", "z/2", "a/b/d/e", "aa/x"]
    for number, name in enumerate(names):
        put(store, name, bytes(number))
    found = list(store.list(""))
    assert [info.key for info in found] == sorted(names)
    assert {info.key: info.size for info in found} == {name: number for number, name in enumerate(names)}
    assert all(before - 2 <= info.last_modified_us / 1e6 <= time.time() + 2 for info in found)


def test_a_prefix_is_of_the_key_and_not_of_a_directory(store: ObjectStore) -> None:
    for name in ("data/t1/a", "data/t1/b", "data/t10/c", "data/t", "database/x", "dat"):
        put(store, name)
    assert keys(store, "data/t1/") == ["data/t1/a", "data/t1/b"]
    assert keys(store, "data/t1") == ["data/t1/a", "data/t1/b", "data/t10/c"]
    assert keys(store, "data/t1/a") == ["data/t1/a"]
    assert keys(store, "data") == ["data/t", "data/t1/a", "data/t1/b", "data/t10/c", "database/x"]
    assert keys(store, "nothing/here") == keys(store, "data/t1/a/") == []


def test_start_after_names_the_last_key_that_is_not_wanted(store: ObjectStore) -> None:
    names = sorted(["a/1", "a/2", "a/2/3".replace("2/3", "22/3"), "a-1", "b/1/2/3", "b/1/2/4", "b/2", "c"])
    for name in names:
        put(store, name)
    for start in [*names, "", "a", "a/", "a/2x", "b/1", "b/1/", "b/1/2/3x", "b/1/z", "zz", "0"]:
        assert keys(store, "", start) == [name for name in names if name > start], start
        assert keys(store, "b/", start) == [name for name in names if name > start and name.startswith("b/")], start


def test_a_listing_of_random_keys_is_what_a_sorted_set_gives(store: ObjectStore) -> None:
    dice = random.Random(7)
    files = {
        "/".join(dice.choice(["a", "b", "a-", "a.b", "é", "a0"]) for _ in range(dice.randint(1, 4))) for _ in range(60)
    }
    names = sorted(name for name in files if not any(other.startswith(name + "/") for other in files))
    for name in names:
        put(store, name)
    for _ in range(30):
        prefix, start = (dice.choice(names)[: dice.randint(0, 6)] for _ in range(2))
        assert keys(store, prefix, start) == [n for n in names if n.startswith(prefix) and n > start], (prefix, start)


def test_an_empty_store_lists_nothing_and_is_not_made_by_reading(store: ObjectStore, tmp_path: Path) -> None:
    assert keys(store) == []
    with pytest.raises(ObjectNotFoundError):
        store.get("_latest_manifest")
    assert [outcome.error for outcome in store.delete(["x"])] == [None]
    assert list(tmp_path.iterdir()) == []


def test_odd_keys_survive_every_verb(store: ObjectStore) -> None:
    for number, key in enumerate(ODD_KEYS):
        put(store, key, str(number).encode())
    assert keys(store) == sorted(ODD_KEYS)
    for number, key in enumerate(ODD_KEYS):
        assert store.get(key).body == str(number).encode()
        assert store.head(key).key == key
        assert keys(store, key) == [key]
        later = [name for name in sorted(ODD_KEYS) if name > key]
        assert keys(store, "", key) == later
        with store.open_input(key) as file:
            assert file.read() == str(number).encode()
    assert [outcome.error for outcome in store.delete(ODD_KEYS)] == [None] * len(ODD_KEYS)
    assert keys(store) == []


# ---- delete


def test_each_key_of_a_delete_has_its_outcome_in_order_and_absent_ones_are_gone(store: ObjectStore) -> None:
    for name in ("a", "b/c", "d"):
        put(store, name)
    outcomes = store.delete(["d", "absent", "b/c", "d"])
    assert [(outcome.key, outcome.error) for outcome in outcomes] == [
        ("d", None),
        ("absent", None),
        ("b/c", None),
        ("d", None),
    ]
    assert keys(store) == ["a"]
    assert list(store.delete([])) == []


# ---- many at once


def test_of_many_creators_of_one_key_exactly_one_wins(store: ObjectStore) -> None:
    for race in range(5):
        outcomes = at_once(lambda number, key=f"dir{race}/key": store.put(key, b"%d" % number), 32)  # type: ignore[misc]
        winners = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, Stored)]
        assert len(winners) == 1
        assert outcomes.count(PreconditionFailed()) == 31
        assert store.get(f"dir{race}/key").body == b"%d" % winners[0]


def test_no_update_is_lost_among_32_threads_of_20_increments(store: ObjectStore) -> None:
    put(store, "counter", b"0")

    def increment(number: int) -> None:
        dice = random.Random(number)
        for _ in range(20):
            losses = 0
            while True:
                found = store.get("counter")
                if isinstance(store.put("counter", b"%d" % (int(found.body) + 1), if_match=found.etag), Stored):
                    break
                losses += 1
                time.sleep(dice.uniform(0, min(1.0, 0.2 * 2**losses)))  # 32 writers: else losers make most requests

    at_once(increment, 32)
    assert store.get("counter").body == b"640"


def test_creating_and_deleting_side_by_side_never_fails(store: ObjectStore) -> None:
    def work(number: int) -> None:
        for round_ in range(10):
            key = f"data/2026/{round_ % 2}/{number}"
            assert isinstance(store.put(key, b"x"), Stored)
            assert store.delete([key])[0].error is None

    at_once(work, 8)
    assert keys(store) == []


# ---- the clock


def test_every_answer_shows_the_servers_clock_errors_included(store: ObjectStore) -> None:
    store = reopened(store, Runtime())
    assert store.clock.reading() == (0, float("inf"))

    def absent() -> None:
        with pytest.raises(ObjectNotFoundError):
            store.get("absent")

    verbs = [
        absent,
        lambda: store.put("key", b"x"),
        lambda: store.put("key", b"x"),
        lambda: store.put("absent", b"x", if_match='"0"'),
        lambda: store.get("key"),
        lambda: store.head("key"),
        lambda: keys(store),
        lambda: store.delete(["key"]),
    ]
    for verb in verbs:
        store.clock._last = (0, float("-inf"))
        verb()
        now_us, age = store.clock.reading()
        assert abs(now_us / 1e6 - time.time()) < 60
        assert age < 60


# ---- streamed output


@pytest.mark.parametrize("size", [0, 1, 100_000, 6 << 20, (6 << 20) + 1, 3 * PART_BYTES, 4 * PART_BYTES + 7])
def test_a_streamed_object_is_whole_whatever_its_size(store: ObjectStore, size: int) -> None:
    dice = random.Random(size)
    body = dice.randbytes(size)
    with store.open_output("data/streamed") as output:
        position = 0
        while position < size:
            step = min(dice.choice([1, 1000, 700_000, 8 << 20]), size - position)
            assert output.write(memoryview(body)[position : position + step]) == step
            position += step
            assert keys(store) == []
        assert output.commit() == size
        output.abort()  # does nothing any more
    assert store.get("data/streamed").body == body
    assert store.head("data/streamed").size == size
    assert keys(store) == ["data/streamed"]


@pytest.mark.parametrize("size", [10, 12 << 20])
def test_what_is_not_committed_is_never_seen(store: ObjectStore, size: int) -> None:
    with store.open_output("left") as output:
        output.write(bytes(size))
    aborted = store.open_output("aborted")
    aborted.write(bytes(size))
    aborted.abort()
    aborted.abort()
    with suppress(RuntimeError), store.open_output("raised") as output:
        output.write(bytes(size))
        raise RuntimeError("mine")
    for over in (aborted, output):
        with pytest.raises(ValueError):
            over.write(b"x")
        with pytest.raises(ValueError):
            over.commit()
    assert keys(store) == []


@pytest.mark.parametrize("size", [10, 12 << 20])
def test_a_streamed_object_never_replaces_another(store: ObjectStore, size: int) -> None:
    put(store, "key", b"first")
    with store.open_output("key") as output:
        output.write(bytes(size))
        with pytest.raises(CorruptionError):
            output.commit()
    assert store.get("key").body == b"first"


def test_several_outputs_may_be_open_at_once(store: ObjectStore) -> None:
    outputs = [store.open_output(f"o/{number}") for number in range(3)]
    for number in range(24):
        outputs[number % 3].write(bytes([number]) * (1 << 20))
    assert [output.commit() for output in outputs] == [8 << 20] * 3
    for number in range(3):
        assert store.get(f"o/{number}").body == b"".join(bytes([number + 3 * n]) * (1 << 20) for n in range(8))


def test_create_makes_an_object_once_and_knows_its_own(store: ObjectStore) -> None:
    create(store, "mine", b"body", Runtime())
    create(store, "mine", b"body", Runtime())  # the same bytes: an earlier attempt of one's own
    with pytest.raises(CorruptionError, match="mine"):
        create(store, "mine", b"other", Runtime())
    assert store.get("mine").body == b"body"


# ---- input


def test_an_input_is_a_seekable_file(store: ObjectStore) -> None:
    body = random.Random(1).randbytes(20_000_000)
    with store.open_output("big") as output:
        output.write(body)
        output.commit()
    dice = random.Random(2)
    with store.open_input("big") as file, io.BytesIO(body) as expected:
        assert file.readable()
        assert file.seekable()
        for _ in range(60):
            if dice.random() < 0.5:
                whence = dice.choice([io.SEEK_SET, io.SEEK_CUR, io.SEEK_END])
                offset = dice.randint(0, len(body) + 10) - {io.SEEK_SET: 0, io.SEEK_END: len(body)}.get(
                    whence, file.tell()
                )
                assert file.seek(offset, whence) == expected.seek(offset, whence)
            else:
                size = dice.choice([0, 1, 10, 100_000, 9_000_000])
                assert file.read(size) == expected.read(size)
            assert file.tell() == expected.tell()
        file.seek(0)
        assert file.read() == body
        assert file.read() == b""


def test_an_input_of_an_empty_object_is_at_its_end(store: ObjectStore) -> None:
    put(store, "empty", b"")
    with store.open_input("empty") as file:
        assert file.read() == b""
        assert file.seek(0, io.SEEK_END) == 0


def test_an_input_reads_lines_as_any_file_does(store: ObjectStore) -> None:
    put(store, "lines", b"a,b\n1,2\n3,4")
    with store.open_input("lines") as file:
        assert list(file) == [b"a,b\n", b"1,2\n", b"3,4"]


def test_an_input_opened_by_etag_is_refused_when_the_object_changed(store: ObjectStore) -> None:
    etag = put(store, "key", b"old")
    with store.open_input("key", etag=etag) as file:
        assert file.read() == b"old"
    assert isinstance(store.put("key", b"new", if_match=etag), Stored)
    with pytest.raises(ObjectChangedError):
        store.open_input("key", etag=etag)


def test_an_input_never_mixes_an_object_with_the_one_that_replaced_it(store: ObjectStore) -> None:
    old, new = b"o" * 20_000_000, b"n" * 20_000_000
    with store.open_output("drop.csv") as output:
        output.write(old)
        output.commit()
    with store.open_input("drop.csv") as file:
        begun = file.read(1000)
        assert isinstance(store.put("drop.csv", new, if_match=store.head("drop.csv").etag), Stored)
        try:
            rest = file.read()
        except ObjectChangedError:
            rest = old[1000:]  # said so, which is as good
    assert begun + rest == old


def test_a_store_opened_again_by_its_url_is_the_same_place(store: ObjectStore) -> None:
    put(store, "key", b"x")
    again = reopened(store)
    assert again.url == store.url
    assert again.get("key").body == b"x"


def test_a_local_path_if_there_is_one_holds_the_object(store: ObjectStore) -> None:
    put(store, "dir/key", b"content")
    path = store.local_path("dir/key")
    if path is not None:
        assert Path(path).read_bytes() == b"content"
