"""The world of a history: virtual time, processes that crash, a network that loses and delays, and the S3 server.

``fates`` says what may become of a request, and ``network`` deals the fates of a history from its seed. Files are
dropped into a ``landing`` place on the same network.
It imports ``dolmen_simulator.judge`` and dolmen; only ``dolmen_simulator.world.wire`` knows boto3.
Begin with ``dolmen_simulator.world.scheduler``, then ``dolmen_simulator.world.server`` and
``dolmen_simulator.world.network``.
"""
