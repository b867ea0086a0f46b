"""Simulate a deployment in virtual time: the same schedulers and the same routing, another
executor.

The simulator has no policy of its own. A batch takes the time that a latency model gives it, an
arrival is drawn from rates and lengths, and nothing depends on a clock: the same input and seed
give the same outcome.
"""

SIMULATOR_VERSION = 8
"""Version of the simulator. A change of simulated outcomes raises it, so that kept measurements of
another version do not count. A test compares the outcomes of some cases with recorded ones."""
