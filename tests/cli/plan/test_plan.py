"""``macroserve plan``: a table, a file of all candidates, a manifest to apply."""

import json

import pytest
import yaml
from typer import Typer
from typer.testing import CliRunner

from macroserve.api.manifest import parse
from macroserve.cli.plan.command import plan

MANIFEST = {
    "apiVersion": "macroserve.io/v1alpha1",
    "kind": "MacroInstance",
    "metadata": {"name": "wanted"},
    "spec": {
        "model": {"source": "mistralai/Mistral-7B-v0.1", "maxModelLen": 4096},
        "engine": {"type": "vLLM", "kvCacheMemory": "1GiB"},
        "slo": {"ttft": "2s", "tpot": "100ms", "attainment": 0.9},
        "instances": 3,
        "mitosis": {"lowerBound": 1, "upperBound": 2},
        "autoscaling": {"minInstances": 3, "maxInstances": 4},
        "template": {
            "spec": {
                "containers": [
                    {"name": "engine", "resources": {"limits": {"nvidia.com/gpu": 4}}},
                    {"name": "beside"},
                ]
            }
        },
    },
}
LOAD = ("--rate", 4, "--prompt-tokens", 300, "--output-tokens", 50, "--duration", "10s")
PLACE = ("--device", "L20-48GB", "--model", "Mistral-7B", "--devices", 4, "--per-node", 2)


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "wanted.yaml"
    path.write_text(yaml.safe_dump(MANIFEST))
    app = Typer()
    app.command()(plan)
    common = ["-f", str(path), "--processes", "1", "--out", str(tmp_path / "out")]
    return lambda *options: CliRunner().invoke(app, [*common, *map(str, options)])


def test_plan_writes_candidates_a_price_and_a_manifest_to_apply(run, tmp_path):
    result = run(*PLACE, *LOAD, "--price", 2.0)
    assert result.exit_code == 0, result.output
    figures = json.loads((tmp_path / "out" / "plan.json").read_text())
    best = figures["recommended"]
    assert best["devices"] == 1 and best["attainment"] >= 0.9
    assert best["cost_per_1000_requests"] == 2.0 * best["device_hours_per_1000_requests"]
    assert best["device_hours_per_1000_requests"] == pytest.approx(1000 / 4 / 3600, rel=0.3)
    assert len(figures["candidates"]) > 5
    document = yaml.safe_load((tmp_path / "out" / "macroinstance.yaml").read_text())
    spec = parse(document).spec
    assert (spec.instances, spec.engine.tensor_parallel) == (1, 1)
    # 90 % of 48 GiB and a gigabyte less, beside 14.5 GB of weights.
    assert spec.engine.kv_cache_bytes == pytest.approx(30.9e9, rel=0.01)
    engine, beside = document["spec"]["template"]["spec"]["containers"]
    assert engine["resources"]["limits"] == {"nvidia.com/gpu": 1} and beside == {"name": "beside"}
    assert spec.scheduling.strategy == best["strategy"]
    assert spec.autoscaling is not None and spec.autoscaling.min_instances == 1
    assert spec.slo.ttft_s == 2.0 and document["metadata"] == {"name": "wanted"}
    assert (tmp_path / "out" / "plan.png").read_bytes().startswith(b"\x89PNG")
    assert "Candidates" in result.output


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((*PLACE, "--rate", 4, "--trace", "t"), "give either --trace FILE or --rate R"),
        ((*LOAD, *PLACE, "--device", "abacus"), "'abacus' is not one of"),
        (
            (*PLACE, *LOAD, "--rate", 300, "--duration", "2s"),
            "no configuration on 4 devices keeps 90%",
        ),
    ],
)
def test_plan_of_impossible_options_fails_with_one_sentence(run, options, sentence):
    result = run(*options)
    assert result.exit_code == 2
    assert sentence in result.output and "Traceback" not in result.output


def test_plan_of_requests_beyond_the_model_reports_and_ignores_them(run, tmp_path):
    trace = tmp_path / "trace.jsonl"
    rows = [
        {"arrival_s": i, "prompt_tokens": 300 if i % 2 else 9000, "output_tokens": 50}
        for i in range(20)
    ]
    trace.write_text("\n".join(map(json.dumps, rows)))
    result = run(*PLACE, "--trace", trace)
    assert result.exit_code == 0, result.output
    assert "10 of 20 requests have prompts longer than spec.model.maxModelLen" in result.output
    assert "The plan covers the other requests." in result.output
    trace.write_text(json.dumps(rows[0]))
    result = run(*PLACE, "--trace", trace)
    assert result.exit_code == 2
    assert "every prompt exceeds spec.model.maxModelLen, 4,096 tokens" in result.output


def with_spec(tmp_path, **fields):
    spec = {**MANIFEST["spec"], **fields}
    (tmp_path / "wanted.yaml").write_text(yaml.safe_dump({**MANIFEST, "spec": spec}))


def test_plan_keeps_the_targets_of_each_class(run, tmp_path):
    strict = {"name": "strict", "ttft": "1ms", "tpot": "100ms", "share": 0.3, "attainment": 0.5}
    with_spec(tmp_path, slo={**MANIFEST["spec"]["slo"], "classes": [strict]})
    result = run(*PLACE, *LOAD)
    assert result.exit_code == 2
    assert "no configuration on 4 devices keeps 90%" in result.output


def test_plan_tries_the_manifests_numbers_and_keeps_those_that_the_strategy_reads(run, tmp_path):
    """Strategies with chunks miss the targets with a token of a prompt in each step."""
    with_spec(tmp_path, scheduling={"strategy": "sarathi", "tuning": {"chunkTokens": 1}})
    result = run(*PLACE, *LOAD)
    assert result.exit_code == 0, result.output
    figures = json.loads((tmp_path / "out" / "plan.json").read_text())
    chunked = [each for each in figures["candidates"] if each["strategy"] == "sarathi"]
    assert chunked and all(each["devices"] is None for each in chunked)
    document = yaml.safe_load((tmp_path / "out" / "macroinstance.yaml").read_text())
    assert parse(document).spec.scheduling.strategy not in ("sarathi", "aptserve-s", "econoserve")
    assert document["spec"]["scheduling"]["tuning"] == {}


def test_plan_of_prompts_that_begin_alike_reports_cache_hits(run, tmp_path):
    result = run(*PLACE, *LOAD)
    assert "hits" not in result.output
    result = run(*PLACE, *LOAD, "--shared-prefix", "groups=2,prompts=20,tokens=1000")
    assert result.exit_code == 0, result.output
    best = json.loads((tmp_path / "out" / "plan.json").read_text())["recommended"]
    # All but the first of each group find 1,000 of their 1,300 tokens.
    assert 0.5 < best["prefix_cache_hit_ratio"] < 1000 / 1300
    assert "hits" in result.output and f"{best['prefix_cache_hit_ratio']:.0%}" in result.output


def test_plan_with_an_ordering_is_refused(run, tmp_path):
    with_spec(tmp_path, scheduling={"strategy": "ascendra", "ordering": "SJF"})
    result = run(*PLACE, *LOAD)
    assert result.exit_code == 2
    assert "leave spec.scheduling.ordering out" in result.output
