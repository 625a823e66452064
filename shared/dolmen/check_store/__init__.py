"""Checks that a store does what dolmen relies on.

The tests check dolmen's own stores with it; ``dolmen check-store`` checks yours.
It imports everything but ``dolmen.cli`` and ``dolmen.spark``.
Begin with ``dolmen.check_store.contract`` (the promises), then ``dolmen.check_store.run``.
"""
