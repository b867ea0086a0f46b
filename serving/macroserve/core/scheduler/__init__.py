"""The instance scheduler: what one engine replica runs next, and with how much memory.

A request's life: ``WaitingQueue`` (waiting.py) until a batching policy (batching/) picks it for a
batch and its KV blocks are reserved (blocks.py), then ``Running`` (running.py) until it ends.
``InstanceScheduler`` (scheduler.py) moves it along and is the only entrance.
"""

from macroserve.core.scheduler.config import InstanceConfig
from macroserve.core.scheduler.scheduler import InstanceScheduler, Refusal

__all__ = ["InstanceConfig", "InstanceScheduler", "Refusal"]
