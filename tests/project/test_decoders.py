"""Types that msgspec reads are built while their module is imported: two threads that build one may crash."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

PACKAGE = Path(__file__).parents[2] / "shared" / "dolmen"
READS = {
    "msgspec.convert": (1, "type"),
    "msgspec.json.decode": (None, "type"),
    "msgspec.msgpack.decode": (None, "type"),
    "msgspec.json.Decoder": (0, "type"),
    "decode_sealed": (2, "kind"),
}
"""Where calls have the type that they read."""

MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "msgspec" in path.read_text())


def structs_of(kind: Any) -> set[type]:
    """The Structs in a type, at any depth."""
    found, seen, waiting = set[type](), set[int](), [msgspec.inspect.type_info(kind)]
    while waiting:
        info: Any = waiting.pop()
        if id(info) in seen:
            continue
        seen.add(id(info))
        if isinstance(info, msgspec.inspect.StructType):
            found.add(info.cls)
            waiting += [field.type for field in info.fields]
        waiting += [getattr(info, name) for name in ("item_type", "value_type", "key_type") if hasattr(info, name)]
        waiting += [*getattr(info, "types", ()), *getattr(info, "item_types", ())]
    return found


def calls(module: ModuleType) -> Iterator[ast.Call]:
    assert module.__file__
    return (node for node in ast.walk(ast.parse(Path(module.__file__).read_text())) if isinstance(node, ast.Call))


def value_of(module: ModuleType, node: ast.expr) -> Any:
    """The value of an expression; None if it has names of a function."""
    try:
        return eval(ast.unparse(node), vars(module))
    except NameError:
        return None


def built(module: ModuleType) -> set[type]:
    found = set[type]()
    for call in calls(module):
        if ast.unparse(call.func) == "build_decoders":
            for argument in call.args:
                is_several = isinstance(argument, ast.Starred)
                value = value_of(module, argument.value if isinstance(argument, ast.Starred) else argument)
                for kind in value if is_several else [value]:
                    found |= structs_of(kind)
    return found


def read(module: ModuleType) -> set[type]:
    """The Structs that calls in a module read; in one that reads types which it is passed, those that it passes."""
    found, passes = set[type](), False
    for call in calls(module):
        place, keyword = READS.get(ast.unparse(call.func), (None, ""))
        types = [each.value for each in call.keywords if each.arg == keyword]
        types += call.args[place : place + 1] if place is not None else []
        for node in types:
            if (kind := value_of(module, node)) is not None:
                found |= structs_of(kind)
            else:
                passes = True
    if passes:
        names = {node.id for call in calls(module) for node in call.args if isinstance(node, ast.Name)}
        kinds = [vars(module).get(name) for name in names]
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind is not msgspec.Struct:
                with suppress(TypeError):  # it has values that msgspec can't read
                    found |= structs_of(kind)
    return found


@pytest.fixture(scope="module")
def modules() -> list[ModuleType]:
    names = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in MODULES]
    return [importlib.import_module(name.removesuffix(".__init__")) for name in names]


def test_types_that_are_read_are_built_when_their_module_is_imported(modules: list[ModuleType]) -> None:
    known = set[type]().union(*map(built, modules))
    unbuilt = {f"{module.__name__}: {kind.__name__}" for module in modules for kind in read(module) - known}
    assert len(known) > 30
    assert not unbuilt, "name them in build_decoders()"
