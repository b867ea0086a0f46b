"""The scheduler's own time (figure 14), which the simulator's requests do not wait for."""

from dataclasses import dataclass

from macroserve.sim.instance import StepOutcome
from macroserve.sim.results import AT_END
from macroserve.sim.simulation import single_cell
from macroserve.sim.simulation_trace import SimulationTrace
from macroserve_lab.experiment import Experiment
from macroserve_lab.papers.measurements import Values
from macroserve_lab.timed_scheduler import TimedScheduler


class _StepTimes(SimulationTrace):
    """The sum of the virtual time of all steps, in seconds."""

    total_s = 0.0

    def stepped(self, instance: str, outcome: StepOutcome) -> None:
        self.total_s += outcome.end_s - outcome.start_s


@dataclass(frozen=True, slots=True)
class Overhead:
    """Processor time of one instance's scheduler on the machine at hand, as a share of the virtual
    time of its steps; the rate is in requests per second."""

    key: str
    experiment: Experiment
    rate: float
    duration_s: float

    def measure(self, seed: int) -> Values:
        arrivals, num_before = self.experiment.arrivals(self.rate, self.duration_s, seed)
        spec = self.experiment.scenario.instance_spec(arrivals, seed)
        steps = _StepTimes()
        simulation = single_cell(spec, 1, trace=steps)
        (instance,) = simulation.router.instances.values()
        timed = TimedScheduler(instance.policy.config, spec.latency())
        instance.policy = timed
        simulation.serve(arrivals, num_before=num_before, stop=AT_END)
        return {self.key: timed.elapsed_s / steps.total_s}
