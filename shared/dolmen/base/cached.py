"""A property that is made once for each object, without a lock.

``functools.cached_property`` of Python 3.11 holds one lock for all objects of a class while it makes a value: whoever
fetches something in one stops every other thread that uses the class.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class cached_property(Generic[T]):  # noqa: N801 - it is used as what it stands for is
    """Decorates a method whose result an object keeps under the method's name.

    Threads that ask for the first time at once may each make the value; all of them get the one that was kept.
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
