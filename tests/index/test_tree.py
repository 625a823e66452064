"""Trees against a sorted list of the same entries."""

from __future__ import annotations

import io
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dolmen.entries.index import pages
from dolmen.entries.index.key_encoding import KeyEncoding, Keys, no_keys
from dolmen.entries.index.pages import Addresses, InnerPage, LeafPage, PageRef, Tree, TreeWriter, decode_page
from dolmen.entries.index.sorting import EntrySorter, large_blocks, merge, renumber
from support.trees import find


class BytesSource:
    """Pages of a tree in memory, and how often each was read."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.read: dict[int, int] = defaultdict(int)

    def pages(self, references: Sequence[PageRef]) -> Iterator[LeafPage | InnerPage]:
        for reference in references:
            body = self.body[reference.offset : reference.offset + reference.length]
            assert crc32(body) == reference.crc32
            self.read[reference.offset] += 1
            yield decode_page(body)


def tree_of(blocks: list[LeafPage], width: int) -> tuple[Tree, BytesSource]:
    output = io.BytesIO()
    writer = TreeWriter(output.write, width)
    for block in blocks:
        writer.add(block.keys, block.addresses)
    root = writer.finish()
    source = BytesSource(output.getvalue())
    return Tree(decode_page(root), source.pages), source


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of a few rows, so that small trees are deep."""
    monkeypatch.setattr(pages, "PAGE_BYTES", 120)
    monkeypatch.setattr(pages, "MOST_ROWS", 7)


KINDS: dict[str, tuple[list[pa.DataType], st.SearchStrategy[Any]]] = {
    "number": ([pa.int64()], st.tuples(st.integers(-20, 20))),
    "text": ([pa.string()], st.tuples(st.text("ab\0", max_size=5))),
    "pair": ([pa.int32(), pa.binary(2)], st.tuples(st.integers(0, 3), st.binary(min_size=2, max_size=2))),
}


@st.composite
def cases(draw: st.DrawFn) -> tuple[KeyEncoding, Keys, Keys]:
    types, values = KINDS[draw(st.sampled_from(sorted(KINDS)))]
    rows = draw(st.lists(values, min_size=1, max_size=150))
    asked = draw(st.lists(values, max_size=20))
    encoding = KeyEncoding.of(types)

    def encoded(tuples: list[Any]) -> Keys:
        return encoding.encode([pa.array([row[at] for row in tuples], kind) for at, kind in enumerate(types)])

    return encoding, encoded(rows), encoded(asked + rows[:5])


def sorted_entries(keys: Keys, run_bytes: int = 1 << 20) -> list[LeafPage]:
    sorter = EntrySorter(run_bytes)
    for start in range(0, len(keys), 10):
        some = keys[start : start + 10]
        sorter.add(some, np.arange(start, start + len(some)).astype(np.uint64))
    return list(sorter.sorted())


def by_key(found: Iterator[tuple[Any, Addresses]], keys: Keys) -> dict[Any, list[int]]:
    result = defaultdict(list)
    for rows, places in found:
        for row, place in zip(rows.tolist(), places.tolist(), strict=True):
            result[keys[row]].append(place)
    return {key: sorted(values) for key, values in result.items()}


@pytest.mark.usefixtures("small_pages")
def test_a_tree_answers_as_a_dict_would() -> None:
    @settings(deadline=None)
    @given(cases(), st.sampled_from([100, 1 << 20]))
    def check(case: tuple[KeyEncoding, Keys, Keys], run_bytes: int) -> None:
        encoding, keys, asked = case
        expected = defaultdict(list)
        for place, key in enumerate(keys):
            expected[key].append(place)
        tree, source = tree_of(sorted_entries(keys, run_bytes), encoding.width)
        asked = np.unique(asked)
        assert by_key(find(tree, asked), asked) == {key: expected[key] for key in asked if key in expected}
        assert all(times == 1 for times in source.read.values()), "each page is read once for all keys"
        everything = list(tree.leaves())
        assert [key for leaf in everything for key in leaf.keys] == sorted(keys)
        assert sorted(place for leaf in everything for place in leaf.addresses.tolist()) == list(range(len(keys)))

    check()


