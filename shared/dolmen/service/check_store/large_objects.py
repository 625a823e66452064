"""Checks of large objects: streamed uploads in parts, and reading objects as files."""

from __future__ import annotations

import io
import random
from contextlib import suppress
from pathlib import Path

from dolmen.base.units import MIB
from dolmen.errors import CorruptionError, ObjectChangedError, ObjectNotFoundError
from dolmen.service.check_store.contract import (
    PART_BYTES,
    THRESHOLD_BYTES,
    BrokenError,
    Grant,
    Sandbox,
    check,
    equal,
    expect,
    keys,
    put,
    raises,
)

_LARGE = 20_000_000


@check("data files would be damaged. Do not use this store", needs=[Grant.LIST])
def a_streamed_object_is_whole_whatever_its_size(sandbox: Sandbox) -> None:
    """It appears when it is committed, not before, and has all its bytes: in one put or in parts."""
    for size in (0, 1, 100_000, THRESHOLD_BYTES, THRESHOLD_BYTES + 1, 3 * PART_BYTES, 4 * PART_BYTES + 7):
        sandbox.raise_if_stopped()
        _stream(sandbox, f"data/streamed-{size}", size)


def _stream(sandbox: Sandbox, key: str, size: int) -> None:
    dice = random.Random(size)
    body = dice.randbytes(size)
    with sandbox.store.open_output(key) as output:
        position = 0
        equal(keys(sandbox.store, key), [], "before anything is written there are")
        while position < size:
            step = min(dice.choice([1, 1000, 700_000, 8 * MIB]), size - position)
            equal(output.write(memoryview(body)[position : position + step]), step, "the bytes written")
            position += step
            equal(keys(sandbox.store, key), [], "before it is committed there are")
        equal(output.commit(), size, "the bytes committed")
        output.abort()  # has no effect after the commit
    found = sandbox.store.get(key).body
    expect(found == body, f"{size:,} bytes come back as {len(found):,} bytes, or with other content")
    equal(sandbox.store.head(key).size, size, "the size in a HEAD")
    equal(keys(sandbox.store, key), [key], "then there are")


@check("half a file could be taken for a whole one", needs=[Grant.LIST])
def what_is_not_committed_is_never_seen(sandbox: Sandbox) -> None:
    """An upload that is abandoned, aborted or interrupted leaves no object."""
    for size in (10, 2 * THRESHOLD_BYTES):
        with sandbox.store.open_output("left") as output:
            output.write(bytes(size))
        aborted = sandbox.store.open_output("aborted")
        aborted.write(bytes(size))
        aborted.abort()
        aborted.abort()
        with suppress(RuntimeError), sandbox.store.open_output("raised") as output:
            output.write(bytes(size))
            raise RuntimeError("the caller's own")
        for over in (aborted, output):
            for late in (lambda over=over: over.write(b"x"), over.commit):
                try:
                    late()
                except ValueError:
                    continue
                raise BrokenError("an upload that is over can be written to")
        equal(keys(sandbox.store), [], "afterwards there are")


@check("If-None-Match is ignored: two writers could overwrite each other's files. Do not use this store")
def a_streamed_object_never_replaces_another(sandbox: Sandbox) -> None:
    """An upload, also one in parts, is completed only if its key is free."""
    put(sandbox.store, "key", b"first")
    for size in (10, 2 * THRESHOLD_BYTES):
        with sandbox.store.open_output("key") as output:
            output.write(bytes(size))
            raises(CorruptionError, f"an upload of {size:,} bytes to a key that is taken", output.commit)
        equal(sandbox.store.get("key").body, b"first", "afterwards it holds")


@check("data files would be damaged. Do not use this store")
def several_outputs_may_be_open_at_once(sandbox: Sandbox) -> None:
    """Concurrent uploads do not disturb each other."""
    outputs = [sandbox.store.open_output(f"o/{number}") for number in range(3)]
    for number in range(24):
        outputs[number % 3].write(bytes([number]) * MIB)
    equal([output.commit() for output in outputs], [8 * MIB] * 3, "the sizes")
    for number in range(3):
        body = b"".join(bytes([number + 3 * n]) * MIB for n in range(8))
        expect(sandbox.store.get(f"o/{number}").body == body, f"upload {number} of 3 holds other bytes")


