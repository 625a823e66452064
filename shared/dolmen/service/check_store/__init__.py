"""Checks that an object store does what dolmen relies on.

The tests check dolmen's own stores with it; ``dolmen check-store`` checks any other.
It imports everything but ``dolmen.cli`` and ``dolmen.spark``.
Begin with ``dolmen.service.check_store.contract``, then ``dolmen.service.check_store.check_run``.
"""
