"""The timed scheduler decides as the scheduler does."""

from support.experiment import EXPERIMENT

from macroserve.sim.results import AT_END
from macroserve.sim.simulation import single_cell
from macroserve_lab.timed_scheduler import TimedScheduler


def test_timed_scheduler_decides_the_same_and_takes_time():
    arrivals, num_before = EXPERIMENT.arrivals(4.0, 5.0)
    spec = EXPERIMENT.scenario.instance_spec(arrivals, 0)
    simulation = single_cell(spec, 1)
    (instance,) = simulation.router.instances.values()
    instance.policy = timed = TimedScheduler(instance.policy.config, spec.latency())
    assert timed.elapsed_s == 0.0
    outcome = simulation.serve(arrivals, num_before=num_before, stop=AT_END)
    assert outcome == EXPERIMENT.serve(4.0, 5.0, stop=AT_END)
    assert timed.elapsed_s > 0.0
