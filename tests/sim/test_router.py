"""Several cells under one load, and cells that grow."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from macroserve.core.routing.prefixes import num_keys
from macroserve.core.scaling.mitosis import Bounds
from macroserve.core.status import Pool
from macroserve.sim.instance import InstanceSpec
from macroserve.sim.results import AT_END
from macroserve.sim.router import FleetRouter
from macroserve.sim.simulation import Simulation
from macroserve.workload.arrivals import Arrival, poisson
from macroserve_lab.growth import Growth


@pytest.fixture
def engine(make_config, make_latency):
    def build(strategy="unified", **fields):
        return InstanceSpec.known(make_config(strategy, **fields), make_latency())

    return build


def fleet_of(spec, *fleet):
    return Simulation(FleetRouter(spec, *fleet), spec.config)


def sizes(fleet):
    return [cell.size for cell in fleet.router.cells]


@pytest.mark.parametrize(
    ("num_instances", "expected"), [(3, [3]), (6, [6]), (7, [4, 3]), (12, [6, 6]), (13, [4, 6, 3])]
)
def test_fleet_is_divided_into_the_cells_of_mitosis(engine, num_instances, expected):
    assert sizes(fleet_of(engine(), num_instances, Bounds(3, 6))) == expected


def test_fleet_request_ends_in_one_cell(engine):
    arrivals = [Arrival(0.1 * i, 100 + i, 50) for i in range(60)]
    fleet = fleet_of(engine(), 5, Bounds(1, 2))
    outcome = fleet.serve(arrivals, num_before=10, stop=AT_END)
    prompts = sorted(result.num_prompt_tokens for result in outcome.results)
    assert prompts == list(range(110, 160))
    assert outcome.requests == outcome.attained == 50
    for instance in fleet.router.instances.values():
        assert instance.status(99.0).finished > 0, "the least loaded cell takes the next one"


def test_burst_is_routed_to_the_cell_that_can_be_in_time(engine, make_lengths):
    """Cells that share all requests serve about as many as one of all instances."""
    arrivals = poisson((14.0,), 60.0, make_lengths(), Random(3))
    together = fleet_of(engine(), 4, Bounds(2, 4)).serve(arrivals)
    apart = fleet_of(engine(), 4, Bounds(1, 2)).serve(arrivals)
    assert together.attainment > 0.9
    assert apart.attainment > together.attainment - 0.05


def test_request_skips_the_least_loaded_cell_if_that_would_be_late(engine):
    """The cells have one request each, which leaves no memory for another in the first cell."""
    fleet = fleet_of(engine("ecoserve", num_blocks=64), 2, Bounds(1, 1))
    arrivals = [Arrival(0.0, 1500, 200), Arrival(2.0, 100, 200), Arrival(2.5, 700, 5)]
    fleet.serve(arrivals, stop=AT_END)
    finished = [
        fleet.router.instances[cell.instances[0]].status(99.0).finished
        for cell in sorted(fleet.router.cells, key=lambda cell: cell.name)
    ]
    assert finished == [1, 2]


def test_offloaded_request_stays_in_a_cell_with_an_hp_instance(engine):
    fleet = fleet_of(engine("ascendra"), 6, Bounds(2, 3), 1 / 3)
    assert sizes(fleet) == [3, 3]
    pools = [
        [fleet.router.instances[name].policy.config.pool for name in cell.instances]
        for cell in fleet.router.cells
    ]
    assert [cell.count(Pool.HP) for cell in pools] == [1, 1]
    outcome = fleet.serve([Arrival(0.01 * i, 900, 20) for i in range(200)], stop=AT_END)
    assert len(outcome.results) == 200


@pytest.fixture
def growing(engine):
    def build(**fields):
        options = {"goal": 0.9, "interval_s": 10.0, "max_instances": 5, **fields}
        spec = engine("ecoserve")
        router = FleetRouter(spec, 2, Bounds(2, 3))
        growth = Growth(router, **options)
        return Simulation(router, spec.config, control=growth), growth

    return build


def test_fleet_below_its_goal_grows_by_one_instance(growing, make_lengths):
    fleet, growth = growing()
    arrivals = poisson((4.0, 40.0), 60.0, make_lengths(), Random(4))
    fleet.serve(arrivals, stop=AT_END)
    numbers = [reading.num_instances for reading in growth.readings]
    assert numbers[0] == 2 and max(numbers) == 5
    assert all(0 <= later - earlier <= 1 for earlier, later in pairwise(numbers))
    for before, after in pairwise(growth.readings):
        grew = after.num_instances > before.num_instances
        assert grew == (before.attainment < 0.9 and before.num_instances < 5)
    assert growth.readings[-1].num_cells == 2


def test_fleet_reading_covers_requests_since_the_last_reading(growing):
    fleet, growth = growing(goal=0.0)
    crowd = [Arrival(1.0, 2000, 5)] * 60
    calm = [Arrival(60.0 + 0.5 * i, 100, 5) for i in range(60)]
    fleet.serve([*crowd, *calm], stop=AT_END)
    assert growth.readings[0].attainment < 0.5
    assert growth.readings[-1].attainment == 1.0


def test_fleet_split_changes_no_request(growing):
    arrivals = [Arrival(0.2 * i, 200, 40) for i in range(100)]
    calm = growing(goal=0.0)[0].serve(arrivals, stop=AT_END)
    fleet, _ = growing(goal=1.1, interval_s=5.0, max_instances=4)
    divided = fleet.serve(arrivals, stop=AT_END)
    assert sizes(fleet) == [2, 2]
    assert len(divided.results) == len(calm.results) == 100
    assert divided.attained >= calm.attained == 100


def test_requests_of_a_strategy_without_constraints_are_spread(engine):
    fleet = fleet_of(engine("vllm"), 4, Bounds(1, 2))
    fleet.serve([Arrival(0.05 * i, 300, 10) for i in range(80)], stop=AT_END)
    finished = [each.status(99.0).finished for each in fleet.router.instances.values()]
    assert max(finished) <= 2 * min(finished)


NUM_PROMPTS = 5


def test_prompts_come_back_to_the_cell_that_has_their_beginning(engine):
    fleet = fleet_of(replace(engine(), shares_prefixes=True), 2, Bounds(1, 1))
    arrivals = [
        Arrival(0.5 * number, 1537, 5, block_ids=(number % NUM_PROMPTS,) * 3)
        for number in range(4 * NUM_PROMPTS)
    ]
    fleet.serve(arrivals, stop=AT_END)
    statuses = [instance.status(99.0) for instance in fleet.router.instances.values()]
    assert sum(status.cached_tokens for status in statuses) == 1536 * 3 * NUM_PROMPTS
    assert min(status.finished for status in statuses) >= 4


def test_instance_that_a_split_moves_takes_its_beginnings_along(engine):
    spec = replace(engine(), shares_prefixes=True)
    fleet = fleet_of(spec, 3, Bounds(2, 3))
    fleet.serve([Arrival(0.0, 1537, 5, block_ids=(n, n, n)) for n in range(9)], stop=AT_END)
    router = fleet.router
    homes = {name: router.ledger(name) for name in router.instances}
    router.grow(4, 99.0)
    assert sizes(fleet) == [2, 2] and any(router.ledger(name) is not homes[name] for name in homes)
    assert sum(ledger.cell_view("").lost_tokens for ledger in router.ledgers) == 0
    assert sum(ledger.cell_view("").moved_tokens for ledger in router.ledgers) > 0
    again = [Arrival(100.0 + n, 1537, 5, block_ids=(n, n, n)) for n in range(9)]
    fleet.serve(again, stop=AT_END)
    found = sum(ledger.cell_view("").cached_tokens for ledger in router.ledgers)
    assert found == 9 * 1536
    held = [key for name in homes for key in router.ledger(name).release(name)]
    assert len(set(held)) == len(held) == 9 * num_keys(1537)
