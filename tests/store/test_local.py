"""What is special about LocalStore: durable and atomic on one machine, and confined to its directory."""

from __future__ import annotations

import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from dolmen.base.runtime import Runtime
from dolmen.errors import AccessDeniedError, InputError, ObjectChangedError, ObjectNotFoundError
from dolmen.store import LocalStore, open_store
from dolmen.store.base import TEMPORARY, PreconditionFailed, Stored
from support.stores import keys, put

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "4711"))
KILLS = 60 if os.environ.get("DOLMEN_LONG") else 6


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "root")


# ---- names


@pytest.mark.parametrize(
    "key",
    ["", "/", "/etc/passwd", "..", "../x", "a/../../x", "a/..", ".", "./a", "a/./b", "a//b", "a/", "/a", "a\\b", "a\0b",
     f"{TEMPORARY}/x", f"a/{TEMPORARY}/x", "x" * 1025],
)  # fmt: skip
def test_names_that_could_leave_the_root_or_meet_unfinished_files_are_refused(store: LocalStore, key: str) -> None:
    for ask in (
        store.get,
        store.head,
        store.open_input,
        store.open_output,
        store.local_path,
        lambda k: store.put(k, b"x"),
    ):
        with pytest.raises(InputError):
            ask(key)
    assert store.delete([key])[0].error is not None
    assert not os.path.lexists(store.root)


def test_a_listing_never_leaves_the_root(store: LocalStore) -> None:
    put(store, "a/b")
    put(LocalStore(Path(store.root).parent), "outside")
    assert (
        keys(store, "../") == keys(store, "a/../") == keys(store, "/") == keys(store, "./") == keys(store, "..") == []
    )


def test_a_part_longer_than_the_file_system_takes_is_refused_kindly(store: LocalStore) -> None:
    with pytest.raises(InputError, match="name of a file"):
        store.put("x" * 300, b"x")


def test_an_object_and_a_directory_cannot_have_one_name(store: LocalStore) -> None:
    put(store, "a/b")
    with pytest.raises(InputError, match="is a directory"):
        store.put("a", b"x")
    with pytest.raises(InputError, match="name of a file"):
        store.put("a/b/c", b"x")
    assert store.delete(["a"])[0].error is not None
    assert keys(store) == ["a/b"]


# ---- what is and is not there


def test_nothing_is_made_before_the_first_put(tmp_path: Path) -> None:
    store = open_store(tmp_path / "not" / "there")
    assert keys(store) == []
    with pytest.raises(ObjectNotFoundError):
        store.open_input("x")
    store.delete(["x"])
    assert store.put("x", b"y", if_match="z") == PreconditionFailed()
    assert not (tmp_path / "not").exists()
    put(store, "x")
    assert (tmp_path / "not" / "there" / "x").read_bytes() == b"x"


def test_unfinished_files_are_in_no_listing_and_leave_nothing_behind(store: LocalStore) -> None:
    with store.open_output("data/x") as output:
        output.write(b"half")
        assert os.listdir(os.path.join(store.root, TEMPORARY))
        assert keys(store) == keys(store, ".") == keys(store, TEMPORARY) == keys(store, TEMPORARY + "/") == []
        assert keys(LocalStore(Path(store.root).parent)) == []
    put(store, "data/x")
    store.put("data/x", b"y")
    store.put("data/x", b"y", if_match="no")
    assert os.listdir(os.path.join(store.root, TEMPORARY)) == []


def test_a_root_that_was_removed_is_made_again(store: LocalStore) -> None:
    put(store, "x")
    shutil.rmtree(store.root)
    put(store, "x")
    assert keys(store) == ["x"]


def test_directories_left_empty_by_a_delete_go_and_the_root_stays(store: LocalStore) -> None:
    put(store, "data/2026/01/x")
    put(store, "data/2026/02/y")
    store.delete(["data/2026/01/x"])
    assert os.listdir(os.path.join(store.root, "data", "2026")) == ["02"]
    store.delete(["data/2026/02/y"])
    assert os.listdir(store.root) == [TEMPORARY]


