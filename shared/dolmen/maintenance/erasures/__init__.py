"""Erasures on their way from hidden to gone: their deadlines, what holds their rows, and their receipts.

It imports what ``dolmen.maintenance`` may import. Begin with ``dolmen.maintenance.erasures.erasure_work``.
"""
