"""A table's live files against a plain model of them, through random histories of spills, changes and removals."""

from __future__ import annotations

import os
import random

import msgspec
import pyarrow as pa
import pytest

from dolmen.base.runtime import Runtime
from dolmen.entries.segments.live import LiveFiles, tombstones_of
from dolmen.entries.segments.row_bounds import RowBounds, may_hold_matches
from dolmen.entries.segments.segment_reader import SegmentReader
from dolmen.entries.segments.tombstone_judge import TombstoneJudge
from dolmen.format.entries import DataFile, Overlay, WhereTombstone
from dolmen.format.layout import segment_key
from dolmen.format.manifest import SegmentKind, TableEntry
from dolmen.format.schema import Schema
from dolmen.format.segments import encode
from dolmen.predicate.parse import parse
from dolmen.store.cache import ObjectCache
from dolmen.store.memory import MemoryStore
from dolmen_simulator.counting import CountingStore
from support.commit_world import tombstone
from support.random_entries import random_file, random_vector, uuid

SEED = int(os.environ.get("DOLMEN_TEST_SEED", random.SystemRandom().randrange(2**32)))
ROUNDS = 400 if os.environ.get("DOLMEN_LONG") else 12

ROWS = pa.table({"x": pa.array(range(100)), "s": pa.array([f"{n:03}" for n in range(100)])})
SCHEMA = Schema.from_arrow(ROWS.schema)


