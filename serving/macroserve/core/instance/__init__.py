"""The instance scheduler: what one engine replica runs next, and with how much memory.

A request's life: ``WaitingQueue`` (waiting.py) until a composer (composers/) picks it for a batch
and its KV blocks are reserved (cache.py), then ``Running`` (running.py) until its last token.
``InstanceScheduler`` (scheduler.py) moves it along and is the only entrance.
"""

from macroserve.core.instance.config import InstanceConfig
from macroserve.core.instance.scheduler import InstanceScheduler, Refusal

__all__ = ["InstanceConfig", "InstanceScheduler", "Refusal"]
