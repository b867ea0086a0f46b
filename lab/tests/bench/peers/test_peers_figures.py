"""Figures of measured points."""

from pathlib import Path

import msgspec
import pytest
from lab_support.peers_points import idle, point

from macroserve_lab.bench.peers.figures import figures
from macroserve_lab.bench.peers.journal import Point

OURS, ROUTER, DYNAMO = "macroserve", "vllm_router_cache_aware", "dynamo_kv"


def swept(deployment: str, round_: int, knee: float, cpu_s: float = 1.0) -> list[Point]:
    """Return two points whose line crosses 0.9 at ``knee``."""
    return [
        point(round=round_, deployment=deployment, rate=knee - 1, attainment=1.0, cpu_s=cpu_s),
        point(round=round_, deployment=deployment, rate=knee + 1, attainment=0.8, cpu_s=cpu_s),
    ]


def test_goodput_ratio_is_the_median_of_rounds_to_the_best_peer() -> None:
    points = [
        *(each for i, knee in enumerate((8.0, 9.0, 7.0)) for each in swept(OURS, i, knee)),
        *(each for i, knee in enumerate((4.0, 5.0, 7.0)) for each in swept(ROUTER, i, knee)),
        # Best in only one round, so not the best peer.
        *(each for i, knee in enumerate((9.0, 3.0, 3.0)) for each in swept(DYNAMO, i, knee)),
    ]
    found = figures(points, [])
    assert found["peers.goodput_ratio.chats"] == pytest.approx(9 / 5)
    assert found["peers.goodput_ratio.chats_min"] == pytest.approx(1.0)
    assert found["peers.goodput_ratio.chats_max"] == pytest.approx(2.0)
    assert found["peers.dynamo_kv.chats.rate_at_90"] == pytest.approx(3.0)
    assert found["peers.dynamo_kv.chats.rounds_outside"] == 0


def test_knee_outside_the_swept_rates_is_counted() -> None:
    found = figures([point(rate=4.0, attainment=1.0), point(round=1, attainment=0.5)], [])
    assert found["peers.macroserve.chats.rounds_outside"] == 2


def test_cpu_ratio_is_to_the_router_with_the_least_and_counts_all_requests() -> None:
    points = [
        point(cpu_s=1.0, num_requests=100),
        point(cpu_s=5.0, num_requests=200, rate=6.0),
        point(deployment=ROUTER, cpu_s=1.0, num_requests=100),
        point(deployment="vllm_router_kv_aware", cpu_s=2.0, num_requests=100),
        point(deployment=DYNAMO, cpu_s=0.1, num_requests=100),
    ]
    found = figures(points, [])
    assert found["peers.macroserve.cpu_ms_per_request"] == pytest.approx(20)
    assert found["peers.cpu_ratio"] == pytest.approx(2.0)


@pytest.mark.parametrize(("queue_growth", "rate"), [(0.05, 6.0), (0.06, 4.2)])
def test_rate_at_which_the_queue_grows_is_not_held(queue_growth: float, rate: float) -> None:
    points = [point(rate=4.0), point(rate=6.0, attainment=0.95, queue_growth=queue_growth)]
    found = figures(points, [])
    assert found["peers.macroserve.chats.rate_at_90"] == pytest.approx(rate)


def test_figures_of_a_rate_are_medians_and_failures_are_summed() -> None:
    points = [
        point(
            round=i,
            attainment=attainment,
            num_failed=failed,
            num_refused=failed // 2,
            ttft_s={"p50": 0.1 * (i + 1)},
        )
        for i, (attainment, failed) in enumerate([(0.9, 0), (0.5, 30), (0.8, 0)])
    ]
    found = figures(points, [])
    assert found["peers.macroserve.chats.4.attainment"] == 0.8
    assert found["peers.macroserve.chats.4.attainment_min"] == 0.5
    assert found["peers.macroserve.chats.4.ttft_p50_ms"] == pytest.approx(200)
    assert found["peers.macroserve.chats.4.failed_share"] == pytest.approx(0.1)
    assert found["peers.macroserve.chats.4.refused_share"] == pytest.approx(0.05)
    assert "peers.macroserve.chats.4.ttft_p90_ms" not in found


@pytest.mark.parametrize(
    ("by_round", "expected"),
    [
        (({"short": 1.0, "long": 0.2}, {"short": 0.6, "long": 0.4}), {"short": 0.8, "long": 0.3}),
        (({"long": 0.2}, {"short": 0.6, "long": 0.4}), {"short": 0.6, "long": 0.3}),
        (({}, {}), {}),
    ],
)
def test_attainment_by_size_is_the_median_of_the_rounds_that_have_the_size(
    by_round: tuple[dict[str, float], ...], expected: dict[str, float]
) -> None:
    points = [point(round=i, attainment_by_size=shares) for i, shares in enumerate(by_round)]
    start = "peers.macroserve.chats.4.attainment_"
    found = {
        name.removeprefix(start): value
        for name, value in figures(points, []).items()
        if name.startswith(start) and not name.endswith(("min", "max"))
    }
    assert found == pytest.approx(expected)


