"""The tests of the instance scheduler share builders and a small executor."""

from dataclasses import fields as fields_of
from dataclasses import replace
from itertools import count

import pytest
from support.batch_executor import AheadExecutor, Executor, PipelineExecutor
from support.linear_latency import NOW, LinearLatency

from macroserve.core.latency import LatencyModel
from macroserve.core.request import Request, Slo
from macroserve.core.scheduler.admission import Admission
from macroserve.core.scheduler.blocks import BlockLedger
from macroserve.core.scheduler.candidates import Candidates
from macroserve.core.scheduler.config import InstanceConfig
from macroserve.core.scheduler.estimators import WINDOW_S, Inflow, LengthPredictor
from macroserve.core.scheduler.iteration import IterationInputs, turn_of
from macroserve.core.scheduler.running import Running
from macroserve.core.scheduler.scheduler import InstanceScheduler
from macroserve.core.scheduler.sequence import Sequence
from macroserve.core.scheduler.waiting import WaitingQueue
from macroserve.core.shapes import DeviceShape, ModelShape
from macroserve.core.status import Phase, Pool
from macroserve.core.strategies import STRATEGIES
from macroserve.core.tuning import Tuning

TUNABLE = [field.name for field in fields_of(Tuning)]
SLO = Slo(ttft_s=1.0, tpot_s=0.1)
PATIENT = Slo(ttft_s=30.0, tpot_s=1.0)
MODEL = ModelShape(32, 4096, 32, 8, 128, 14336, 32000)
DEVICE = DeviceShape(flops_per_s=100e12, bytes_per_s=1e12)


def build_latency():
    return LatencyModel(MODEL, DEVICE)


def build_config(strategy="unified", *, changes=None, **fields):
    """Return the configuration of a small instance; ``changes`` go into the strategy, numbers of
    ``Tuning`` there, the rest into it."""
    numbers = {name: fields.pop(name) for name in TUNABLE if name in fields}
    chosen = STRATEGIES[strategy] if isinstance(strategy, str) else strategy
    defaults = {
        "strategy": replace(chosen, **(changes or {})),
        "pool": Pool.HP,
        "slo": SLO,
        "num_blocks": 256,
        "block_size": 16,
        "max_num_seqs": 16,
        "max_batch_tokens": 512,
        "max_model_len": 4096,
        "tuning": Tuning(**numbers),
    }
    return InstanceConfig(**{**defaults, **fields})


def build_scheduler(strategy="unified", **fields):
    return InstanceScheduler(build_config(strategy, **fields), build_latency())


def build_request(name, arrival_s=0.0, prompt=100, new=50, slo=SLO, streamed=0, adapter=None):
    return Request(name, arrival_s, prompt, new, slo, streamed, adapter=adapter)


def build_sequence(name="s", ordinal=0, *, arrival_s=0.0, prompt=100, new=50, slo=SLO, **fields):
    request = build_request(name, arrival_s, prompt, new, slo, fields.pop("streamed", 0))
    cost_s = fields.pop("cost_s", 0.1)
    service_s = fields.pop("service_s", cost_s)
    return Sequence(
        request, ordinal, request.arrival_s, fields.pop("predicted", new), cost_s, service_s, cost_s
    )


@pytest.fixture(scope="session")
def make_latency():
    return build_latency


@pytest.fixture(scope="session")
def make_config():
    return build_config


@pytest.fixture(scope="session")
def make_scheduler():
    return build_scheduler


@pytest.fixture(scope="session")
def make_request():
    return build_request


@pytest.fixture(scope="session")
def make_sequence():
    return build_sequence


@pytest.fixture(scope="session")
def make_executor():
    return Executor


@pytest.fixture(scope="session")
def make_ahead_executor():
    return AheadExecutor


@pytest.fixture(scope="session")
def make_pipeline_executor():
    return PipelineExecutor


