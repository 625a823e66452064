"""``import dolmen`` takes no time: its names are imported when they are first used, and are those of a plain import."""

from __future__ import annotations

import py_compile
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import dolmen


def test_importing_the_package_imports_no_library_and_only_the_module_that_imports_others_later() -> None:
    source = "import sys, dolmen; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in loaded if name.startswith("dolmen.")] == ["dolmen.base", "dolmen.base.late_imports"]
    assert {"pyarrow", "numpy", "msgspec"}.isdisjoint(loaded)


def test_each_name_is_there_when_it_is_asked_for() -> None:
    assert {*dolmen.__all__} <= {*dir(dolmen)}
    for name in dolmen.__all__:
        assert getattr(dolmen, name) is not None
    assert dolmen.Error is dolmen.errors.Error
    assert dolmen.open is dolmen.api.database.open


_FIRST_TOUCH = {"dolmen", "msgspec", "numpy", "pyarrow", "pyroaring", "cython_runtime", "typing_extensions"}
_HEAVY = {"pyarrow.compute", "pyarrow.dataset", "pyarrow.csv", "pyarrow.json", "rich.markdown", "sqlite3", "unittest"}


@pytest.mark.parametrize(
    ("code", "more"),
    [
        ("dolmen.open(url).table('t').scan().count()", set[str]()),
        ("dolmen.open(url).history()", set[str]()),
        *(
            (f"sys.argv[1:] = {words!r} + ['-d', url]; main()", {"rich", "typer", "shellingham", "annotated_doc"})
            for words in (["tables"], ["history", "--limit", "3"], ["show", "t"], ["scan", "t", "--count"])
        ),
    ],
)
def test_what_reads_the_manifest_alone_imports_only_these_libraries(code: str, more: set[str], tmp_path: Path) -> None:
    dolmen.open(str(tmp_path)).create_table("t", pa.schema([("id", pa.int64())])).append({"id": [1, 2]})
    source = "\n".join(
        [
            "import atexit, sys",
            "before = {*sys.modules}",
            "atexit.register(lambda: print(*sorted({*sys.modules} - before)))",
            "import dolmen",
            "from dolmen.cli import main",
            f"url = {str(tmp_path)!r}",
            code,
        ]
    )
    loaded = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout
    modules = loaded.splitlines()[-1].split()
    libraries = {name.partition(".")[0] for name in modules if not name.startswith("_")} - {*sys.stdlib_module_names}
    assert libraries <= _FIRST_TOUCH | more
    assert _HEAVY.isdisjoint(modules)


@pytest.mark.parametrize("function", ["ingest", "delete", "compact", "gc"])
def test_a_function_imports_only_these_libraries_and_no_garbage_collection_meanwhile(function: str) -> None:
    folder = Path(__file__).parents[2] / "functions" / function
    py_compile.compile(str(folder / "app.py"))  # compiling it makes objects enough for a collection
    source = f"""
import gc, sys
sys.modules["pandas"] = sys.modules["pyspark"] = None
before, collections = {{*sys.modules}}, []
gc.callbacks.append(lambda phase, about: collections.append(about))
sys.path.insert(0, {str(folder)!r})
import app
assert gc.isenabled() and gc.get_freeze_count() > 0
print(len(collections), *sorted({{*sys.modules}} - before))
"""
    loaded = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout
    collections, *modules = loaded.split()
    libraries = {name.partition(".")[0] for name in modules if not name.startswith("_")} - {*sys.stdlib_module_names}
    assert libraries <= _FIRST_TOUCH | {
        "app",
        "aws_lambda_powertools",
        "botocore",
        "jmespath",
    }  # Powertools names itself
    assert (_HEAVY - {"pyarrow.csv", "pyarrow.json"}).isdisjoint(modules)
    assert collections == "0"


def test_a_connection_to_s3_needs_neither_boto3_nor_its_transfers(s3_url: str) -> None:
    source = f"import dolmen, sys; dolmen.open({s3_url!r}).tables(); print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout.split()
    assert "botocore" in loaded
    assert {"boto3", "s3transfer"}.isdisjoint(loaded)


@pytest.mark.parametrize("module", ["dolmen.cli.run", "dolmen.cli.table_data", "dolmen.ingest.drops.ingest_drops"])
def test_inference_is_imported_only_for_a_file_that_nobody_has_described(module: str) -> None:
    source = f"import sys, {module}; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in loaded if name.startswith("dolmen.ingest.inference")] == []


@pytest.mark.parametrize("name", ["opne", "_nothing", "__wrapped__"])
def test_other_names_are_refused_as_those_of_any_module(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'dolmen' has no attribute '{name}'"):
        getattr(dolmen, name)
