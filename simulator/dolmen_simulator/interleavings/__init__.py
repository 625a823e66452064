"""Runs every interleaving of two calls, without faults and then with one fault at every point.

It imports ``dolmen_simulator.simulation`` and what lies below that.
Begin with ``dolmen_simulator.interleavings.enumeration``, then ``dolmen_simulator.interleavings.execution``;
``dolmen_simulator.interleavings.registry`` lists the pairs.
"""