def test_left_overs_of_killed_writers_are_swept_once_old_and_those_of_living_ones_are_not(store: LocalStore) -> None:
    long_ago = time.time() - 7200
    with store.open_output("slow") as living:
        living.write(b"still at it")
        temporary = Path(store.root, TEMPORARY)
        (mine,) = temporary.iterdir()
        (temporary / "old").write_bytes(b"x")
        (temporary / "young").write_bytes(b"x")
        for path in (mine, temporary / "old"):
            os.utime(path, (long_ago, long_ago))
        put(LocalStore(store.root), "another writer's")
        assert {path.name for path in temporary.iterdir()} == {mine.name, "young"}
        assert living.commit() == 11
    assert store.get("slow").body == b"still at it"


def test_symbolic_links_to_files_are_read_and_loops_of_directories_are_not_entered(
    store: LocalStore, tmp_path: Path
) -> None:
    put(store, "dir/a")
    (tmp_path / "elsewhere").write_bytes(b"linked")
    os.symlink(tmp_path / "elsewhere", os.path.join(store.root, "dir", "link"))
    os.symlink(store.root, os.path.join(store.root, "dir", "loop"))
    os.symlink("nowhere", os.path.join(store.root, "dir", "broken"))
    assert keys(store) == ["dir/a", "dir/link"]
    assert store.get("dir/link").body == b"linked"


def test_a_file_keeps_the_permissions_that_the_umask_gives(store: LocalStore) -> None:
    put(store, "x")
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(os.stat(os.path.join(store.root, "x")).st_mode) == 0o666 & ~mask


