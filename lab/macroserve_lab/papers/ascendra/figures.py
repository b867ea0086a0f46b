"""Ascendra's figures (section 8 and appendix A.5)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from macroserve.core.request import Slo
from macroserve.core.routing.constraints import Demand
from macroserve.core.routing.decision import Choice, RouteReason
from macroserve.core.routing.policies import ascendra_route, split_pools
from macroserve.core.slo_class import SloClass
from macroserve.core.status import InstanceView, Pool
from macroserve.core.strategies import STRATEGIES
from macroserve.core.strategy import Ordering
from macroserve.workload.class_mix import ClassMix
from macroserve_lab.experiment import Experiment
from macroserve_lab.papers.ascendra.cases import (
    APPENDED,
    CASES,
    CHAT,
    DURATION_S,
    LEVEL,
    STARVED,
    STRATEGY_NAMES,
    SUMMARIES,
    Case,
    experiment,
    goodput,
)
from macroserve_lab.papers.ascendra.traced import (
    HP_UTILIZATION,
    KINDS,
    METRICS,
    NUM_MINUTES,
    Breakdown,
    ModelErrors,
    Utilization,
    at_minute,
    delay,
    share,
)
from macroserve_lab.papers.figure import Claim, Figure, Panel, Quantity, annotated
from macroserve_lab.papers.measurements import Attainment, Curve, Values, point
from macroserve_lab.papers.sweep import (
    GAIN,
    LOWEST_TRIED,
    POINTS,
    TIMES,
    Plot,
    Sweep,
    attainment_plot,
    curves_table,
    reading,
)

ASCENDRA = STRATEGIES["ascendra"]
BASELINES = ("prefill-first", "sarathi")

# Section 8.2: goodput of each of table 2's cases.

GAINS = {
    CHAT: {"prefill-first": 19.1, "sarathi": 17.4},
    SUMMARIES: {"prefill-first": 15.4, "sarathi": 15.4},
    STARVED: {"prefill-first": 100 * (2.8 / 2.55 - 1), "sarathi": 0.0},
}
"""Gains of goodput in percent. For the last case the paper prints rates: 2.55, 2.8 and 2.8
requests/s."""

HELD = Sweep(
    lambda case, system: goodput(f"{case.name} {system}", experiment(case, STRATEGIES[system])),
    case=CASES,
    system=STRATEGY_NAMES,
)
GOODPUT = Figure(
    HELD.values(),
    [
        HELD.over(GAIN, case.name, "ascendra", papers, least=LOWEST_TRIED, case=case)
        for case, papers in GAINS.items()
    ]
    + HELD.table("{case.name}", "{system}", "requests/s"),
)

# Sections 8.4, 8.5, 8.7: other ratios, another order, a fixed batch, and two instances.

ONE_LOW_TWO_HIGH, ONE_EACH = 2 / 3, 1 / 2


def _with_fixed_batch(base: Experiment) -> Experiment:
    """Return an experiment whose HP instances have as few seats as the LP ones, where an elastic
    batch may have more (section 8.5, figure 11 on the right)."""
    scenario = base.scenario
    cluster = replace(scenario.cluster, max_num_seqs=scenario.tuning.lp_batch_size)
    return replace(base, scenario=replace(scenario, cluster=cluster))


VARIANTS = {
    "2 LP + 1 HP": experiment(CHAT, ASCENDRA),
    "1 LP + 2 HP": experiment(CHAT, ASCENDRA, ONE_LOW_TWO_HIGH),
    "a fixed HP batch": _with_fixed_batch(experiment(CHAT, ASCENDRA)),
    "shortest first": experiment(CHAT, replace(ASCENDRA, ordering=Ordering.SJF)),
    "1 LP + 1 HP": experiment(SUMMARIES, ASCENDRA, ONE_EACH, 2),
    "2 prefill-first": experiment(SUMMARIES, STRATEGIES["prefill-first"], num_instances=2),
    "2 sarathi": experiment(SUMMARIES, STRATEGIES["sarathi"], num_instances=2),
}
ORDERS = (
    (CHAT, "2 LP + 1 HP", "1 LP + 2 HP"),
    (CHAT, "2 LP + 1 HP", "shortest first"),
    (CHAT, "2 LP + 1 HP", "a fixed HP batch"),
    (SUMMARIES, "1 LP + 1 HP", "2 prefill-first"),
    (SUMMARIES, "1 LP + 1 HP", "2 sarathi"),
)
"""Pairs of variants, the better one in the paper first."""

VARIED = Sweep(lambda system: goodput(f"variant {system}", VARIANTS[system]), system=VARIANTS)
VARIANT_GAINS = Figure(
    VARIED.values(),
    [
        VARIED.over(GAIN, case.name, better, {worse: None}, least=LOWEST_TRIED, is_summary=True)
        for case, better, worse in ORDERS
    ],
)

# Figure 9, first row: attainment over the rate.

CURVE_RATES = {
    CHAT: (2.0, 4.0, 6.0, 8.0, 9.0, 10.0, 11.0, 12.0, 14.0),
    SUMMARIES: (4.0, 8.0, 10.0, 12.0, 14.0, 16.0, 18.0, 20.0),
    STARVED: (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5),
}
MORE_IN_TIME = 1.7
"""Factor up to which Ascendra exceeds the throughput of both baselines, within the targets
(abstract)."""

LEAST_SHARE = 0.01
"""Lower bound of shares, for ratios."""

CURVES = Sweep(
    lambda case, system: Curve(
        f"attainment {case.name} {system}",
        experiment(case, STRATEGIES[system]),
        CURVE_RATES[case],
        DURATION_S,
    ),
    case=CASES,
    system=STRATEGY_NAMES,
)


def most_in_time(case: Case) -> Quantity:
    """Return the largest ratio of Ascendra's attainment to the better baseline's, to which the
    goodput at one rate is proportional."""

    def most(values: Values) -> float:
        lines = {system: CURVES[case, system].line(values) for system in ("ascendra", *BASELINES)}
        return max(
            ours / max(LEAST_SHARE, *theirs)
            for (_, ours), *points in zip(*lines.values(), strict=True)
            for theirs in [[share for _, share in points]]
        )

    return most


ATTAINMENT = Figure(
    CURVES.values(),
    [
        Claim(
            "up to",
            "ascendra over baselines",
            TIMES.metric,
            lambda values: max(most_in_time(case)(values) for case in CASES),
            MORE_IN_TIME,
        ),
        curves_table(CURVES, "{case.name}, "),
    ],
    [attainment_plot(CURVES, "{case.name}")],
)

# Figure 9, second row: attainment at a fixed rate under stricter and looser targets.

STRICT_RATES = {CHAT: 9.0, SUMMARIES: 11.0, STARVED: 2.0}
"""Requests per second at which Ascendra holds slightly above 90 % under table 2's targets here."""

