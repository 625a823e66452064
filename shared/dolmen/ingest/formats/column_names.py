"""Names for columns that have none in their file, or one that another column has (``ingest_names: number``)."""

from __future__ import annotations

from collections.abc import Iterable

NUMBER_THEM = "ingest_names: number gives such columns names (column_3, name_2)"
"""What helps where names are missing or repeated."""


def number_names(names: Iterable[str]) -> list[str]:
    """Names that are all there, and each once in any case: what lacks one is ``column_3``, what repeats one ``name_2``.

    The first column of a name keeps it, and so does one that is called ``name_2`` or ``column_3`` in the file.
    """
    given = list(names)
    taken = {name.lower() for name in given}
    seen, numbered = set[str](), list[str]()
    count: dict[str, int] = {}
    for position, name in enumerate(given, 1):
        own = name
        if not name.strip():
            own = stem = f"column_{position}"
            number = 1
        elif name.lower() in seen:
            stem, number = name, count.get(name.lower(), 1) + 1
            own = f"{stem}_{number}"
        if own != name:
            while own.lower() in taken:
                number += 1
                own = f"{stem}_{number}"
            count[stem.lower()] = number
            taken.add(own.lower())
        seen.add(own.lower())
        numbered.append(own)
    return numbered
