"""``macroserve simulate --autoscale``: the fleet's changes, and refused options."""

import json

import pytest
import yaml
from support.simulate import LOAD, MANIFEST, PLACE

from macroserve.cli.simulate.autoscale_options import AutoscaleOptions
from macroserve.local.manifest_file import load


@pytest.mark.simulation
def test_simulate_autoscaled_reports_what_the_fleet_did(run, tmp_path):
    load = ("--rate", 12, "--prompt-tokens", 1500, "--output-tokens", 60, "--duration", "90s")
    fleet = ("--autoscale", "1:4", "--start-up", "20s", "--start-up-cv", 0.2)
    path = tmp_path / "scaled.json"
    result = run(*PLACE, *load, *fleet, "--failed-starts", 0.2, "--json", path)
    assert result.exit_code == 0, result.output
    assert "Autoscaling" in result.output and "in the mean" in result.output
    found = json.loads(path.read_text())
    scaled = found["autoscaling"]
    assert scaled["timeline"][0] == {"at_s": 0.0, "wanted": 3, "ready": 3, "existing": 3}
    assert 1 <= scaled["mean_ready"] <= scaled["mean_instances"] <= 4
    assert len(scaled["changes"]) == scaled["num_ups"] + scaled["num_downs"]
    assert found["num_requests"] == pytest.approx(12 * 90, rel=0.1)
    again = tmp_path / "again.json"
    run(*PLACE, *load, *fleet, "--failed-starts", 0.2, "--json", again)
    assert json.loads(again.read_text()) == found


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--start-up", "20s"), "need --autoscale"),
        (("--failed-starts", 0.1), "need --autoscale"),
        (("--start-up-cv", 0.1), "need --autoscale"),
        (("--autoscale", "3"), "must be MIN:MAX"),
        (("--autoscale", "0:3"), "must be MIN:MAX"),
        (("--autoscale", "4:3"), "must be MIN:MAX"),
        (("--autoscale", "1:3", "--start-up", "soon"), "--start-up"),
        (("--autoscale", "1:3", "--failed-starts", 1.0), "less than 1"),
    ],
)
def test_simulate_with_bad_autoscale_options_says_why(run, options, says):
    result = run(*PLACE, *LOAD, *options)
    assert result.exit_code == 2
    assert says in " ".join(result.output.split())


def test_simulate_autoscaled_takes_the_windows_of_the_manifest(manifest):
    options = AutoscaleOptions(autoscale="2:5")
    limits = options.limits(load(manifest))
    assert (limits.least, limits.most, limits.up_s, limits.down_s) == (2, 5, 0.0, 300.0)
    spec = {
        **MANIFEST["spec"],
        "autoscaling": {
            "minInstances": 1,
            "maxInstances": 9,
            "stabilization": {"up": "10s", "down": "60s"},
        },
    }
    manifest.write_text(yaml.safe_dump({**MANIFEST, "spec": spec}))
    limits = options.limits(load(manifest))
    assert (limits.least, limits.most, limits.up_s, limits.down_s) == (2, 5, 10.0, 60.0)