def test_what_the_operating_system_forbids_is_access_denied(store: LocalStore) -> None:
    put(store, "dir/a")
    os.chmod(os.path.join(store.root, "dir"), 0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root may read and write anywhere
    try:
        for ask in (store.get, store.head, store.open_input, partial(store.put, body=b"x")):
            with pytest.raises(AccessDeniedError, match="dir/a"):
                ask("dir/a")
        assert "denied" in str(store.delete(["dir/a"])[0].error)
        with pytest.raises(AccessDeniedError):
            list(store.list(""))
    finally:
        os.seteuid(user)
        os.chmod(os.path.join(store.root, "dir"), 0o700)
    assert store.get("dir/a").body == b"x"


# ---- clock and ETags


def test_the_clock_and_times_of_objects_are_the_injected_clocks(tmp_path: Path) -> None:
    moment = 1_700_000_000_123_456
    store = LocalStore(tmp_path, Runtime(clock_us=lambda: moment))
    put(store, "x")
    assert store.head("x").last_modified_us == moment
    assert store.clock.now_us == moment


def test_a_large_object_written_over_by_something_else_has_another_etag(store: LocalStore) -> None:
    etag = put(store, "big", bytes(10_000))
    path = store.local_path("big")
    with open(path, "r+b") as file:
        file.write(b"changed")
    assert store.head("big").etag != etag
    with pytest.raises(ObjectChangedError):
        store.get("big", etag=etag)
    assert store.put("big", b"mine", if_match=etag) == PreconditionFailed()


def test_a_file_that_grows_while_it_is_read_is_not_read_as_whole(store: LocalStore) -> None:
    """Somebody still copies into a landing directory: what was read so far is not the file."""
    put(store, "drop.csv", b"a,b\n" * 1_000_000)
    with store.open_input("drop.csv") as file:
        file.read(100)
        with open(store.local_path("drop.csv"), "ab") as late:
            late.write(b"1,2\n")
        with pytest.raises(ObjectChangedError):
            file.read()


@pytest.mark.slow
def test_two_roots_over_one_file_exclude_each_other(tmp_path: Path) -> None:
    outer, inner = LocalStore(tmp_path), LocalStore(tmp_path / "db")
    put(inner, "n", b"0")
    code = """if 1:
        import sys
        from dolmen.store import LocalStore
        from dolmen.store.base import Stored
        root, key = sys.argv[1:]
        store = LocalStore(root)
        for _ in range(100):
            while True:
                found = store.get(key)
                if isinstance(store.put(key, b"%d" % (int(found.body) + 1), if_match=found.etag), Stored):
                    break
    """
    places = [(outer.root, "db/n"), (inner.root, "n"), (outer.root, "db/n"), (inner.root, "n")]
    processes = [subprocess.Popen([sys.executable, "-c", code, *place]) for place in places]
    assert [process.wait() for process in processes] == [0, 0, 0, 0]
    assert inner.get("n").body == b"400"


# ---- crashes


WRITER = """if 1:
    import hashlib, os, random, sys
    from dolmen.store import LocalStore
    from dolmen.store.base import Stored
    store, dice = LocalStore(sys.argv[1]), random.Random(int(sys.argv[2]))
    etag = store.get("pointer").etag
    for number in range(1_000_000):
        body = dice.randbytes(dice.choice([10, 5_000, 3_000_000]))
        key = f"data/{number % 3}/{sys.argv[2]}-{number}-{hashlib.sha256(body).hexdigest()}"
        if dice.random() < 0.5:
            assert isinstance(store.put(key, body), Stored)
        else:
            with store.open_output(key) as output:
                for start in range(0, len(body), 100_000):
                    output.write(body[start : start + 100_000])
                output.commit()
        outcome = store.put("pointer", (b"%d " % number) * 2000, if_match=etag)
        assert isinstance(outcome, Stored)
        etag = outcome.etag
        os.write(1, f"{number} {key}\\n".encode())
"""


def stop_within_a_put(process: subprocess.Popen[str], store: LocalStore) -> None:
    """Halt the process when it has an unfinished file: where a random moment falls depends on the machine's load."""
    while process.poll() is None:
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        if os.listdir(os.path.join(store.root, TEMPORARY)):
            return
        process.send_signal(signal.SIGCONT)
        time.sleep(0.001)
    raise AssertionError("the writer ended by itself")


@pytest.mark.slow
def test_whenever_a_writer_is_killed_objects_are_whole_and_what_it_acknowledged_is_there(store: LocalStore) -> None:
    import hashlib

    print(f"DOLMEN_TEST_SEED={SEED}")
    dice = random.Random(SEED)
    put(store, "pointer", b"-1 " * 2000)
    acknowledged, kills_in_a_put = 0, 0
    for kill in range(KILLS):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, store.root, str(SEED + kill)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        first = process.stdout.readline()  # it is under way
        time.sleep(dice.uniform(0, 0.1))
        if kill % 2:
            stop_within_a_put(process, store)
        process.send_signal(signal.SIGKILL)
        lines = [first, *process.stdout.read().splitlines()]
        process.wait()
        complete = [line.split() for line in lines if len(line.split()) == 2 and len(line.split()[1]) >= 64]
        for _, key in complete:
            store.head(key)
        acknowledged += len(complete)
        temporary = os.listdir(os.path.join(store.root, TEMPORARY))
        kills_in_a_put += bool(temporary)
        for info in store.list("data/"):
            body = store.get(info.key).body
            assert hashlib.sha256(body).hexdigest() == info.key.rpartition("-")[2]
            assert info.size == len(body)
        pointer = store.get("pointer").body.split()
        assert len(pointer) == 2000
        assert len(set(pointer)) == 1
        assert int(pointer[0]) >= int(complete[-1][0])
        store.delete([info.key for info in store.list("data/")])
        for name in temporary:
            os.unlink(os.path.join(store.root, TEMPORARY, name))
    assert acknowledged >= KILLS
    assert kills_in_a_put >= KILLS // 2


def test_a_put_is_stored_even_if_its_etag_is_of_another_kind_before_and_after(store: LocalStore) -> None:
    etag = put(store, "x", b"small")
    for body in (bytes(9_000), b"small again", bytes(9_000)):
        outcome = store.put("x", body, if_match=etag)
        assert isinstance(outcome, Stored)
        etag = outcome.etag
    assert store.get("x", etag=etag).body == bytes(9_000)
