"""The beginning of a text as some delimiter, quote, escape and comment read it: its records, and their cells."""

from __future__ import annotations

import re
from bisect import bisect_left

import numpy as np
from msgspec import Struct

from dolmen.ingest.formats.delimited.csv_records import Records, Signs

_LINE_END = re.compile(rb"\r\n|\n|\r")
_MOST_BROKEN = 20


class DelimitedReading(Struct, frozen=True):
    """The records of some bytes under some signs; broken ones are left out, each of which ends with its line."""

    data: bytes
    signs: Signs
    starts: list[int]
    ends: list[int]
    widths: list[int]
    broken: list[int]
    _delimiters: list[int]

    @classmethod
    def of(cls, data: bytes, signs: Signs, is_all: bool) -> DelimitedReading:
        starts, ends, widths, broken, delimiters, base = [], [], [], list[int](), [], 0
        while True:
            part = data[base:]
            records = Records.of(part, signs, blank_lines_count=False)
            problem = records.layout.problem
            good = len(records.starts)
            if problem is not None:
                good = int(np.searchsorted(records.ends, problem.offset, side="right"))
            starts += (records.starts[:good] + base).tolist()
            ends += (records.text_ends(np.frombuffer(part, np.uint8))[:good] + base).tolist()
            widths += records.fields[:good].tolist()
            delimiters += (records.delimiters + base).tolist()
            if problem is None or (not problem.ends and not is_all):  # the sample may cut the quoted field
                break
            start = int(records.starts[good]) + base if good < len(records.starts) else base + problem.offset
            broken.append(start)
            line_end = _LINE_END.search(data, base + problem.offset if problem.ends else start)
            if line_end is None or line_end.end() == len(data) or len(broken) >= _MOST_BROKEN:
                break
            base = line_end.end()
            del delimiters[bisect_left(delimiters, base) :]
        return cls(data, signs, starts, ends, widths, broken, delimiters)

    def cells(self, index: int) -> tuple[list[str], list[bool]]:
        """The fields of a record, and which of them are quoted."""
        start, end, signs = self.starts[index], self.ends[index], self.signs
        text = self.data[start:end].decode(errors="replace")
        if (signs.quote is None or signs.quote not in text) and (signs.escape is None or signs.escape not in text):
            cells = text.split(signs.delimiter)
            if signs.trim:
                cells = [cell.strip(" ") for cell in cells]
            return cells, [False] * len(cells)
        first, last = bisect_left(self._delimiters, start), bisect_left(self._delimiters, end)
        cells, quoted, begin = list[str](), list[bool](), start
        for at in (*self._delimiters[first:last], end):
            cell = self.data[begin:at].decode(errors="replace")
            if signs.trim:
                cell = cell.strip(" ")
            begin = at + 1
            is_quoted = signs.quote is not None and len(cell) > 1 and cell[0] == cell[-1] == signs.quote
            if is_quoted and signs.quote is not None:
                cell = cell[1:-1].replace(signs.quote * 2, signs.quote)
            if signs.escape is not None and signs.escape in cell:
                cell = re.sub(rf"(?s){re.escape(signs.escape)}(.)", r"\1", cell)
            cells.append(cell)
            quoted.append(is_quoted)
        return cells, quoted


def line_offset(text: bytes, lines: int) -> int:
    """Where the line after this many lines begins."""
    offset = 0
    for _ in range(lines):
        match = _LINE_END.search(text, offset)
        if match is None:
            return len(text)
        offset = match.end()
    return offset