@check("compacted files would be damaged. Do not use this store")
def ranges_of_other_objects_become_parts_of_a_new_one(sandbox: Sandbox) -> None:
    """Ranges are copied between written bytes, whatever their lengths; of an object that has changed, none is."""
    store, body = sandbox.store, random.Random(3).randbytes(_LARGE)
    with store.open_output("source") as output:
        output.write(body)
        output.commit()
    etag = store.head("source").etag
    parts: list[bytes | tuple[int, int]] = [(0, 7 * MIB), b"written", (7 * MIB, 15 * MIB), bytes(6 * MIB), (1, 1)]
    parts += [(9 * MIB, _LARGE), (3, 10), b"end"]
    with store.open_output("copy") as output:
        for part in parts:
            sandbox.raise_if_stopped()
            if isinstance(part, bytes):
                output.write(part)
            else:
                equal(output.copy("source", part, etag), part[1] - part[0], "the bytes copied")
        size = output.commit()
    expected = b"".join(part if isinstance(part, bytes) else body[slice(*part)] for part in parts)
    equal(size, len(expected), "the bytes committed")
    expect(store.get("copy").body == expected, "what was copied comes back as other bytes")
    old = put(store, "small", b"old bytes")
    put(store, "small", b"new bytes", old)
    for key, named, kind in (("source", '"0"', ObjectChangedError), ("small", old, ObjectChangedError)):
        raises(kind, f"copying {key!r} by another ETag", lambda key=key, named=named: _copy(sandbox, key, named))  # type: ignore[misc]
    raises(ObjectNotFoundError, "copying what is not there", lambda: _copy(sandbox, "absent", etag))


def _copy(sandbox: Sandbox, key: str, etag: str) -> None:
    with sandbox.store.open_output("never") as output:
        output.copy(key, (0, 9 if key == "small" else _LARGE), etag)
        output.commit()


@check("scans read files in ranges: they would fail or read wrong rows")
def an_input_is_a_seekable_file(sandbox: Sandbox) -> None:
    """A large object can be read from any position, like a file."""
    body = random.Random(1).randbytes(_LARGE)
    with sandbox.store.open_output("big") as output:
        output.write(body)
        output.commit()
    dice = random.Random(2)
    with sandbox.store.open_input("big") as file, io.BytesIO(body) as expected:
        expect(file.readable() and file.seekable(), "it is not a seekable file")
        for _ in range(60):
            sandbox.raise_if_stopped()
            if dice.random() < 0.5:
                whence = dice.choice([io.SEEK_SET, io.SEEK_CUR, io.SEEK_END])
                origin = {io.SEEK_SET: 0, io.SEEK_END: len(body)}.get(whence, file.tell())
                offset = dice.randint(0, len(body) + 10) - origin
                equal(file.seek(offset, whence), expected.seek(offset, whence), "a seek")
            else:
                size = dice.choice([0, 1, 10, 100_000, 9_000_000])
                at = file.tell()
                expect(file.read(size) == expected.read(size), f"{size:,} bytes from {at:,} on differ")
            equal(file.tell(), expected.tell(), "the position")
        file.seek(0)
        expect(file.read() == body, "the whole content differs")
        equal(file.read(), b"", "after its end there is")


@check("files to ingest would fail or be cut")
def small_inputs_are_files_too(sandbox: Sandbox) -> None:
    """An empty object is a file at its end, and lines are lines."""
    put(sandbox.store, "empty", b"")
    with sandbox.store.open_input("empty") as file:
        equal(file.read(), b"", "an empty file holds")
        equal(file.seek(0, io.SEEK_END), 0, "its end is at")
    put(sandbox.store, "lines", b"a,b\n1,2\n3,4")
    with sandbox.store.open_input("lines") as file:
        equal(list(file), [b"a,b\n", b"1,2\n", b"3,4"], "the lines")


@check("files that are overwritten while they are ingested might be mixed up")
def an_input_never_mixes_an_object_with_the_one_that_replaced_it(sandbox: Sandbox) -> None:
    """Reading on after the object was replaced gives the old bytes, or an error."""
    etag = put(sandbox.store, "key", b"old")
    with sandbox.store.open_input("key", etag=etag) as file:
        equal(file.read(), b"old", "by its ETag it holds")
    put(sandbox.store, "key", b"new", etag)
    raises(ObjectChangedError, "opening what was replaced", lambda: sandbox.store.open_input("key", etag=etag))
    old, new = b"o" * _LARGE, b"n" * _LARGE
    with sandbox.store.open_output("drop.csv") as output:
        output.write(old)
        output.commit()
    with sandbox.store.open_input("drop.csv") as file:
        begun = file.read(1000)
        put(sandbox.store, "drop.csv", new, sandbox.store.head("drop.csv").etag)
        try:
            rest = file.read()
        except ObjectChangedError:
            rest = old[1000:]  # an error is as good as the old bytes
    expect(begun + rest == old, "bytes of both")


@check("a bug in dolmen: please report it")
def a_local_path_if_there_is_one_holds_the_object(sandbox: Sandbox) -> None:
    """A local path holds the bytes of the object, as it may be mapped into memory."""
    put(sandbox.store, "dir/key", b"content")
    path = sandbox.store.local_path("dir/key")
    expect(path is None or Path(path).read_bytes() == b"content", f"{path} holds something else")
