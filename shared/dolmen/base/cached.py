"""A property that is computed once for each object, without a lock.

``functools.cached_property`` of Python 3.11 holds one lock for all objects of a class while it computes a value: if the
computation reads from the store, all other threads that use the class wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class cached_property(Generic[T]):  # noqa: N801 - named like functools.cached_property
    """Decorates a method whose result is kept in the object under the method's name.

    Threads that read it first at the same time may each compute the value; all of them get the one that was kept.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function, self.__doc__ = function, function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> cached_property[T]: ...

    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T: ...

    def __get__(self, instance: object | None, owner: type | None = None) -> cached_property[T] | T:
        if instance is None:
            return self
        found: T = instance.__dict__.setdefault(self._name, self._function(instance))
        return found
