"""Packages that Macroserve needs for some commands only, by the extra that installs them."""

EXTRAS = {
    "ray": "serve",
    "vllm": "serve",
    "matplotlib": "bench",
    "transformers": "serve",
    "kopf": "operator",
    "kubernetes": "operator",
}


def extra_of(module: str | None) -> str | None:
    """Return the extra that installs a module, or None."""
    return EXTRAS.get((module or "").partition(".")[0])


def missing(module: str, extra: str) -> str:
    """Return how to install a missing module."""
    package = module.partition(".")[0]
    on_cpus = ", or on CPUs: pip install 'macroserve[serve-cpu]'" if extra == "serve" else ""
    return f"{package} is not installed: pip install 'macroserve[{extra}]'{on_cpus}"
