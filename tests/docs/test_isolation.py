"""docs/isolation.md: the example prints what it says, and each test that it names is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "isolation.md").read_text()


@pytest.mark.slow
def test_the_example_prints_what_it_says(tmp_path: Path) -> None:
    found = re.search(r"<!-- example: isolation -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert found
    done = subprocess.run(
        [sys.executable, "-c", found[1]], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == re.findall(r"print\(.*\) +# (.*)", found[1])


def test_each_test_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"`(tests/[\w/.]+)`", PAGE))
    assert len(named) > 5
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
    text = "".join((ROOT / path).read_text() for path in named if path.endswith(".py"))
    assert [name for name in re.findall(r"`(test_\w+)`", PAGE) if f"def {name}(" not in text] == []
