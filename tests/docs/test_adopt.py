"""docs/adopt.md: its example is run as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "adopt.md").read_text()


@pytest.mark.slow
def test_the_examples_do_what_they_say(tmp_path: Path) -> None:
    code = "".join(re.findall(r"<!-- example: [a-z]+ -->\n```python\n(.*?)```", PAGE, re.DOTALL))
    assert code.count("db.adopt(") == PAGE.count("```python") + 1
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == re.findall(r"print\(.*\)\s+# (.+)$", code, re.MULTILINE)
