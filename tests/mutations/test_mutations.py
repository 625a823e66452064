"""The mutations are those of today's code, and the suite sees them: all of it is run by ``make mutations``."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from dolmen_simulator.judge.never import Never
from mutations.catalogue import MUTATIONS
from mutations.harmless import HARMLESS
from mutations.mutation import Edit, Mutation
from mutations.runner import PACKAGE, Plan, all_tried, tried

QUICK = (
    "the pointer is put without If-Match",
    "an unknown outcome counts as lost",
    "fresh files are a tick older than their tombstone",
)
"""These are caught by the first histories."""

ALL = (*MUTATIONS, *(harmless.mutation for harmless in HARMLESS))


@pytest.mark.slow
def test_every_mutation_still_fits_the_code_and_leaves_python() -> None:
    """Each of its texts stands in its file exactly once; what comes of it parses."""
    wrong: list[str] = []
    for mutation in ALL:
        texts: dict[str, str] = {}
        try:
            for edit in mutation.edits:
                texts[edit.file] = edit.applied(texts.get(edit.file) or (PACKAGE / edit.file).read_text())
            for text in texts.values():
                ast.parse(text)
        except (ValueError, SyntaxError) as error:
            wrong.append(f"{mutation.name}: {error}")
    assert not wrong, "\n".join(wrong)


def test_mutated_code_has_no_name_that_is_not_defined(tmp_path: Path) -> None:
    """It would end with a NameError, which is not what the mutation is about."""
    for number, mutation in enumerate(ALL):
        for file in {edit.file for edit in mutation.edits}:
            text = (PACKAGE / file).read_text()
            for edit in mutation.edits:
                text = edit.applied(text) if edit.file == file else text
            (tmp_path / f"{number}_{Path(file).name}").write_text(text)
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", QUICK)
def test_a_mutation_is_caught_by_what_must_never_happen(name: str) -> None:
    (mutation,) = (each for each in MUTATIONS if each.name == name)
    outcome = tried(mutation, Plan(8, pairs=False, seconds=240))
    assert not outcome.trouble
    assert outcome.caught is not None
    assert outcome.caught.never in {never.name for never in Never}


@pytest.mark.slow
def test_the_code_as_it_is_passes_what_has_caught_a_mutation() -> None:
    (mutation,) = (
        each for each in MUTATIONS if each.name == "a snapshot's second table is read from the newest version"
    )
    plan = Plan(0, pairs=True, seconds=240, first={mutation.name: "transaction/reader"})
    mutated, unmutated = all_tried([mutation], plan, jobs=2)
    assert mutated.caught is not None
    assert [run.what for run in unmutated.runs] == ["transaction/reader"]
    assert unmutated.sound


@pytest.mark.slow
def test_a_crash_of_the_mutated_line_does_not_count_as_caught() -> None:
    """Else any nonsense would be."""
    crash = Edit("commit/change.py", "        self._check_fence(draft.base)\n", "        assert draft is None\n")
    outcome = tried(Mutation("nonsense", "none", (crash,)), Plan(1, pairs=False, seconds=240))
    assert outcome.caught is None
    assert [run.sound for run in outcome.runs] == [False]
    assert "AssertionError" in outcome.runs[0].said