SCALES = (0.125, 0.177, 0.25, 0.354, 0.5, 0.707, 1.0, 1.414, 2.0, 2.828, 4.0)
STRICTER = 4.0
"""Factor up to which Ascendra keeps stricter targets than the baselines at 90 % (section 8.2)."""


def _scaled(rates: Mapping[Case, float]) -> Sweep[Attainment]:
    """Return the attainment of each case in ``rates``, under all scales of its targets."""

    def measure(case: Case, system: str, scale: float) -> Attainment:
        slo = Slo(case.slo.ttft_s * scale, case.slo.tpot_s * scale)
        return Attainment(
            f"strictness {case.name} {system} {scale:g}",
            experiment(replace(case, slo=slo), STRATEGIES[system]),
            rates[case],
            DURATION_S,
        )

    return Sweep(measure, case=rates, system=STRATEGY_NAMES, scale=SCALES)


def strictest(scaled: Sweep[Attainment], case: Case, system: str) -> Quantity:
    """Return the last scale of the targets that a strategy keeps, counted from the loosest."""

    def kept(values: Values) -> float:
        last = 2 * SCALES[-1]
        for scale in reversed(SCALES):
            if values[scaled[case, system, scale].key] < LEVEL:
                break
            last = scale
        return last

    return kept


def most_stricter(values: Values) -> float:
    def gain(case: Case) -> float:
        ours, *theirs = (
            strictest(SCALED, case, system)(values) for system in ("ascendra", *BASELINES)
        )
        return max(theirs) / ours

    return max(map(gain, CASES))


def _scaled_plot(scaled: Sweep[Attainment]) -> Plot[Attainment]:
    title = "{case.name}, {m.rate:g} requests/s"
    return attainment_plot(scaled, title, "targets, times table 2's", "scale")


SCALED = _scaled(STRICT_RATES)
STRICTNESS = Figure(
    SCALED.values(),
    [
        Claim("up to", "ascendra over baselines", "times stricter", most_stricter, STRICTER),
        *[
            Claim(case.name, system, "strictest scale", strictest(SCALED, case, system))
            for case in CASES
            for system in STRATEGY_NAMES
        ],
    ],
    [_scaled_plot(SCALED)],
)

# Section 8.6: ten minutes slightly above capacity, where late requests are dropped.

OVERLOAD_S = 600.0
OVERLOAD_RATES = (10.0, 12.0, 14.0)
"""Requests per second, an assumption: the paper does not print its rate."""
DROP_GAIN = 1.74