def with_p99(deployment: str, round_: int, knee: float, *p99_s: float) -> list[Point]:
    """Return two points around the knee, with P99 of TTFT at their rates."""
    points = swept(deployment, round_, knee)
    return [
        msgspec.structs.replace(each, ttft_s={"p99": value})
        for each, value in zip(points, p99_s, strict=True)
    ]


@pytest.mark.parametrize(
    ("ours", "best", "ratio"),
    [
        # Ours and the peer's are both taken between rates 4 and 6, at the peer's rate of 5.
        ((5.0, 1.0, 2.0), (5.0, 2.0, 4.0), 0.5),
        # Our own rate of 90 % does not matter: rates 5 and 7 are ours, so P99 is that of 5.
        ((6.0, 1.0, 9.0), (5.0, 2.0, 4.0), 1 / 3),
        # Our rates are 4.5 and 6.5: a quarter of the way.
        ((5.5, 1.0, 3.0), (5.0, 2.0, 2.0), 1.5 / 2),
    ],
)
def test_p99_ttft_ratio_is_on_lines_at_the_best_peers_rate(
    ours: tuple[float, ...], best: tuple[float, ...], ratio: float
) -> None:
    found = figures([*with_p99(OURS, 0, *ours), *with_p99(ROUTER, 0, *best)], [])
    assert found["peers.p99_ttft_ratio.chats"] == pytest.approx(ratio)


def test_p99_ttft_ratio_is_the_median_of_rounds_to_the_best_peer() -> None:
    points = [
        *with_p99(OURS, 0, 5.0, 1.0, 1.0),
        *with_p99(OURS, 1, 5.0, 2.0, 2.0),
        *with_p99(OURS, 2, 5.0, 4.0, 4.0),
        *(each for i in range(3) for each in with_p99(ROUTER, i, 5.0, 2.0, 2.0)),
        # Lower rates and P99: not the best peer.
        *(each for i in range(3) for each in with_p99(DYNAMO, i, 4.0, 0.1, 0.1)),
    ]
    found = figures(points, [])
    name = "peers.p99_ttft_ratio.chats"
    assert (found[name], found[f"{name}_min"], found[f"{name}_max"]) == (1.0, 0.5, 2.0)


def test_p99_ttft_ratio_leaves_out_rounds_of_one_side() -> None:
    points = [
        *with_p99(OURS, 0, 5.0, 1.0, 1.0),
        *with_p99(ROUTER, 0, 5.0, 2.0, 2.0),
        *with_p99(ROUTER, 1, 5.0, 9.0, 9.0),
    ]
    found = figures(points, [])
    assert found["peers.p99_ttft_ratio.chats"] == found["peers.p99_ttft_ratio.chats_max"] == 0.5


def test_idle_cpu_is_ours_and_of_each_deployment() -> None:
    idles = [idle(OURS, 0, 30.0), idle(OURS, 1, 8.0), idle(OURS, 2, 9.0), idle(ROUTER, 0, 2.0)]
    found = figures([point(), point(deployment=ROUTER)], idles)
    assert found["peers.idle_cpu_pct"] == 9.0
    assert found["peers.vllm_router_cache_aware.idle_cpu_pct"] == 2.0


def test_figures_of_one_side_have_no_ratio() -> None:
    found = figures([point()], [])
    assert not [name for name in found if "ratio" in name or name == "peers.idle_cpu_pct"]


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_plot_of_several_rounds_and_loads_is_written(tmp_path: Path, suffix: str) -> None:
    from macroserve_lab.bench.peers.plot import plot_peers

    points = [*swept(OURS, 0, 8.0), *swept(OURS, 1, 9.0), *swept(ROUTER, 0, 5.0)]
    path = tmp_path / f"peers{suffix}"
    plot_peers(path, [*points, point(load="prefixes", deployment=ROUTER)])
    start = path.read_bytes()[:200]
    assert start.startswith(b"\x89PNG") if suffix == ".png" else b"<?xml" in start


def test_points_of_a_machine_that_did_not_keep_pace_are_left_out() -> None:
    slow = point(deployment=OURS, rate=4.0, attainment=0.1, late_p99=0.03)
    points = [*swept(OURS, 0, 8.0), slow, *swept(ROUTER, 0, 4.0)]
    found = figures(points, [])
    assert found["peers.goodput_ratio.chats"] == pytest.approx(2.0)
    assert f"peers.{OURS}.chats.4.attainment" not in found


def test_our_other_strategies_are_no_peers() -> None:
    points = [*swept(OURS, 0, 6.0), *swept(f"{OURS}_vllm", 0, 12.0), *swept(ROUTER, 0, 3.0)]
    assert figures(points, [])["peers.goodput_ratio.chats"] == pytest.approx(2.0)
