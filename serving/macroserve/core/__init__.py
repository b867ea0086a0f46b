"""Pure scheduling policies: no clock, no I/O, no async, no logging, no randomness of their own.

Time comes in as ``now`` (seconds, monotonic, on the clock of the caller); decisions go out as
frozen dataclasses that carry their reason. The shells around this package (the engine adapter,
the serving processes, the simulator) log, count and act on them.
"""
