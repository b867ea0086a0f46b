"""Report of a profile, for people and for programs."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict

from rich.console import RenderableType
from rich.table import Table

from macroserve.bench.profile import CONTEXT_TOKENS, SATURATED, Profile


def document(profile: Profile) -> Mapping[str, object]:
    """Return the profile as JSON, in seconds.

    latency: arguments of ``core.latency.LatencyModel``.
    rebuild_s_per_token: Apt-Serve's rho; None for an engine without hidden states.
    target_forward_size: EconoServe's target, in tokens per batch.
    """
    latency = profile.latency
    return {
        "hybrid_cache": profile.shape.hybrid_cache,
        "prefix_caching": profile.shape.prefix_caching,
        "num_blocks": profile.shape.num_blocks,
        "block_size": profile.shape.block_size,
        "latency": {
            "model": asdict(latency.model),
            "device": asdict(latency.device),
            "coefficients": list(latency.coefficients),
            "rebuild_s_per_token": latency.rebuild_s_per_token,
        },
        "target_forward_size": profile.target_forward_size,
        "decodes_beyond_s": profile.decodes_beyond_s,
        "prefills_beyond_s": profile.prefills_beyond_s,
        "churn": profile.churn,
        "spread": profile.spread,
    }


def table(profile: Profile) -> RenderableType:
    latency, shape = profile.latency, profile.shape
    num_tokens = shape.num_blocks * shape.block_size
    decodes, prefills = list(profile.decodes_beyond_s), list(profile.prefills_beyond_s)
    most_per_s = decodes[-1] / profile.decode_s(decodes[-1])
    fastest_per_s = max(num / profile.prefill_s(num) for num in prefills)
    result = Table("", "measured", show_header=False)
    for name, told in (
        ("keys and values that fit", f"{num_tokens} tokens, {shape.num_blocks} pages"),
        (
            f"a decode step of {_listed(decodes)} requests",
            _listed_ms(map(profile.decode_s, decodes)),
        ),
        (f"with {CONTEXT_TOKENS} tokens before it", f"at most {most_per_s:.0f} tokens/s"),
        (f"a prompt of {_listed(prefills)} tokens", _listed_ms(map(profile.prefill_s, prefills))),
        ("", f"at most {fastest_per_s:.0f} tokens/s"),
        (f"{SATURATED:.0%} of that (chunkTokens)", f"from {profile.target_forward_size} tokens on"),
        ("while requests come and go", f"{profile.churn:.2f} times as long"),
        ("the slowest round", f"{profile.spread:.2f} times as long as the fastest"),
        ("C1 to C5 (Ascendra, equation 4)", ", ".join(f"{c:.3g}" for c in latency.coefficients)),
        ("hybrid cache with aptserve", shape.hybrid_cache),
    ):
        result.add_row(name, told)
    if latency.rebuild_s_per_token is not None:
        rho = f"{1e6 * latency.rebuild_s_per_token:.2f} us a token and step"
        result.add_row("hidden states cost (Apt-Serve's rho)", rho)
    return result


def _listed(nums: Iterable[int]) -> str:
    return " / ".join(map(str, nums))


def _listed_ms(times_s: Iterable[float]) -> str:
    return " / ".join(f"{1e3 * time_s:.1f}" for time_s in times_s) + " ms"
