"""How data files are written. The defaults were measured; tests and maintenance choose others."""

from __future__ import annotations

from dataclasses import dataclass

from dolmen.base.units import MIB


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Sizes of what is written.

    Args:
        target_file_bytes: a file is finished by the first run that brings it to this size (compressed).
        run_bytes: rows are taken, sorted and encoded in runs of up to this much Arrow memory. As many are in memory as
            processors encode them (eight at most) and one more, each of them twice while it is sorted: this is what
            bounds memory.
        run_rows: rows of a run at most.
        row_group_bytes: a row group is not planned larger than this (compressed), unless it has few rows then.
        compression_level: of ZSTD. Level 1 takes half the time of level 3, for files 3 % larger on random text.
    """

    target_file_bytes: int = 384 * MIB
    run_bytes: int = 16 * MIB
    run_rows: int = 1 << 20
    row_group_bytes: int = 4 * MIB
    compression_level: int = 1


DEFAULT = WriteOptions()
