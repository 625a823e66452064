"""Looks up values of files row by row, by the name and size that Spark's reader gives of a row's file.

Sizes are compared, and names only between files of equal size: numbers cost a tenth of what names do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from dolmen.rows.scan.plan import FilePlan
from dolmen.spark.tasks import FILE

SIZE = "__size"
"""The column with the size of a row's file, in bytes."""
SOURCES = {FILE: "_metadata.file_name", SIZE: "_metadata.file_size"}

_UNKNOWN = "raise_error('a file was read that the manifest does not name, or not with this size')"


class ByFile:
    """Looks up values of the files that one scan reads.

    Args:
        used: which of the columns ``FILE`` and ``SIZE`` the SQL made so far needs.
    """

    def __init__(self, files: Sequence[FilePlan]) -> None:
        self.files = files
        self.used: set[str] = set()

    def sql(self, values: Sequence[int | bool | None], kind: str) -> str:
        """Writes SQL that gives each row the value of its file.

        It fails in a row of any other file, and of one that has not the size that the manifest says; unless all values
        are equal, which takes no looking up. (Text, as each step of building a column would be a call into the JVM.)

        Args:
            values: one for each file.
            kind: Spark's type of the values.
        """
        texts = [f"CAST({'NULL' if value is None else str(value).lower()} AS {kind})" for value in values]
        if len(set(texts)) == 1:
            return texts[0]
        self.used.add(SIZE)
        sized: dict[int, list[tuple[str, str]]] = defaultdict(list)
        for file, text in zip(self.files, texts, strict=True):
            sized[file.file.size].append((file.file.path.rpartition("/")[2], text))
        return self._by_size(sorted(sized.items()))

    def _by_size(self, sized: Sequence[tuple[int, Sequence[tuple[str, str]]]]) -> str:
        """A tree of comparisons."""
        if len(sized) > 1:
            middle = len(sized) // 2
            less, others = self._by_size(sized[:middle]), self._by_size(sized[middle:])
            return f"CASE WHEN {SIZE} < {sized[middle][0]} THEN {less} ELSE {others} END"
        size, named = sized[0]
        if len({text for _, text in named}) == 1:
            return f"CASE WHEN {SIZE} = {size} THEN {named[0][1]} ELSE {_UNKNOWN} END"
        self.used.add(FILE)
        cases = " ".join(f"WHEN {FILE} = '{name}' THEN {text}" for name, text in named)
        return f"CASE WHEN {SIZE} <> {size} THEN {_UNKNOWN} {cases} ELSE {_UNKNOWN} END"
