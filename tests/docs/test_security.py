"""docs/security.md names limits with the numbers that the code has."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
LIMITS = re.findall(r"^\| [^|]+ \| ([\d,]+)[^|]* \| `(dolmen[\w.]+)\.([A-Z_]+)`", PAGE, re.MULTILINE)


def test_the_page_has_limits() -> None:
    assert len(LIMITS) >= 20


@pytest.mark.parametrize(("number", "module", "name"), LIMITS, ids=[f"{module}.{name}" for _, module, name in LIMITS])
def test_each_limit_is_the_one_of_the_code(number: str, module: str, name: str) -> None:
    assert getattr(importlib.import_module(module), name) == int(number.replace(",", ""))


def test_what_the_page_points_at_is_there() -> None:
    for path in re.findall(r"`((?:dolmen|tests|docs)/[\w./]+\.(?:py|md))`", PAGE):
        assert (ROOT / path).is_file() or (ROOT / "shared" / path).is_file(), path
    for name, path in re.findall(r"`(\w+)`(?:, `\w+`)? in `(dolmen/[\w/]+\.py)`", PAGE):
        assert re.search(rf"\b{name}\b", (ROOT / "shared" / path).read_text()), f"{name} in {path}"