DROPPING = Sweep(
    lambda rate, system: Attainment(
        f"overload {rate:g} {system}",
        experiment(CHAT, STRATEGIES[system], drop_late=True),
        rate,
        OVERLOAD_S,
    ),
    rate=OVERLOAD_RATES,
    system=STRATEGY_NAMES,
)


def over_mean(rate: float) -> Quantity:
    ours = DROPPING.value(rate=rate, system="ascendra")
    others = [DROPPING.value(rate=rate, system=baseline) for baseline in BASELINES]
    return lambda values: ours(values) / (sum(each(values) for each in others) / len(others))


OVERLOAD = Figure(
    DROPPING.values(),
    [
        Claim(
            f"{rate:g} requests/s",
            "ascendra over baselines",
            "times served within the SLOs",
            over_mean(rate),
            DROP_GAIN,
        )
        for rate in OVERLOAD_RATES
    ]
    + DROPPING.table("{rate:g} requests/s", "{system}", "attainment"),
)

# Sections 3.3 and 5.2: the order of the waiting requests, where half of them have loose targets.
# The paper has one target for all in its figures; then the deadlines' order is that of arrivals.

LOOSE = 10.0
"""Factor on the targets of the requests without a reader."""

LOOSE_SHARE = 0.5


def _ordered(case: Case, ordering: Ordering) -> Experiment:
    slo = Slo(LOOSE * case.slo.ttft_s, LOOSE * case.slo.tpot_s)
    loose = SloClass(name="loose", slo=slo, share=LOOSE_SHARE)
    return replace(
        experiment(case, replace(ASCENDRA, ordering=ordering)), classes=ClassMix((loose,))
    )


ORDERED = Sweep(
    lambda case, system: goodput(f"ordering {case.name} {system}", _ordered(case, system)),
    case=CASES,
    system=Ordering,
)
ORDERING = Figure(
    ORDERED.values(),
    [
        [
            ORDERED.table("{case.name}", "{system.name}", "requests/s", case=case),
            *[
                Claim(
                    case.name,
                    f"{ours.name} over FCFS",
                    GAIN.metric,
                    ORDERED.compare(GAIN, ours, Ordering.FCFS, least=LOWEST_TRIED, case=case),
                    is_summary=True,
                )
                for ours in (Ordering.EDF, Ordering.SLACK)
            ],
        ]
        for case in CASES
    ],
)

# Figure 6: error of the latency model while it learns from what is served.

ERROR_RATE = 9.0
"""Requests per second that Ascendra holds."""

LEARNED = 5
"""Minutes after which the paper's model has an error below ``PAPERS_ERROR`` (section 5.1)."""

PAPERS_ERROR = 0.1

ERRORS = ModelErrors("model error", experiment(CHAT, ASCENDRA), ERROR_RATE)


def _errors(values: Values) -> list[Panel]:
    lines = {
        name: [
            (minute, values[point(ERRORS.key, at_minute(kind, minute))])
            for minute in range(NUM_MINUTES)
        ]
        for kind, name in KINDS.items()
    }
    return [Panel("Latency model", "minutes", "median error", lines, is_share=True)]


MODEL_ERROR = Figure(
    [ERRORS],
    [
        Claim(
            name,
            f"after {minute} min",
            "median error",
            reading(point(ERRORS.key, at_minute(kind, minute))),
            PAPERS_ERROR if minute == LEARNED else None,
            is_summary=True,
        )
        for kind, name in KINDS.items()
        for minute in (0, 1, LEARNED)
    ],
    [_errors],
)

# Figure 10: latencies and waits of Ascendra's pools and of the baselines.

BREAKDOWN_RATES = (9.0, 10.5, 12.0)
"""Requests per second, an assumption: the paper plots its figure at a rate that it does not print.
Ascendra holds the first two."""

SHORTER_AT_HP = 4.0
"""Factor by which requests wait longer at an LP instance than at an HP one (section 8.3)."""

LEAST_DELAY_S = 1e-3
"""Lower bound of delays, for ratios, seconds."""

BREAKDOWNS = Sweep(
    lambda rate, system: Breakdown(
        f"breakdown {system} {rate:g}", experiment(CHAT, STRATEGIES[system]), rate, DURATION_S
    ),
    rate=BREAKDOWN_RATES,
    system=STRATEGY_NAMES,
)