class Table:
    """A table's entry, changed as commits change it, and beside it what its files should be."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.store = CountingStore(MemoryStore())
        self.entry = TableEntry(uuid="u", epoch=1, schema=SCHEMA)
        self.model: dict[str, DataFile] = {}
        self.clock = 1_000

    def live(self, max_bytes: int = 1 << 20) -> LiveFiles:
        """Its files, read with nothing cached."""
        return LiveFiles.of(self.entry, SegmentReader(self.store, Runtime(threads=1), ObjectCache(max_bytes)))

    def change(self, **fields: object) -> None:
        """Replaces parts of the entry."""
        self.entry = msgspec.structs.replace(self.entry, **fields)

    def append(self, rows: slice | None = None) -> DataFile:
        """Adds a file inline."""
        self.clock += 1
        first = self.rng.randrange(100)
        part = ROWS.slice(first, self.rng.randint(1, 10)) if rows is None else ROWS[rows]
        file = random_file(self.rng, part, SCHEMA, gaps=rows is None)
        file = msgspec.structs.replace(file, applied_through=self.clock)
        self.change(files=(*self.entry.files, file))
        self.model[file.uuid] = file
        return file

    def spill(self, kind: SegmentKind, count: int | None = None) -> None:
        """Moves the oldest inline entries of a kind into a segment; all of them by default."""
        held = getattr(self.entry, kind)
        taken = held[:count]
        if taken:
            segment, body = encode(kind, taken, segment_key(kind, uuid(self.rng)), SCHEMA)
            self.store.put(segment.object, body)
            self.change(**{kind: held[len(taken) :]}, segments=(*self.entry.segments, segment))

    def replace_pair(self, name: str) -> None:
        """Gives a file a newer pair: inline, or by an overlay."""
        old = self.model[name]
        through = self.rng.choice([old.applied_through, self.clock])
        new = msgspec.structs.replace(
            old,
            applied_through=through,
            vector=random_vector(self.rng, old.rows) if self.rng.random() < 0.8 else None,
            erasing=self.rng.choice([old.erasing, 0, self.clock]),
        )
        if not old.is_older_than(new.applied_through, new.vector):
            return
        self.model[name] = new
        if any(file.uuid == name for file in self.entry.files):
            self.change(files=tuple(new if file.uuid == name else file for file in self.entry.files))
            return
        kept = tuple(overlay for overlay in self.entry.overlays if overlay.file != name)
        self.change(overlays=(*kept, Overlay(name, new.applied_through, new.vector, new.erasing)))

    def remove(self, name: str) -> None:
        """Takes a file away."""
        del self.model[name]
        inline = tuple(file for file in self.entry.files if file.uuid != name)
        if len(inline) < len(self.entry.files):
            self.change(files=inline)
        else:
            overlays = tuple(overlay for overlay in self.entry.overlays if overlay.file != name)
            self.change(removed=(*self.entry.removed, name), overlays=overlays)

    def resolve_segment(self) -> None:
        """Says of a segment of files that all in it are resolved up to now."""
        segments = list(self.entry.segments)
        places = [place for place, segment in enumerate(segments) if segment.kind == "files"]
        if not places:
            return
        place = self.rng.choice(places)
        names = {file.uuid for file in self.live().of_segment(segments[place].object)}
        segments[place] = msgspec.structs.replace(segments[place], resolved_through=self.clock)
        self.change(segments=tuple(segments))
        for name in names:
            file = self.model[name]
            self.model[name] = msgspec.structs.replace(file, applied_through=max(file.applied_through, self.clock))

    def step(self) -> None:
        """One random commit."""
        kind = self.rng.random()
        if kind < 0.35 or not self.model:
            self.append()
        elif kind < 0.6:
            self.replace_pair(self.rng.choice(sorted(self.model)))
        elif kind < 0.75:
            self.remove(self.rng.choice(sorted(self.model)))
        elif kind < 0.8:
            self.resolve_segment()
        else:
            spilled: SegmentKind = self.rng.choice(["files", "files", "overlays", "removed"])
            self.spill(spilled, self.rng.choice([None, None, 1, 3]))


@pytest.mark.slow
def test_live_files_are_those_of_a_plain_model_through_any_history() -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    kinds = set()
    for round_ in range(ROUNDS):
        rng = random.Random(SEED + round_)
        table = Table(rng)
        for _ in range(rng.randint(1, 120)):
            table.step()
        live, model = table.live(rng.choice([0, 1 << 20])), table.model
        seed = SEED + round_
        assert {file.uuid: file for file in live} == model, seed
        assert len(list(live)) == live.count == len(model), seed
        totals = live.totals()
        assert (totals.files, totals.rows, totals.bytes, totals.rows - totals.deleted) == (
            len(model), sum(f.rows for f in model.values()), sum(f.size for f in model.values()),
            sum(f.live_rows for f in model.values()),
        ), seed  # fmt: skip
        gone = {name for segment in table.entry.segments_of("files") for name in _names(table, segment.object)}
        asked = rng.sample(sorted(model), len(model) // 2) + sorted(gone - model.keys())[:3] + ["nobody"]
        assert table.live().find(asked) == {name: model[name] for name in asked if name in model}, seed
        inline = {file.uuid for file in table.entry.files}
        for name in asked[:5]:
            found = live.segment_of(name)
            assert (found is not None) == (name in model and name not in inline), (seed, name)
            assert found is None or name in _names(table, found), seed
        first = rng.randrange(100)
        where = parse(
            rng.choice([f"x BETWEEN {first} AND {first + 5}", f"s = '{first:03}' OR x IS NULL"]), SCHEMA, now_us=0
        )
        expected = [file for file in live if may_hold_matches(file, where, SCHEMA)]
        assert list(live.find_matching(where)) == expected, seed
        assert list(live.find_matching(None)) == list(live), seed
        kinds |= {segment.kind for segment in table.entry.segments}
    assert kinds == {"files", "overlays", "removed"}


def _names(table: Table, key: str) -> set[str]:
    """Uuids of all entries of a segment of files, live or not."""
    (segment,) = (segment for segment in table.entry.segments if segment.object == key)
    reader = SegmentReader(table.store, Runtime(threads=1), ObjectCache())
    return {file.uuid for some in reader.files(segment).entries() for file in some}


def test_the_greatest_pair_counts_wherever_its_overlay_stands() -> None:
    rng = random.Random(1)
    table = Table(rng)
    file = msgspec.structs.replace(table.append(), rows=10, applied_through=5, vector=None)
    table.change(files=(file,))
    table.spill("files")
    few, many = (
        msgspec.structs.replace(random_vector(rng, 10), cardinality=cardinality) for cardinality in (2, 7)
    )  # fmt: skip
    newest = Overlay(file.uuid, 9, many)
    older = [
        Overlay(file.uuid, 9, few),
        Overlay(file.uuid, 9),
        Overlay(file.uuid, 4, many),
        Overlay(file.uuid, 8, many),
    ]
    for spilled, inline in (((newest, older[0]), older[1:]), (older, (newest,)), ((older[0], newest, older[1]), ())):
        fresh = Table(rng)
        fresh.store, fresh.entry = table.store, msgspec.structs.replace(table.entry, overlays=tuple(spilled))
        fresh.spill("overlays")
        fresh.change(overlays=tuple(inline))
        (found,) = fresh.live()
        assert (found.applied_through, found.vector) == (9, many)
    table.change(overlays=(Overlay(file.uuid, 4, many),))  # older than the entry itself
    (found,) = table.live()
    assert found == file


def test_finding_files_fetches_the_newest_segments_and_no_more_than_needed() -> None:
    table = Table(random.Random(3))
    for _ in range(4):
        for _ in range(5):
            table.append()
        table.spill("files")
    names = list(table.model)
    inline = table.append().uuid
    for asked, gets in (([inline], 0), ([names[-1]], 1), ([names[-1], names[-6]], 2), (["nobody"], 4)):
        table.store.reset()
        table.live().find(asked)
        assert table.store.gets == gets
    table.remove(names[0])
    table.store.reset()
    assert table.live().find([names[0]]) == {}
    assert table.store.gets == 0, "what is gone is not looked for"


def test_segments_that_cannot_match_are_not_fetched() -> None:
    table = Table(random.Random(3))
    for first in (0, 20, 40, 60):
        for step in range(0, 20, 5):
            table.append(slice(first + step, first + step + 5))
        table.spill("files")
    table.append(slice(80, 85))
    table.store.reset()
    found = list(table.live().find_matching(parse("x BETWEEN 44 AND 47", SCHEMA, now_us=0)))
    assert [file.stats[1].min for file in found] == [40, 45]
    assert table.store.gets == 1
    assert list(table.live().find_matching(parse("x > 500", SCHEMA, now_us=0))) == []
    assert table.store.gets == 1


def test_tombstones_are_listed_oldest_first_spilled_or_not() -> None:
    table = Table(random.Random(1))
    all_ = [tombstone().stamp(ts) for ts in range(1, 6)]
    table.change(tombstones=tuple(all_))
    table.spill("tombstones", 2)
    table.spill("tombstones", 2)
    reader = SegmentReader(table.store, Runtime(threads=1), ObjectCache())
    assert list(tombstones_of(table.entry, reader)) == all_


def test_a_tombstone_whose_predicate_is_elsewhere_may_match_everything() -> None:
    table = Table(random.Random(1))
    file = table.append(slice(0, 5))
    segment = encode("files", [file], "segment/files/x", SCHEMA)[0]
    unknown = tombstone().stamp(1 << 60)
    assert unknown.predicate is None
    narrow: WhereTombstone = msgspec.structs.replace(
        unknown, predicate=msgspec.to_builtins(parse("x > 50", SCHEMA, now_us=0))
    )
    for held in (file, segment):
        rows = RowBounds.of(held, SCHEMA, unknown.columns)
        assert tuple(TombstoneJudge([narrow, unknown], SCHEMA).judge_rows(rows)) == (unknown,)