@pytest.mark.usefixtures("small_pages")
def test_merged_trees_hold_the_live_entries_of_all() -> None:
    @settings(deadline=None)
    @given(st.lists(st.lists(st.integers(0, 40), max_size=60), min_size=1, max_size=4), st.sets(st.integers(0, 3)))
    def check(parts: list[list[int]], dead: set[int]) -> None:
        numbers = [-1 if at in dead else at + 10 for at in range(len(parts))]
        streams, expected = [], []
        for at, values in enumerate(parts):
            keys = np.array(sorted(values), np.uint64)
            places = (np.uint64(at) << np.uint64(32)) + np.arange(len(keys), dtype=np.uint64)
            if not len(keys):
                continue
            tree, _ = tree_of([LeafPage(keys, places)], 8)
            streams.append(renumber(large_blocks(tree.leaves(), 9), numbers))
            if at not in dead:
                expected += [(key, (at + 10) << 32 | row) for row, key in enumerate(sorted(values))]
        merged = [
            pair for leaf in merge(streams) for pair in zip(leaf.keys.tolist(), leaf.addresses.tolist(), strict=True)
        ]
        assert [key for key, _ in merged] == sorted(key for key, _ in expected)
        assert sorted(merged) == sorted(expected)

    check()


def test_a_key_of_many_rows_is_found_over_many_pages() -> None:
    keys = np.sort(np.array([7] * 100_000 + list(range(1000)), np.uint64))
    places = np.random.default_rng(3).permutation(len(keys)).astype(np.uint64)
    tree, source = tree_of([LeafPage(keys, places)], 8)
    found = by_key(find(tree, np.array([6, 7, 8, 2_000], np.uint64)), np.array([6, 7, 8, 2_000], np.uint64))
    assert {int(key): len(values) for key, values in found.items()} == {6: 1, 7: 100_001, 8: 1}
    assert len(source.read) > 5


def test_a_key_that_begins_a_page_is_found_in_one() -> None:
    keys = np.arange(0, 10**9, 10**4, np.uint64)
    tree, source = tree_of([LeafPage(keys, np.arange(len(keys), dtype=np.uint64))], 8)
    assert isinstance(tree.root, InnerPage)
    firsts = [leaf.keys[:1] for leaf in tree.leaves()]
    for first in firsts:
        source.read.clear()
        assert len(list(find(tree, first))) == 1
        assert len(source.read) == 1


def test_long_keys_make_pages_of_few_rows() -> None:
    texts = [f"{'x' * 1500}{number:04d}" for number in range(500)]
    encoding = KeyEncoding.of([pa.string()])
    keys = np.sort(encoding.encode([pa.array(texts)]))
    tree, source = tree_of([LeafPage(keys, np.arange(500, dtype=np.uint64))], encoding.width)
    assert isinstance(tree.root, InnerPage)
    assert len(tree.root.keys) >= 8
    assert sum(len(places) for _, places in find(tree, keys[::50])) == 10
    assert len(source.read) <= 10


def test_a_tree_without_entries_is_refused() -> None:
    writer = TreeWriter(io.BytesIO().write, 8)
    writer.add(no_keys(8), np.zeros(0, np.uint64))
    with pytest.raises(ValueError, match="entries"):
        writer.finish()


def test_damaged_pages_raise_only_value_errors() -> None:
    """Their checksum protects readers; this is for bytes that a checksum was made of wrongly."""
    encoding = KeyEncoding.of([pa.string()])
    keys = np.sort(encoding.encode([pa.array([f"key {number}" for number in range(300)])]))
    body = pages._encode_leaf(LeafPage(keys, np.arange(300, dtype=np.uint64)), encoding.width)
    source, refused = random.Random(5), 0
    for _ in range(300):
        damaged = bytearray(body)
        damaged[source.randrange(len(body))] ^= 1 << source.randrange(8)
        try:
            decode_page(bytes(damaged[: source.randrange(len(body) + 1)] if source.random() < 0.2 else damaged))
        except ValueError:
            refused += 1
    assert refused > 50
