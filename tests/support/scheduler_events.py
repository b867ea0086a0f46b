"""Events beside the batches happen to an instance's scheduler."""

from macroserve.core.status import Pool


def apply(event, executor):
    """Let an event of this name happen."""
    match event:
        case "abort" if executor.alive:
            executor.finish(executor.alive[len(executor.alive) // 2])
        case "drain" | "undrain":
            executor.scheduler.drain(event == "drain")
        case "hp" | "lp":
            executor.scheduler.set_pool(Pool(event))
        case "stay" | "go":
            executor.scheduler.let_offload(event == "go")