def _breakdown(rate: float) -> list[Claim]:
    case = f"{rate:g} requests/s"
    delays_s = {pool: BREAKDOWNS.value(delay(pool), rate=rate, system="ascendra") for pool in Pool}

    def shorter(values: Values) -> float:
        return delays_s[Pool.LP](values) / max(delays_s[Pool.HP](values), LEAST_DELAY_S)

    served = BREAKDOWNS.value(share(Pool.HP), rate=rate, system="ascendra")
    found = [
        Claim(case, "LP over HP", "times the delay", shorter, SHORTER_AT_HP),
        Claim(case, "HP", "share of the requests", served, is_summary=True),
    ]
    found += [
        Claim(case, pool.name, "delay in s", delay_s, is_summary=True)
        for pool, delay_s in delays_s.items()
    ]
    for system in STRATEGY_NAMES:
        found += BREAKDOWNS.table(
            case, "{system}", of=METRICS, is_summary=True, rate=rate, system=system
        )
        if system != "ascendra":
            delay_s = BREAKDOWNS.value(delay(Pool.LP), rate=rate, system=system)
            found.append(Claim(case, system, "delay in s", delay_s, is_summary=True))
    return found


BREAKDOWN = Figure(BREAKDOWNS.values(), [_breakdown(rate) for rate in BREAKDOWN_RATES])

# Section 6.1: utilization of the HP instance under a light load, with tickets and without.

TICKET_RATES = (1.0, 3.0, 6.0, 9.0)
"""Requests per second, an assumption: the paper says "light workload". Ascendra holds all."""

MOST_POINTS = 50.0
"""Gain in utilization, "up to 50%" (section 6.1), read as percentage points: without tickets the
instance may have nothing to do at all."""


def _without_tickets(candidates: Sequence[InstanceView], demand: Demand) -> Choice:
    if demand.offloaded:
        return ascendra_route(candidates, demand)
    low, _ = split_pools(candidates)
    return low[0], RouteReason.ROUND_ROBIN


TICKETING = {"with tickets": ASCENDRA, "without": replace(ASCENDRA, route=_without_tickets)}
UTILIZATION = Sweep(
    lambda rate, system: Utilization(
        f"tickets {system} {rate:g}", experiment(CHAT, TICKETING[system]), rate, DURATION_S
    ),
    rate=TICKET_RATES,
    system=TICKETING,
)
TICKETS = Figure(
    UTILIZATION.values(),
    [
        UTILIZATION.table(
            "{rate:g} requests/s",
            "{system}",
            metric,
            of=(of,),
            scale=scale,
            is_summary=True,
            rate=rate,
            system=system,
        )
        for rate in TICKET_RATES
        for system in TICKETING
        for of, metric, scale in (
            (HP_UTILIZATION, "HP utilization in %", 100),
            ("attainment", "attainment", 1),
        )
    ]
    + [
        Claim(
            "all rates",
            "gain by tickets",
            "points, at most",
            UTILIZATION.compare(POINTS, "with tickets", "without", of=HP_UTILIZATION, pool=max),
            MOST_POINTS,
        )
    ],
)

# Figure 14, appendix A.5: the other models and data sets.

APPENDED_RATES = dict(zip(APPENDED, (12.5, 10.5, 3.0), strict=True))
"""Requests per second at which Ascendra holds slightly above 90 % here (of Qwen-14B: 98 %)."""

APPENDED_HELD = Sweep(
    lambda case, system: goodput(
        f"appendix {case.name} {system}", experiment(case, STRATEGIES[system])
    ),
    case=APPENDED,
    system=STRATEGY_NAMES,
)
APPENDED_SCALED = _scaled(APPENDED_RATES)
APPENDIX = Figure(
    [*APPENDED_HELD.values(), *APPENDED_SCALED.values()],
    [
        [
            APPENDED_HELD.over(
                GAIN,
                case.name,
                "ascendra",
                dict.fromkeys(BASELINES),
                least=LOWEST_TRIED,
                is_summary=True,
                case=case,
            ),
            APPENDED_HELD.table("{case.name}", "{system}", "requests/s", case=case),
            *[
                Claim(
                    case.name,
                    system,
                    "strictest scale",
                    strictest(APPENDED_SCALED, case, system),
                    is_summary=True,
                )
                for system in STRATEGY_NAMES
            ],
        ]
        for case in APPENDED
    ],
    [_scaled_plot(APPENDED_SCALED)],
)

FIGURES = annotated(
    __name__,
    {
        "goodput": GOODPUT,
        "variants": VARIANT_GAINS,
        "attainment": ATTAINMENT,
        "strictness": STRICTNESS,
        "overload": OVERLOAD,
        "ordering": ORDERING,
        "model-error": MODEL_ERROR,
        "breakdown": BREAKDOWN,
        "tickets": TICKETS,
        "appendix": APPENDIX,
    },
)
