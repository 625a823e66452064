"""Predicates, the conditions on rows: parses, binds, stores, evaluates and prints them, and prunes files by statistics.

docs/predicates.md says what they mean, on every engine.

It imports ``dolmen.format`` and the packages below it, but not ``dolmen.store``.
Begin with ``dolmen.predicate.ast``, then ``dolmen.predicate.parse``, ``dolmen.predicate.bind`` and
``dolmen.predicate.evaluate``.
"""
