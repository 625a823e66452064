"""The examples of docs/format.md are what the code writes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_examples_are_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("examples", DOCS / "examples.py")
    assert spec is not None
    assert spec.loader is not None
    examples = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(examples)
    page = (DOCS / "format.md").read_text()
    assert examples.filled(page) == page, "run: python docs/examples.py"
    assert page.count("```json") >= 3
