"""docs/api.md shows each public name of each public class, and the examples in their docstrings run."""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

import dolmen

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text()


def shown() -> Iterator[tuple[Any, bool]]:
    """What the page shows, and whether it shows inherited members, too."""
    for path, options in re.findall(r"^::: (\S+)\n((?:    .*\n)*)", PAGE + "\n", re.MULTILINE):
        try:
            yield import_module(path), "inherited_members: true" in options
        except ModuleNotFoundError:
            module, _, name = path.rpartition(".")
            yield getattr(import_module(module), name), "inherited_members: true" in options


def classes() -> dict[str, tuple[type, bool]]:
    """The classes on the page, by name, and whether it shows their inherited members."""
    found: dict[str, tuple[type, bool]] = {}
    for each, inherited in shown():
        if isinstance(each, ModuleType):
            own = [c for c in vars(each).values() if inspect.isclass(c) and c.__module__ == each.__name__]
            found |= {c.__name__: (c, inherited) for c in own if not c.__name__.startswith("_")}
        elif inspect.isclass(each):
            found[each.__name__] = each, inherited
    return found


CLASSES = classes()


def owner(cls: type, name: str) -> type:
    """The class that defines a name."""
    return next(base for base in cls.__mro__ if name in vars(base))


def is_field(cls: type, name: str) -> bool:
    """Whether it is a field of a dataclass or Struct: the docstring of the class describes fields."""
    return name in getattr(cls, "__dataclass_fields__", getattr(cls, "__struct_fields__", ()))


def members(cls: type) -> list[str]:
    """Public names that dolmen defines: others come from Python's own classes, as those of a ``Future``."""
    names = [name for name in dir(cls) if not name.startswith("_") and not is_field(cls, name)]
    return [name for name in names if owner(cls, name).__module__.startswith("dolmen.")]


def test_the_page_shows_every_public_class() -> None:
    public = {name for name in dolmen.__all__ if inspect.isclass(getattr(dolmen, name))}
    assert public <= CLASSES.keys()
    assert len(CLASSES) > 40


@pytest.mark.parametrize("name", CLASSES)
def test_the_page_shows_every_public_name_of_a_class(name: str) -> None:
    cls, inherited = CLASSES[name]
    hidden = [member for member in members(cls) if not inspect.getdoc(inspect.getattr_static(cls, member))]
    assert hidden == [], "names without a docstring are not rendered"
    # A base class that the page shows itself, such as dolmen.errors.Error, need not be shown twice.
    pages = {shown for shown, _ in CLASSES.values()}
    absent = [member for member in members(cls) if not inherited and owner(cls, member) not in {cls, *pages}]
    assert absent == [], "inherited names are not rendered: they need inherited_members"


HANDLES = [
    "Database", "Table", "BufferedWriter", "Snapshot", "PinnedTable", "ChangeCursor", "Scan", "Transaction",
    "TransactionTable",
]  # fmt: skip
"""Classes with methods that a user calls. The others are results."""

ELSEWHERE = {"adopt": "needs files of another program", "to_spark": "needs a Spark session"}
"""Methods whose examples are in docs/adopt.md and docs/spark.md, and why."""

METHODS = [
    (cls, name)
    for cls in HANDLES
    for name in members(CLASSES[cls][0])
    if inspect.isfunction(inspect.getattr_static(CLASSES[cls][0], name)) and name not in ELSEWHERE
]


def documentation(cls: str, name: str) -> str:
    """The docstring of a method; of one that only refers to another class, that of the method there."""
    text = inspect.getdoc(getattr(CLASSES[cls][0], name)) or ""
    if found := re.search(r"See ``(\w+)\.(\w+)``", text):
        return text if ">>>" in text else documentation(found[1], found[2])
    return text


@pytest.mark.parametrize(("cls", "name"), METHODS, ids=lambda each: each)
def test_every_method_has_an_example(cls: str, name: str) -> None:
    assert ">>>" in documentation(cls, name)


def namespace() -> dict[str, Any]:
    """What the examples begin with: a database with one table, in its second version."""
    db = dolmen.open(f"memory://example-{next(NUMBERS)}")
    schema = pa.schema([
        pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), pa.field("age", pa.int64(), nullable=False)
    ])  # fmt: skip
    people = db.create_table("people", schema, primary_key="id")
    names, ages = ["Ada", "Grace", "Linus"], [36, 45, 28]
    people.append(
        [{"id": n, "name": name, "age": age} for n, (name, age) in enumerate(zip(names, ages, strict=True), 1)]
    )
    return {"dolmen": dolmen, "pa": pa, "db": db, "people": people}


NUMBERS = iter(range(1_000_000))


def examples() -> dict[str, str]:
    """The docstrings with examples, by name."""
    found = {each.__name__: inspect.getdoc(each) or "" for each, _ in shown() if not isinstance(each, ModuleType)}
    for cls, (kind, _) in CLASSES.items():
        found |= {f"{cls}.{name}": inspect.getdoc(inspect.getattr_static(kind, name)) or "" for name in members(kind)}
    return {name: text for name, text in found.items() if ">>>" in text}


EXAMPLES = examples()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of_a_docstring_gives_what_it_says(name: str) -> None:
    test = doctest.DocTestParser().get_doctest(EXAMPLES[name], namespace(), name, None, None)
    told: list[str] = []
    flags = doctest.IGNORE_EXCEPTION_DETAIL | doctest.ELLIPSIS
    failed, _ = doctest.DocTestRunner(optionflags=flags).run(test, out=told.append)
    assert not failed, "\n".join(told)
