"""The instance scheduler: decides the next batch of one engine replica, and its memory.

A request waits in the ``WaitingQueue`` (waiting.py) until a batching policy (batching/) picks it
for a batch and its KV blocks are reserved (blocks.py); then it is in ``Running`` (running.py) until
it ends. ``InstanceScheduler`` (scheduler.py) is the only entry point.

A decision reads from ``InstanceScheduler.schedule`` over the inputs and the plan of an iteration
(iteration.py) and the order of its prompts (candidates.py) to those that fit (admission.py).
"""
