"""A YAML document whose every part knows the line it stands on, and that is only ever text, lists and mappings.

Nothing is constructed from it but text: ``30d``, ``false`` and ``007`` are what they look like, a column may be called
``on``, and no tag can name anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

from dolmen.base.units import MIB
from dolmen.errors import Error, InputError, LimitError

T = TypeVar("T")

MAX_BYTES = MIB

_CORE = "tag:yaml.org,2002:"
_TEXTUAL = frozenset(_CORE + name for name in ("str", "int", "float", "bool", "timestamp", "merge", "value"))
_NULL = _CORE + "null"


@dataclass(frozen=True, slots=True)
class DocumentPart:
    """A node of the document.

    Args:
        file: its name, for messages.
        what: what it is, for messages: "table 'events'".
    """

    node: Any
    file: str
    what: str

    @property
    def line(self) -> int:
        """The line on which it begins, counted from 1."""
        return int(self.node.start_mark.line) + 1

    def error(self, reason: object, kind: type[InputError] = InputError) -> InputError:
        """An error that says where in the file, about what, and why."""
        return kind(f"{self.file}, line {self.line}: {self.what}: {reason}")

    def check(self, function: Callable[..., T], *arguments: Any) -> T:
        """Calls ``function``; what it finds wrong is said with the place of this part."""
        try:
            return function(*arguments)
        except InputError as error:
            raise self.error(error, type(error) if type(error).__init__ is Error.__init__ else InputError) from error

    @property
    def is_list(self) -> bool:
        """True for a list."""
        return bool(self.node.id == "sequence")

    @property
    def is_mapping(self) -> bool:
        """True for a mapping."""
        return bool(self.node.id == "mapping")

    def members(self, known: Iterable[str] | None = None, *, of: str = "{}") -> dict[str, DocumentPart]:
        """The members of a mapping, in their order.

        Args:
            known: the names there may be; None = any.
            of: what each is, with ``{}`` for its name, for messages.

        Raises:
            InputError: no mapping, a name twice, or one that is not known.
        """
        if self.node.id != "mapping" or self.node.tag != _CORE + "map":
            raise self.error(f"{self._shown()} is no mapping: write 'name: value' lines, or {{name: value, ...}}")
        allowed = None if known is None else list(known)
        members: dict[str, DocumentPart] = {}
        for key, value in self.node.value:
            place = DocumentPart(key, self.file, self.what)
            name = place.text("a name")
            if name == "<<":
                raise place.error("'<<' is not understood here: write the members out")
            if name in members:
                raise place.error(f"{name!r} stands here twice, first on line {members[name].line}")
            if allowed is not None and name not in allowed:
                raise place.error(f"unknown member {name!r}; {_instead(name, allowed)}")
            members[name] = DocumentPart(value, self.file, of.format(repr(name)) if "{}" in of else f"{of} {name!r}")
        return members

    def text(self, wanted: str = "one value") -> str:
        """The value of this node as text. Raises InputError for a list, a mapping, or nothing."""
        node = self.node
        if node.id != "scalar":
            raise self.error(f"{self._shown()} is not {wanted}")
        if node.tag == _NULL:
            raise self.error(f"{wanted} is missing: write it, or leave the line away")
        if node.tag not in _TEXTUAL:
            raise self.error(f"the tag {node.tag} is not understood: write plain values")
        return str(node.value)

    def texts(self) -> list[str]:
        """A list of texts; one text is a list of one. An empty or ``null`` element is meant as text, too."""
        if not self.is_list:
            return [self.text()]
        if wrong := next((node for node in self.node.value if node.id != "scalar"), None):
            raise DocumentPart(wrong, self.file, self.what).error("a list of texts has no lists and mappings in it")
        return [str(node.value) for node in self.node.value]

    def _shown(self) -> str:
        if self.node.id != "scalar":
            return {"sequence": "a list", "mapping": "a mapping"}[self.node.id]
        return repr(self.node.value) if self.node.value else "nothing"


def parse_document(text: str, file: str) -> DocumentPart:
    """Reads a YAML document.

    Raises:
        LimitError: it is larger than a megabyte.
        InputError: it is not YAML, empty, or more than one document.
    """
    import yaml  # here: only those who declare tables need it

    if len(text) > MAX_BYTES:
        raise LimitError(f"{file}: {len(text):,} characters; at most {MAX_BYTES:,} are read")
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}" if mark else ""
        reason = "; ".join(str(part) for part in (error.context, error.problem, error.note) if part)
        raise InputError(f"{file}{place}: not YAML: {reason}") from error
    except yaml.YAMLError as error:
        raise InputError(f"{file}: not YAML: {error}") from error
    except RecursionError:
        raise InputError(f"{file}: not a declaration: nested too deeply") from None
    if node is None:
        raise InputError(f"{file}: empty: write 'tables:' and a table below it")
    return DocumentPart(node, file, "the file")


def _instead(name: str, known: list[str]) -> str:
    close = [one for one in known if name.endswith(f"_{one}")] or get_close_matches(name, known, 1)
    return f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(known)}"