class Step:
    """A step is one iteration with inputs chosen by a test."""

    def __init__(self, inputs: IterationInputs) -> None:
        self.inputs = inputs
        self.candidates = Candidates(inputs)
        self.admission = Admission(inputs, self.candidates)

    def pick(self, num_tokens, **kwargs):
        return self.admission.pick(num_tokens, **kwargs)

    def plan(self):
        return self.inputs.config.strategy.batch(self.inputs, self.admission)


@pytest.fixture(scope="session")
def make_step(make_config, make_sequence):
    """Return a function that builds the inputs of one iteration at ``NOW``.

    decoding: saved TPOT of each decode, seconds; ``fresh`` more have one token out.
    patient: the same of decodes with looser targets.
    waiting: tokens of each prompt; the oldest arrived ``waited_s`` ago.
    begun: tokens left of prompts under way, of which ``begun_tokens`` each are computed and which
        arrived ``begun_s`` ago.
    prefilled_s: time since the last prefill, seconds.
    inflow: arriving tokens per second.
    tightest_s: tightest TTFT target of the requests that arrived of late, seconds.
    """

    def build(
        strategy,
        decoding=(),
        waiting=(),
        begun=(),
        *,
        fresh=0,
        patient=(),
        waited_s=0.1,
        begun_s=0.1,
        begun_tokens=100,
        phase=Phase.DECODE,
        phase_s=0.0,
        prefilled_s=0.1,
        pace_s=0.0,
        inflow=0.0,
        tightest_s=SLO.ttft_s,
        batch_s=0.02,
        num_blocks=4096,
        lengths=(),
        new=50,
        latency=None,
        preempted=(),
        **fields,
    ):
        config = make_config(strategy, num_blocks=num_blocks, **fields)
        blocks = BlockLedger(num_blocks, config.block_size, config.hidden_states_per_block)
        running = Running(blocks, pause_when_full=config.strategy.exact_kv)
        queue = WaitingQueue(config.strategy.ordering)
        predictor, arrived = LengthPredictor(), Inflow()
        arrived.add(inflow * WINDOW_S, config.slo.ttft_s, NOW)
        arrived.add(0, tightest_s, NOW)
        for length in lengths:
            predictor.observe(make_sequence().request, length)
        ordinals = count()
        for index, left in enumerate(begun):
            seq = make_sequence(
                f"b{index}", next(ordinals), arrival_s=NOW - begun_s, prompt=left + begun_tokens
            )
            running.admit(seq, 2)
            seq.num_computed = begun_tokens
        begun_decodes = [*[("d", config.slo, s) for s in (*decoding, *[None] * fresh)]]
        begun_decodes += [("p", PATIENT, saved_s) for saved_s in patient]
        for index, (name, slo, saved_s) in enumerate(begun_decodes):
            seq = make_sequence(f"{name}{index}", next(ordinals), prompt=10, new=1000, slo=slo)
            running.admit(seq, 2)
            seq.emit(1, NOW - 1.0)
            if saved_s is not None:
                seq.emit(1, NOW - 1.0)
                seq.tpot_budget_until_s = NOW + saved_s
            running.start_decoding(seq)
        for index, prompt in enumerate(waiting):
            arrival_s = NOW - (0.0 if index else waited_s)
            queue.add(
                make_sequence(
                    f"w{index}", next(ordinals), arrival_s=arrival_s, prompt=prompt, new=new
                )
            )
        latency = latency or LinearLatency(batch_s)
        decodes, may_rest = running.decoding, config.strategy.rests
        turn = turn_of(decodes, latency, NOW, may_rest=may_rest)
        return Step(
            IterationInputs(
                now=NOW,
                config=config,
                latency=latency,
                lengths=predictor,
                waiting=queue,
                running=running,
                phase=phase,
                phase_since_s=NOW - phase_s,
                prefilled_s=NOW - prefilled_s,
                pace_s=pace_s,
                turn=turn,
                decode_s=turn.step_s(latency, decodes.speculation.drafted),
                inflow=arrived,
                preempted=preempted,
            )
        )

    return build
