"""What can happen to the bytes of an object, and where in it: damage drawn by a seed, spread over kinds and regions."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

import pyarrow as pa
import pyarrow.parquet as pq

from corruption.worlds import WORLDS, World
from dolmen.format.layout import POINTER

Region = tuple[str, int, int]
"""Name, first byte, end."""


@dataclass(frozen=True)
class Damage:
    """What happened to some objects.

    Args:
        how: in a word.
        where: kind of the object and region in it.
        bodies: what the objects hold now, by key.
        spans: of each, the first byte that differs and the end of those that do.
    """

    how: str
    where: str
    bodies: dict[str, bytes] = field(repr=False)
    spans: dict[str, tuple[int, int]]
    resized: bool = False

    def __str__(self) -> str:
        spans = ", ".join(f"{key} [{first}, {end})" for key, (first, end) in self.spans.items())
        return f"{self.how} in {self.where}: {spans}"


def kind_of(key: str) -> str:
    """The kind of an object, as segments and intents have several."""
    if key == POINTER:
        return "pointer"
    first, second, *_ = key.split("/")
    if first == "intent":
        return "done" if key.endswith("/done") else "heartbeat"
    return f"{second} segment" if first == "segment" else first


@cache
def by_kind(world: World) -> dict[str, list[str]]:
    """Keys of a database's objects by kind, sorted."""
    found: dict[str, list[str]] = defaultdict(list)
    for key in sorted(world.objects):
        if "orphan" not in key:
            found[kind_of(key)].append(key)
    return dict(found)


@cache
def regions(world: World, key: str) -> list[Region]:
    """Parts of an object that mean different things; together they are all of it."""
    body = world.objects[key].body
    if not body:
        return [("nothing", 0, 0)]
    if body[:4] == b"PAR1":
        return list(_parquet(body))
    if body[:4] == b"DEL1":
        return list(_delete_object(body))
    if body[:4] == b"DSG1":
        frame = 20 + int.from_bytes(body[12:20], "little")
        bloom = [("bloom", frame, len(body))] if frame < len(body) else []
        return [("magic", 0, 4), ("lengths", 4, 20), ("frame", 20, frame), *bloom]
    seal = body.rfind(b',"crc32":')
    if seal < 0:  # what a job that died has left of its upload
        return [("bytes", 0, len(body))]
    return [("document", 0, seal), ("checksum", seal, len(body))]


def _parquet(body: bytes) -> Iterator[Region]:
    metadata = pq.read_metadata(pa.BufferReader(body))
    footer = len(body) - 8 - int.from_bytes(body[-8:-4], "little")
    yield "magic", 0, 4
    place = 4
    for group in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(column)
            start = chunk.data_page_offset
            if chunk.dictionary_page_offset:
                start = min(start, chunk.dictionary_page_offset)
            end = start + chunk.total_compressed_size
            head = min(end, start + 34)
            yield "page header", start, head  # about: what is left of the header, or too much, counts as data
            if head < end:
                yield "page data", head, end
            place = max(place, end)
    if place < footer:
        yield "index, bloom", place, footer
    yield "footer", footer, len(body) - 8
    yield "footer length", len(body) - 8, len(body) - 4
    yield "magic", len(body) - 4, len(body)


def _delete_object(body: bytes) -> Iterator[Region]:
    footer = len(body) - 8 - int.from_bytes(body[-8:-4], "little")
    yield "magic", 0, 4
    yield "blobs", 4, footer
    yield "footer", footer, len(body) - 8
    yield "footer length", len(body) - 8, len(body) - 4
    yield "magic", len(body) - 4, len(body)


def flip(rng: random.Random, world: World, key: str, region: str | None = None) -> Damage:
    """One bit, in a region drawn first, so that small ones are hit as often as large ones."""
    body = bytearray(world.objects[key].body)
    name = region or rng.choice(sorted({name for name, _, _ in regions(world, key)}))
    _, first, end = rng.choice([region for region in regions(world, key) if region[0] == name])
    place = rng.randrange(first, end)
    body[place] ^= 1 << rng.randrange(8)
    return _of("flip", f"{kind_of(key)}, {name}", world, {key: bytes(body)})


