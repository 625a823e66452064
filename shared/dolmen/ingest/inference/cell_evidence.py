"""Collects what the cells of one column prove about its values: numbers, Booleans, times and NULL.

``ColumnEvidence`` sees the cells block by block. What it keeps is bounded, and depends neither on the order of the
blocks nor on where they are cut.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dolmen.format.dialect import STRICT, Dialect
from dolmen.ingest.formats.cell_notation import CellNotation
from dolmen.ingest.formats.infer import NOTHING, TEXT, TextShape, non_blank, shape_of_text
from dolmen.ingest.inference.number_evidence import NUMERIC, NumberEvidence
from dolmen.ingest.inference.time_evidence import TimeEvidence

NULL_TEXTS = ("NA", "N/A", "n/a", "#N/A", "NULL", "null", "None", r"\N", "-", "nan", "NaN")
"""Texts that often stand for NULL."""
NAN_TEXTS = frozenset({"nan", "NaN"})
"""Those that are values of numbers."""
PAIRS = (("yes", "no"), ("y", "n"), ("t", "f"), ("on", "off"))
_WORDS = frozenset(word for pair in PAIRS for word in pair)
_MAX_WORD = max(map(len, _WORDS))
_WORD_ARRAY, _NULLS = pa.array(sorted(_WORDS)), pa.array(NULL_TEXTS)


def _longest_by_first_byte() -> npt.NDArray[np.int32]:
    longest = np.zeros(256, np.int32)
    for text in NULL_TEXTS:
        longest[ord(text[0])] = max(longest[ord(text[0])], len(text))
    return longest


_LONGEST = _longest_by_first_byte()


class ColumnEvidence:
    """The types and notations that the cells of one column leave possible.

    Args:
        dialect: how its cells are known to be written; by default the strict one.
    """

    def __init__(self, dialect: Dialect = STRICT) -> None:
        self._notation = CellNotation.of(dialect)
        self.nulls: set[str] = set()
        self.shape: TextShape = NOTHING
        self.words: set[str] | None = set()
        self.numbers = NumberEvidence()
        self.times = TimeEvidence()

    def observe(self, cells: pa.Array) -> None:
        """Adds the text of cells, NULL where there is none. A header has names, not cells."""
        cells = self._take_nulls(cells)
        if self.is_text or not len(text := non_blank(cells)):
            return
        shape = None
        if self.shape != TEXT:
            shape = shape_of_text(text, self._notation)
            self.shape = self.shape.join(shape)
        if shape is not None and shape.kind not in (*NUMERIC, "text"):
            self.words, self.numbers.readings = None, {}
            self.times.observe_iso(shape.kind)
            return
        self.numbers.observe(text, shape if self._notation.numbers is None else None)
        if shape is not None and shape != TEXT:
            self.words = None
            self.times.observe_iso(shape.kind)
            return
        self.times.observe(text)
        self._observe_words(text)

    @property
    def is_text(self) -> bool:
        """Whether no other type can hold the values."""
        return self.shape == TEXT and not self.numbers.readings and self.words is None and self.times.is_out

    @property
    def is_empty(self) -> bool:
        """Whether there are no values, except perhaps texts for NULL."""
        return self.shape == NOTHING

    def _take_nulls(self, cells: pa.Array) -> pa.Array:
        """The cells without those that may stand for NULL, which are noted."""
        _, offsets, data = cells.buffers()
        if data is None or not data.size:
            return cells
        bounds = np.frombuffer(offsets, np.int32)[cells.offset : cells.offset + len(cells) + 1]
        firsts = np.frombuffer(data, np.uint8).take(bounds[:-1], mode="clip")
        lengths = np.diff(bounds)
        suspects = np.flatnonzero((lengths <= _LONGEST[firsts]) & (lengths > 0))
        if not len(suspects):
            return cells
        texts = cells.take(pa.array(suspects))
        are_nulls = pc.is_in(texts, _NULLS)
        if not pc.any(are_nulls).as_py():
            return cells
        self.nulls.update(pc.unique(texts.filter(are_nulls)).to_pylist())
        if self.is_text:
            return cells
        others = np.ones(len(cells), np.bool_)
        others[suspects[np.asarray(are_nulls)]] = False
        return cells.filter(pa.array(others))

    def _observe_words(self, text: pa.Array) -> None:
        if self.words is None:
            return
        if text[0].as_py().lower() not in _WORDS or pc.max(pc.binary_length(text)).as_py() > _MAX_WORD:
            self.words = None
            return
        words = pc.unique(pc.ascii_lower(text))
        self.words = self.words | set(words.to_pylist()) if pc.all(pc.is_in(words, _WORD_ARRAY)).as_py() else None
