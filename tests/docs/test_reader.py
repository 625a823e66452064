"""The examples of docs/reader.md are run, and examples/reader.py is as short and as independent as it says."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.golden import unpack
from support.second_reader import PATH, load_reader

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reader.md").read_text()
MOST_LINES = 450
MOST_LINES_OF_PSEUDO_CODE = 40


def run(command: list[str], directory: Path) -> list[str]:
    (directory / "examples").symlink_to(ROOT / "examples")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DOLMEN_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        command, cwd=directory, env={**environment, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_the_commands_print_what_the_page_says(tmp_path: Path) -> None:
    [commands] = re.findall(r"<!-- tour: reader -->\n```sh\n(.*?)```", PAGE, re.DOTALL)
    printed = run(["bash", "-euo", "pipefail", "-c", commands], tmp_path)
    promised = re.findall(r"^python .*  # (.+)$", commands, re.MULTILINE)
    assert printed[-2:] == promised[:2]
    assert promised[2].startswith("(no rows")


@pytest.mark.slow
def test_the_python_example_prints_what_the_page_says(tmp_path: Path) -> None:
    [example] = re.findall(r"<!-- example: reader -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    promised = re.findall(r"^print\(.*\)\s+# (.+)$", example, re.MULTILINE)
    assert len(promised) == 3
    assert run([sys.executable, "-c", example], tmp_path) == promised


def test_the_newest_version_is_read_in_forty_lines() -> None:
    newest = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)[0]
    assert len([line for line in newest.splitlines() if line.strip()]) <= MOST_LINES_OF_PSEUDO_CODE


def test_the_reader_is_short_and_imports_pyarrow_pyroaring_and_the_standard_library() -> None:
    source = PATH.read_text()
    count = len([line for line in source.splitlines() if line.strip()])
    assert count <= MOST_LINES
    assert f"{round(count, -1)} lines of Python" in PAGE
    imported = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            imported.add(str(node.module).partition(".")[0])
        elif isinstance(node, ast.Import):
            imported |= {name.name.partition(".")[0] for name in node.names}
    assert imported - sys.stdlib_module_names == {"pyarrow", "pyroaring"}


@pytest.mark.parametrize("place", range(6))
def test_the_reader_refuses_objects_with_a_flipped_bit(place: int) -> None:
    """In what it reads of a database, in six parts of each object."""
    reader, objects = load_reader(), unpack("vectors")
    read: list[str] = []

    def get(key: str) -> bytes:
        read.append(key)
        return objects[key]

    reader.Database(get).rows("t")
    for key in dict.fromkeys(read):
        body = bytearray(objects[key])
        body[len(body) * place // 6] ^= 16
        damaged = {**objects, key: bytes(body)}
        if key.startswith("tombstone/"):
            continue  # bytes between blobs are not read
        with pytest.raises((reader.FormatError, ValueError, KeyError)):
            reader.Database(damaged.__getitem__).rows("t")


def test_the_reader_refuses_what_it_does_not_know() -> None:
    reader = load_reader()
    for text, reason in (
        ('{"format_version":2,"features":[]', "format version 2 is unknown"),
        ('{"format_version":1,"features":["tags","telepathy"]', r"the features \['telepathy'\] are unknown"),
    ):
        sealed = f'{text},"crc32":{reader.zlib.crc32(text.encode() + b"}")}}}'.encode()
        with pytest.raises(reader.FormatError, match=reason):
            reader.unseal(sealed, "key")
    objects = unpack("tags")
    with pytest.raises(reader.FormatError, match="version 1 does not exist, or is not kept"):
        reader.Database(objects.__getitem__).rows("t", 1)
    with pytest.raises(reader.FormatError, match="has no table none"):
        reader.Database(objects.__getitem__).rows("none")
