"""What a profile says, for people and for programs."""

from collections.abc import Mapping
from dataclasses import asdict

from rich.console import RenderableType
from rich.table import Table

from macroserve.cli.profile.profile import CONTEXT_TOKENS, MANY, Profile

PREFILL_TOKENS = 512


def document(profile: Profile) -> Mapping[str, object]:
    """Seconds. latency: the arguments of ``core.latency.LatencyModel``; rebuild_s_per_token is
    Apt-Serve's rho, None where hidden states are not kept."""
    latency = profile.latency
    return {
        "hybrid_cache": profile.shape.hybrid_cache,
        "num_blocks": profile.shape.num_blocks,
        "block_size": profile.shape.block_size,
        "latency": {
            "model": asdict(latency.model),
            "device": asdict(latency.device),
            "coefficients": list(latency.coefficients),
            "rebuild_s_per_token": latency.rebuild_s_per_token,
        },
        "between_s": profile.between_s,
        "sequence_s": profile.sequence_s,
    }


def table(profile: Profile) -> RenderableType:
    latency, shape = profile.latency, profile.shape
    many_s = profile.seconds((), MANY, MANY * CONTEXT_TOKENS)
    prefill_s = profile.seconds(((PREFILL_TOKENS, 0),), 0, 0)
    num_tokens = shape.num_blocks * shape.block_size
    result = Table("", "measured", show_header=False)
    for name, told in (
        ("keys and values that fit", f"{num_tokens} tokens, {shape.num_blocks} pages"),
        (f"a decode step, {CONTEXT_TOKENS} tokens before it", f"{1e3 * profile.step_s:.1f} ms"),
        (f"of {MANY} requests", f"{1e3 * many_s:.1f} ms, {MANY / many_s:.0f} tokens/s"),
        (f"a prompt of {PREFILL_TOKENS} tokens", f"{1e3 * prefill_s:.1f} ms"),
        ("", f"{PREFILL_TOKENS / prefill_s:.0f} tokens/s"),
        ("from a batch to the next", f"{1e3 * profile.between_s:.2f} ms"),
        ("and for each request in it", f"{1e3 * profile.sequence_s:.3f} ms"),
        ("C1 to C5 (Ascendra, equation 4)", ", ".join(f"{c:.3g}" for c in latency.coefficients)),
        ("hybrid cache with aptserve", shape.hybrid_cache),
    ):
        result.add_row(name, told)
    if latency.rebuild_s_per_token is not None:
        rho = f"{1e6 * latency.rebuild_s_per_token:.2f} us a token and step"
        result.add_row("hidden states cost (Apt-Serve's rho)", rho)
    return result
