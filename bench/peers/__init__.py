"""dolmen compared with other table formats, each by its own API: the same seeded rows and machine, in one run.

Begin with ``peer.py``, what each of them is asked, and with ``works/``, what is measured. ``run.py`` starts a process
for each work and peer, ``results.py`` keeps what it found, and ``page.py`` draws ``docs/benchmarks.md`` from that. The
others are in an environment of their own (``locks/peers.in``), so what they run (``child.py``, ``works/``, their own
modules) imports nothing of dolmen.
"""
