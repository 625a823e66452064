"""The lowest package: clock, randomness, retries, temporary files, arguments, units. It knows nothing about tables.

It imports only ``dolmen.errors``. Begin with ``dolmen.base.runtime``.
"""

from typing import TYPE_CHECKING, Any

__all__ = ["pc"]

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:

    class _Compute:
        """``pyarrow.compute``, imported at its first use: making its hundreds of functions takes 0.1 s."""

        def __getattr__(self, name: str) -> Any:
            import pyarrow.compute

            self.__dict__[name] = found = getattr(pyarrow.compute, name)
            return found

    pc = _Compute()
