"""Simulates the world of a history: virtual time, processes that crash, a faulty network, and the S3 server.

``fates`` lists the possible fates of a request, and ``network`` draws the fates of a history from its seed. Files are
dropped into a ``landing`` bucket on the same network.
It imports ``dolmen_simulator.judge`` and dolmen; only ``dolmen_simulator.world.wire`` knows boto3.
Begin with ``dolmen_simulator.world.scheduler``, then ``dolmen_simulator.world.server`` and
``dolmen_simulator.world.network``.
"""
