"""Commands of an instance server to its engine's scheduler."""

from dataclasses import asdict
from typing import Any

from macroserve.core.scheduler.scheduler import InstanceScheduler
from macroserve.core.status import Pool


def apply_command(policy: InstanceScheduler, verb: str, argument: Any = None) -> Any:
    """Apply a command to the scheduler between two iterations.

    The commands are ``set_pool`` ("lp" or "hp"), ``drain`` and ``let_offload`` (bool),
    ``set_rebuild`` (seconds per token), and ``latency`` (no argument; returns the constructor
    arguments of the latency model, and the limits of a batch). Raises ValueError for others.
    """
    match verb, argument:
        case "set_pool", "lp" | "hp":
            policy.set_pool(Pool(argument))
        case "drain", bool():
            policy.drain(argument)
        case "let_offload", bool():
            policy.let_offload(argument)
        case "set_rebuild", float():
            policy.latency.rebuild_s_per_token = argument
        case "latency", None:
            latency = policy.latency
            return {
                "model": asdict(latency.model),
                "device": asdict(latency.device),
                "coefficients": list(latency.coefficients),
                "rebuild_s_per_token": latency.rebuild_s_per_token,
                "max_num_seqs": policy.config.max_num_seqs,
                "max_batch_tokens": policy.config.max_batch_tokens,
            }
        case _:
            raise ValueError(f"no such command: {verb} {argument!r}")
    return None
