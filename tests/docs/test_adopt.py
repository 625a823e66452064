"""docs/adopt.md: its example is run as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "adopt.md").read_text()


def test_the_example_does_what_it_says(tmp_path: Path) -> None:
    found = re.search(r"<!-- example: adopt -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert found
    done = subprocess.run([sys.executable, "-c", found[1]], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == re.findall(r"print\(.*\)\s+# (.+)$", found[1], re.MULTILINE)
