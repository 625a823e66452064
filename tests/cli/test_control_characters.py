"""No control character of a file, name or value reaches a terminal: all output passes one place."""

from __future__ import annotations

import ast
import json
import os
import pty
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

import dolmen
import dolmen.cli
from dolmen.cli.output import console, errors, print_json, print_text, printable

ATTACK = "\x1b[31mRED\x1b]0;OWNED\x07\x9b2J\u202eevil\u2066"
CONTROLS = ("\x1b", "\x07", "\x9b", "\u202e", "\u2066")
FOLDER = Path(dolmen.cli.__file__).parent


def controls_in(text: str) -> list[str]:
    return [character for character in CONTROLS if character in text]


def test_only_one_module_writes_to_standard_output_and_standard_error() -> None:
    for path in FOLDER.glob("*.py"):
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        written = {ast.unparse(call) for call in calls}
        allowed = {"sys.stdout.write"} if path.name in ("output.py", "options.py", "__init__.py") else set()
        writers = {"print", "typer.echo", "typer.secho", "Console", "rich.print", "sys.stderr.write"}
        writers |= {"sys.stdout.write", "sys.stdout.writelines", "sys.stdout.buffer.write", "sys.stderr.writelines"}
        assert written & writers <= allowed, path.name


@pytest.mark.parametrize("markup", [True, False])
def test_the_consoles_show_control_characters_escaped(capsys: pytest.CaptureFixture[str], markup: bool) -> None:
    for each in (console, errors):
        each.print(f"before {ATTACK.replace('[', '(')} after\nnext line", markup=markup)
    shown = capsys.readouterr()
    for text in (shown.out, shown.err):
        assert not controls_in(text)
        assert "\\x1b(31mRED" in text
        assert len(text.splitlines()) == 2


def test_text_and_json_have_no_control_characters_and_json_keeps_its_value(capsys: pytest.CaptureFixture[str]) -> None:
    print_text(ATTACK)
    assert not controls_in(capsys.readouterr().out)
    print_json({"name": ATTACK, "plain": "größe 日本 🙂"})
    printed = capsys.readouterr().out
    assert not controls_in(printed)
    assert "größe 日本 🙂" in printed
    assert json.loads(printed) == {"name": ATTACK, "plain": "größe 日本 🙂"}


def test_what_can_be_printed_stays_as_it_is() -> None:
    assert printable("größe\t日本 🙂", "\t") == "größe\t日本 🙂"
    assert printable("a\nb") == "a\\nb"


def seen_on_terminal(program: str, folder: Path, *arguments: str) -> str:
    """What a terminal gets of both outputs of a command, whatever its exit code."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": "150", "TERM": "dumb", "DOLMEN_DATABASE": str(folder / "db")}
    environment |= {"DOLMEN_REJECTED_URL": str(folder / "rejected"), "DOLMEN_AUTO_CREATE": "1"}
    with subprocess.Popen([program, *arguments], stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                part = os.read(ours, 65_536)
            except OSError:  # Linux says so when nobody writes any more
                break
            seen += part
        os.close(ours)
        process.wait(120)
    return seen.decode(errors="replace")


@pytest.mark.slow
def test_every_door_for_names_and_values_of_others_is_safe(program: str, tmp_path: Path) -> None:
    landing = tmp_path / "landing" / "t"
    landing.mkdir(parents=True)
    name = ATTACK.replace("/", "")
    db = dolmen.open(str(tmp_path / "db"))
    table = db.create_table("t", pa.schema([("id", pa.int64()), (f"c{name}", pa.string())]))
    table.append({"id": [1], f"c{name}": [name]})
    (landing / f"a{name}.csv").write_text("id\nx\n")
    (landing / "b.csv").write_text(f"id,zz{name}\nx{name},2\n")
    (landing / "c.jsonl").write_text(json.dumps({"id": name}) + "\n")
    bad = tmp_path / f"bad{name}.csv"
    bad.write_text(f"id,zz{name}\nx{name},2\n")
    commands = [
        ["backfill", str(tmp_path / "landing")],
        ["rejected", "ls"],
        ["append", "t", str(bad)],
        ["append", "t", str(bad), "--json"],
        ["create", "u", "--like", str(bad)],
        ["show", "t"],
        ["scan", "t"],
        ["scan", "t", "--format", "csv"],
        ["scan", "t", "--format", "jsonl"],
        ["scan", "t", "--explain", "--columns", f"c{name}"],
        ["scan", "t", "--columns", f"no{name}"],
        ["sql", f"EXPLAIN SELECT * FROM t WHERE id = 1 AND 'x' <> '{name}'"],
        ["sql", f"SELECT nope('{name}')"],
        ["delete", "t", "--where", f'"no{name}" = 1'],
        ["local", "--once", "--root", str(tmp_path), "--no-report"],
    ]
    for command in commands:
        seen = seen_on_terminal(program, tmp_path, *command)
        assert seen, command
        assert not controls_in(seen), (command, seen)
    rejects = seen_on_terminal(program, tmp_path, "rejected", "ls", "--json")
    assert rejects
    assert not controls_in(rejects)
    for line in rejects.splitlines():
        if "key" in line:
            shown = seen_on_terminal(program, tmp_path, "rejected", "show", json.loads(line)["key"])
            assert not controls_in(shown), shown
