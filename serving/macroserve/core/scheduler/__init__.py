"""The instance scheduler decides what one engine replica runs next, and with how much memory.

A request waits in the ``WaitingQueue`` (waiting.py) until a batching policy (batching/) picks it
for a batch and its KV blocks are reserved (blocks.py), then it is in ``Running`` (running.py) until
it ends. ``InstanceScheduler`` (scheduler.py) moves it along and is the only entry point.
"""
