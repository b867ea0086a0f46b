"""Events of an instance's scheduler between batches."""

from macroserve.core.status import Pool


def apply(event, executor):
    """Apply the event of this name."""
    match event:
        case "abort" if executor.alive:
            executor.finish(executor.alive[len(executor.alive) // 2])
        case "drain" | "undrain":
            executor.scheduler.drain(event == "drain")
        case "hp" | "lp":
            executor.scheduler.set_pool(Pool(event))
        case "stay" | "go":
            executor.scheduler.let_offload(event == "go")
