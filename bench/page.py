"""docs/benchmarks.md: sections, each of one run, found by their titles."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def updated(page: str, head: str, sections: list[str]) -> str:
    """The page with these sections in the place of those of the same title.

    Args:
        head: what is above the first section; empty to keep it.
    """
    old_head, *old = page.split("\n## ")
    kept = {section.partition("\n")[0]: section for section in old}
    for section in sections:
        title, _, _ = section.removeprefix("## ").partition("\n")
        kept[title] = section.removeprefix("## ").rstrip("\n") + "\n"
    return "\n## ".join([(head or old_head).rstrip("\n") + "\n", *kept.values()])
