"""Examples of pages that stand as programs, such as docs/frames.md, print what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "example"),
    [
        ("frames.md", "round trip"),
        ("python.md", "python"),
        ("changes.md", "changes"),
        ("changes.md", "cursor"),
        ("versions.md", "versions"),
        ("updates.md", "updates"),
        ("replace-a-day.md", "replace a day"),
        ("partitions.md", "partitions"),
        ("sorting.md", "sorting"),
        ("python.md", "aio"),
        ("sql.md", "sql"),
        ("dbapi.md", "dbapi"),
        ("dbapi.md", "sqlalchemy"),
        ("caching.md", "caching"),
    ],
)
def test_the_example_prints_what_it_says(page: str, example: str, tmp_path: Path) -> None:
    text = (DOCS / page).read_text()
    found = re.search(rf"<!-- example: {example} -->\n```python\n(.*?)```", text, re.DOTALL)
    assert found
    done = subprocess.run([sys.executable, "-c", found[1]], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == re.findall(r"print\(.*\)\s+# (.+)$", found[1], re.MULTILINE)
