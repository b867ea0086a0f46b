"""The bench of steady decodes times the same steps with and without decisions."""

from macroserve_lab.bench import scheduler as bench


def test_steady_decodes_cost_a_fraction_of_deciding_each_step():
    """The ratios leave room for a busy machine: alone it is 0.3 here, with a queue 0.03."""
    figures = bench.measure_steady(num_steps=40)
    for name, most in (("steady", 0.9), ("steady_queue", 0.3)):
        ours, deciding = (
            figures[f"scheduler.{name}_{kind}us_per_token"] for kind in ("", "deciding_")
        )
        assert figures[f"scheduler.{name}_ratio"] == ours / deciding < most
