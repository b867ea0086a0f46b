"""Prefills and decodes on instances of their own."""

from dataclasses import replace
from random import Random

import pytest

from macroserve.core.status import Pool
from macroserve.core.strategies import DISAGGREGATED
from macroserve.sim.hardware.links import Link
from macroserve.sim.instance import InstanceSpec
from macroserve.sim.result_collector import ResultCollector
from macroserve.sim.simulation import disaggregated_cell
from macroserve.sim.topology import Topology
from macroserve.workload.arrivals import Arrival, poisson

SLOW = Link("slow", 1e6, 0.0)
FAST = Link("fast", 1e12, 0.0)


@pytest.fixture
def ends(monkeypatch):
    """Records by id, as they end."""
    found = {}
    ended = ResultCollector.ended

    def recording(self, record):
        assert record.num_emitted == record.num_output
        assert record.request.request_id not in found, "it ended twice"
        found[record.request.request_id] = record
        ended(self, record)

    monkeypatch.setattr(ResultCollector, "ended", recording)
    return found


@pytest.fixture
def make_cell(make_config, make_latency):
    def build(
        name="mooncake",
        instances=4,
        ratio=0.5,
        inside=FAST,
        network=FAST,
        token_bytes=1e4,
        prefill_step_s=None,
        **fields,
    ):
        config = replace(make_config(**fields), strategy=DISAGGREGATED[name])
        engine = InstanceSpec.known(config, make_latency())
        prefills = None
        if prefill_step_s is not None:
            prefills = replace(engine, execution_time_s=lambda *batch: prefill_step_s)
        topology = Topology(2, inside, network)
        return disaggregated_cell(
            engine, instances, ratio, topology, token_bytes, prefill_spec=prefills
        )

    return build


def pools(cell):
    return [instance.policy.config.pool for instance in cell.router.instances.values()]


def test_pools_with_transfers_inside_a_node_have_both_on_each_node(make_cell):
    hp, lp = Pool.HP, Pool.LP
    assert pools(make_cell("mooncake")) == [hp, hp, lp, lp]
    assert pools(make_cell("mooncake", ratio=0.25)) == [hp, lp, lp, lp]
    assert pools(make_cell("distserve")) == [hp, lp, hp, lp]
    assert pools(make_cell("distserve", ratio=0.1)) == [hp, lp, hp, lp], "one at least"
    with pytest.raises(ValueError, match="an instance each"):
        make_cell(instances=1)


@pytest.mark.parametrize("name", DISAGGREGATED)
@pytest.mark.parametrize("num_blocks", [1024, 96])
def test_disaggregated_cell_ends_every_request_and_frees_every_block(
    name, num_blocks, make_cell, make_lengths, ends
):
    cell = make_cell(name, num_blocks=num_blocks)
    arrivals = [*poisson([6.0], 30.0, make_lengths(), Random(3)), Arrival(500.0, 10, 2)]
    outcome = cell.serve(arrivals)
    assert len(ends) == outcome.requests == len(arrivals)
    for instance in cell.router.instances.values():
        running = instance.policy.running
        running.blocks.check()
        assert running.blocks.free == num_blocks
        assert instance.num_requests == 0


def test_slow_transfer_delays_the_second_token_alone(make_cell, ends):
    cell = make_cell("distserve", inside=SLOW)
    cell.serve([Arrival(1.0, 1000, 10)])
    slow = ends["request-0"]
    ends.clear()
    make_cell("distserve").serve([Arrival(1.0, 1000, 10)])
    fast = ends["request-0"]
    assert slow.first_s == fast.first_s
    # 1000 tokens of 10 kB at 1 MB/s
    assert slow.gaps_s[0] - fast.gaps_s[0] == pytest.approx(10.0, rel=1e-3)
    assert list(slow.gaps_s[1:]) == pytest.approx(list(fast.gaps_s[1:]), rel=1e-3)
    assert slow.decoding_s == pytest.approx(fast.decoding_s + 10.0, rel=1e-3)


def test_transfers_of_one_node_wait_for_its_link(make_cell, ends):
    cell = make_cell("mooncake", network=SLOW, ratio=0.25)
    cell.serve([Arrival(1.0, 1000, 5), Arrival(1.0, 1000, 5)])
    began = sorted(record.decoding_s for record in ends.values())
    assert began[1] - began[0] == pytest.approx(10.0, rel=0.05)


def test_kv_cache_stays_until_its_receiver_has_room(make_cell, ends):
    """The decoding instance of 64 blocks holds one of these at a time."""
    cell = make_cell("mooncake", instances=2, num_blocks=64, max_model_len=2000)
    cell.serve([Arrival(1.0, 1500, 20), Arrival(1.0, 1500, 20)])
    first, second = sorted(ends.values(), key=lambda record: record.last_s)
    assert second.decoding_s >= first.last_s
    assert second.first_s < first.last_s, "it was prefilled meanwhile"


def test_response_of_one_token_needs_no_transfer(make_cell, ends):
    make_cell(network=SLOW).serve([Arrival(1.0, 1000, 1)])
    assert ends["request-0"].last_s == ends["request-0"].first_s


def test_prefills_alone_run_on_their_own_device(make_cell, ends):
    make_cell().serve([Arrival(1.0, 400, 10)])
    same = ends.pop("request-0")
    make_cell(prefill_step_s=0.5).serve([Arrival(1.0, 400, 10)])
    other = ends["request-0"]
    assert other.first_s == 1.5 > same.first_s
    assert list(other.gaps_s[1:]) == pytest.approx(list(same.gaps_s[1:]))
