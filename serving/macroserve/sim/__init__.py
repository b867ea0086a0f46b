"""Simulation of a deployment in virtual time: the same schedulers and routing, another executor.

The simulator contains no policy. Batch times come from a model, arrivals are drawn from rates and
lengths, and nothing depends on a clock: equal inputs and seeds give equal outcomes.
"""

SIMULATOR_VERSION = 9
"""Raised whenever simulated outcomes change, which invalidates cached results of other versions. A
test compares the outcomes of some cases with recorded ones."""
