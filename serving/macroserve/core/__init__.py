"""Pure scheduling policies: no clock, I/O, async, logging or randomness inside.

Callers pass the time as ``now`` (monotonic seconds on their own clock). Decisions are frozen
dataclasses that carry a reason; the engine adapter, the serving processes and the simulator log,
count and apply them.
"""
