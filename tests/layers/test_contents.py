"""What `sam build` makes: both architectures' layers, small enough, for the right machine, and complete."""

from __future__ import annotations

import platform
import re
import struct
import subprocess
from collections.abc import Iterator
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import pytest
from layers.bytecode import find_python
from layers.dependencies.trim import SERVICES, find_strip

from support.built import FUNCTIONS, LAYERS, ROOT, RUNTIME, built_stack

pytestmark = pytest.mark.slow

LIMIT_BYTES = 220_000_000
"""Lambda takes 250 MB, layers and function together: so much is left for what is added."""

MACHINES = {"x86_64": 62, "arm64": 183}  # e_machine of ELF
SYMBOL_TABLE = 2  # a section's sh_type; what the loader needs is another one


def files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in files(folder))


def libraries(folder: Path) -> list[Path]:
    return [path for path in files(folder) if re.search(r"\.so(\.|$)", path.name)]


def elf(path: Path) -> tuple[int, set[int]]:
    """For which machine a library is, and the types of its sections."""
    content = path.read_bytes()
    assert content[:5] == b"\x7fELF\x02", path
    (machine,) = struct.unpack_from("<H", content, 18)
    (start,) = struct.unpack_from("<Q", content, 40)
    each, count = struct.unpack_from("<HH", content, 58)
    return machine, {struct.unpack_from("<I", content, start + index * each + 4)[0] for index in range(count)}


@pytest.mark.parametrize("architecture", LAYERS)
def test_layers_and_any_function_fit_into_lambda_with_room_to_spare(architecture: str) -> None:
    stack = built_stack()
    functions = sum(size(ROOT / "functions" / function) for function in FUNCTIONS)
    assert size(stack / LAYERS[architecture]) + size(stack / "CoreLayer") + functions < LIMIT_BYTES


@pytest.mark.parametrize("architecture", LAYERS)
def test_every_library_is_for_the_layers_machine(architecture: str) -> None:
    found = libraries(built_stack() / LAYERS[architecture])
    names = {path.name.split(".")[0] for path in found}
    assert names >= {
        "libarrow",
        "libparquet",
        "libarrow_dataset",
        "lib",
        "_parquet",
        "_dataset",
        "_csv",
        "_json",
        "_s3fs",
    }
    assert names >= {"pyroaring", "_multiarray_umath", "_core", "_read"}  # roaring bitmaps, numpy, msgspec, fastavro
    assert {elf(path)[0] for path in found} == {MACHINES[architecture]}


@pytest.mark.parametrize("architecture", LAYERS)
def test_pyarrows_libraries_are_stripped_where_this_machine_can(architecture: str) -> None:
    machine = "aarch64" if architecture == "arm64" else architecture
    if find_strip(machine) is None:
        pytest.skip(f"no strip for {machine} on this {platform.machine()} machine: apt install llvm")
    pyarrow = libraries(built_stack() / LAYERS[architecture] / "python" / "pyarrow")
    assert pyarrow
    for path in pyarrow:
        assert SYMBOL_TABLE not in elf(path)[1], path.name


@pytest.mark.parametrize("architecture", LAYERS)
def test_a_layer_holds_nothing_that_no_function_reads(architecture: str) -> None:
    folder = built_stack() / LAYERS[architecture] / "python"
    assert {path.name for path in (folder / "botocore" / "data").iterdir() if path.is_dir()} == SERVICES
    endings = {path.suffix for path in files(folder)}
    assert not endings & {".pyx", ".pxd", ".pyi", ".h", ".hpp", ".a", ".c", ".cpp"}
    assert not [path for path in folder.rglob("tests") if path.is_dir()]
    assert not list(folder.glob("pyarrow/*flight*"))


def test_the_core_layer_holds_the_package_without_what_no_function_runs() -> None:
    package = built_stack() / "CoreLayer" / "python" / "dolmen"
    assert (package / "py.typed").exists()
    folders = {path.name for path in package.iterdir() if path.is_dir()}
    assert folders >= {"format", "store", "commit", "ingest", "maintenance", "predicate", "rows"}
    assert not folders & {"cli", "spark"}
    assert not (package / "service" / "check_store").exists()
    assert {path.suffix for path in files(package)} == {".py", ".pyc", ".typed"}
    source = ROOT / "shared" / "dolmen"
    for path in package.rglob("*.py"):
        assert path.read_bytes() == (source / path.relative_to(package)).read_bytes()


@pytest.mark.parametrize("layer", [*LAYERS.values(), "CoreLayer"])
def test_a_layer_brings_the_bytecode_that_lambda_could_not_keep(layer: str) -> None:
    python = find_python(RUNTIME)
    if python is None:
        pytest.skip(f"no Python {RUNTIME} on this machine to compile with")
    ask = [python, "-c", "import importlib.util as u; print(u.MAGIC_NUMBER.hex(), end='')"]
    magic = bytes.fromhex(subprocess.run(ask, capture_output=True, text=True, check=True).stdout)
    assert len(magic) == len(MAGIC_NUMBER)
    folder = built_stack() / layer
    modules = list(folder.rglob("*.py"))
    assert len(modules) > 50
    for module in modules:
        compiled = module.parent / "__pycache__" / f"{module.stem}.cpython-{RUNTIME.replace('.', '')}.pyc"
        head = compiled.read_bytes()[:8]
        assert head[:4] == magic
        assert int.from_bytes(head[4:], "little") == 0b01, f"{compiled} is checked against its source's time"


def test_bytecode_names_files_as_they_are_called_on_lambda() -> None:
    (compiled,) = (built_stack() / "CoreLayer").rglob("dolmen/api/__pycache__/database.*.pyc")
    content = compiled.read_bytes()
    assert b"/opt/python/dolmen/api/database.py" in content
    assert str(ROOT).encode() not in content


def test_a_layer_that_is_built_again_is_the_same(tmp_path: Path) -> None:
    make = ["make", "--silent", "-C", str(tmp_path), "--makefile", str(ROOT / "layers" / "core" / "Makefile")]
    subprocess.run([*make, "build-CoreLayer", f"ARTIFACTS_DIR={tmp_path / 'again'}"], check=True)
    built = built_stack() / "CoreLayer"
    contents = {path.relative_to(built): path.read_bytes() for path in files(built)}
    again = {path.relative_to(tmp_path / "again"): path.read_bytes() for path in files(tmp_path / "again")}
    assert {path for path in contents | again if contents.get(path) != again.get(path)} == set()