def cut(rng: random.Random, world: World, key: str) -> Damage:
    """The end is gone."""
    body = world.objects[key].body
    left = rng.choice([0, len(body) // 2, len(body) - 1, len(body) - 8, rng.randrange(len(body))])
    return _of("cut", kind_of(key), world, {key: body[: max(0, left)]})


def append(rng: random.Random, world: World, key: str) -> Damage:
    """Something more stands behind it: zeros, noise, or itself again."""
    body = world.objects[key].body
    more = rng.choice([b"\0", b"}", rng.randbytes(9), bytes(4096), body])
    return _of("append", kind_of(key), world, {key: body + more})


def blank(rng: random.Random, world: World, key: str) -> Damage:
    """A block of it is zeros, or noise."""
    body = bytearray(world.objects[key].body)
    size = min(len(body), rng.choice([8, 64, 512, 4096]))
    first = rng.choice([0, len(body) - size, rng.randrange(len(body) - size + 1)])
    body[first : first + size] = bytes(size) if rng.random() < 0.7 else rng.randbytes(size)
    return _of("blank", kind_of(key), world, {key: bytes(body)})


def swap(rng: random.Random, world: World, key: str) -> Damage:
    """Two objects of a kind have each other's bytes."""
    other = rng.choice(by_kind(world)[kind_of(key)])
    bodies = {key: world.objects[other].body, other: world.objects[key].body}
    return _of("swap", kind_of(key), world, bodies)


def exchange(rng: random.Random, world: World, key: str) -> Damage:
    """It holds what an object of any other kind holds."""
    others = by_kind(world)
    other = rng.choice(others[rng.choice(sorted(others.keys() - {kind_of(key)}))])
    return _of("exchange", kind_of(key), world, {key: world.objects[other].body})


def replace(rng: random.Random, world: World, key: str) -> Damage:
    """It holds what an object of its kind holds in another database."""
    others = [other for build in WORLDS if (other := build()) is not world and kind_of(key) in by_kind(other)]
    if not others:
        return swap(rng, world, key)
    other = rng.choice(others)
    body = other.objects[rng.choice(by_kind(other)[kind_of(key)])].body
    return _of("replace", kind_of(key), world, {key: body})


def lose(rng: random.Random, world: World, key: str) -> Damage:
    """It is gone."""
    size = len(world.objects[key].body)
    return Damage("lose", kind_of(key), {key: b""}, {key: (0, size + 1)}, resized=True)


HOW = {flip: 85, cut: 4, append: 2, blank: 3, swap: 2, exchange: 1, replace: 1, lose: 2}
"""How often each is drawn."""


def draw(rng: random.Random, world: World, kind: str) -> Damage:
    """Any damage of an object of this kind."""
    key = rng.choice(by_kind(world)[kind])
    (how,) = rng.choices(list(HOW), list(HOW.values()))
    if how is lose and key == POINTER:  # then there is no database: a test of its own
        how = cut
    return how(rng, world, key)


def _of(how: str, where: str, world: World, bodies: dict[str, bytes]) -> Damage:
    changed = {key: body for key, body in bodies.items() if body != world.objects[key].body}
    spans = {key: _span(world.objects[key].body, body) for key, body in changed.items()}
    resized = any(len(body) != len(world.objects[key].body) for key, body in changed.items())
    return Damage(how, where, changed, spans, resized)


def _span(old: bytes, new: bytes) -> tuple[int, int]:
    """First byte that differs, and the end of those that do; what one of them has more of differs."""
    both = min(len(old), len(new))
    first = next((place for place in range(both) if old[place] != new[place]), both)
    if len(old) != len(new):
        return first, max(len(old), len(new)) + 1
    last = next(place for place in range(both - 1, -1, -1) if old[place] != new[place])
    return first, last + 1
