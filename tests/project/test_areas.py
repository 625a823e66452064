"""``make test AREA=...``, the processes that share out the tests, and the shards of the workflow know all tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support import areas, sharing_out

ROOT = Path(__file__).parents[2]
MODULES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))


def test_every_part_of_the_package_is_an_area_and_each_has_tests() -> None:
    assert set(areas.parts()) <= set(areas.areas())
    assert set(areas.ELSEWHERE) <= set(areas.parts()) - set(areas.folders())
    for area in areas.areas():
        assert all((ROOT / path).exists() for path in areas.paths_of([area])), area


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_a_page_names_areas_that_are_there(page: str) -> None:
    named = re.findall(r'AREA="?([a-z_ ]+?)"?[`\s]', (ROOT / page).read_text())
    assert named
    for names in named:
        areas.paths_of(names.split())


def test_each_folder_of_tests_is_in_one_shard_of_the_workflow() -> None:
    in_shards = [folder for shard in areas.SHARDS.values() for folder in shard]
    assert sorted(in_shards) == sorted({module.split("/")[1] for module in MODULES})


def test_areas_beside_the_package_and_of_its_slow_tests_are_there() -> None:
    assert all((ROOT / name).exists() or (ROOT / "shared" / name).exists() for name in areas.BESIDE_THE_PACKAGE)
    listed = (areas.BESIDE_THE_PACKAGE, areas.SLOW_ELSEWHERE)
    assert {area for table in listed for names in table.values() for area in names} <= set(areas.areas())
    assert set(areas.SLOW_ELSEWHERE) <= set(areas.areas())


def test_what_is_shared_out_by_name_is_there() -> None:
    for path in (*sharing_out.SPARK, *sharing_out.TOGETHER, *sharing_out.LONGEST_FIRST):
        assert any(module.startswith(path) for module in MODULES), path


def test_modules_that_take_the_spark_session_go_where_it_is() -> None:
    taking = {
        module
        for module in MODULES
        if re.search(r"^def \w+\([^)]*\bspark: ", (ROOT / module).read_text(), re.MULTILINE)
        or "spark_on_s3" in (ROOT / module).read_text()
    } - {"tests/project/test_areas.py"}
    assert taking
    assert not {module for module in taking if not sharing_out.needs_spark(sharing_out.share_of(module))}
