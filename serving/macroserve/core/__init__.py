"""The core holds pure scheduling policies: no clock, no I/O, no async, no logging, no own
randomness.

Callers pass the time as ``now`` (seconds, monotonic, on the caller's clock); decisions are frozen
dataclasses that carry their reason. The layers around this package (the engine adapter, the serving
processes, the simulator) log, count and apply them.
"""
