"""How JVMs of tests differ from those of users: in nothing but how soon they are fast."""

SHORT_LIVED_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""No optimizing compiler, and a collector of one thread: a third less processor time for the tests of Spark."""
