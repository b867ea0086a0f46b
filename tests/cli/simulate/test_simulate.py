"""``macroserve simulate``: results for a manifest and a load, and refused options."""

import json
from pathlib import Path

import pytest
import yaml
from support.simulate import LOAD, PLACE
from typer import Typer
from typer.testing import CliRunner

from macroserve.cli.simulate.command import simulate


def test_simulate_with_equal_seeds_reports_equal_figures(run, tmp_path):
    figures = []
    for index, seed in enumerate((1, 1, 2)):
        path = tmp_path / f"{index}.json"
        options = ("--duration", "20s", "--max-prompt-tokens", 4000, "--seed", seed)
        result = run(*PLACE, *LOAD, *options, "--json", path)
        assert result.exit_code == 0, result.output
        figures.append(json.loads(path.read_text()))
    first, again, other = figures
    assert first == again != other
    assert first["num_requests"] == pytest.approx(80, abs=40)
    assert first["num_devices"] == 3 and first["num_refused"] == 0
    assert first["attainment"] == 1.0 == min(first["attainment_by_size"])
    assert 0 < first["ttft"]["p50"] <= first["ttft"]["max"] == first["longest_wait_s"] < 1.0
    assert 0 < first["tpot"]["p50"] < 0.1
    assert "100.0% met their targets" in result.output


def test_simulate_of_prompts_that_share_nothing_reports_no_one_cache(run, tmp_path):
    path = tmp_path / "figures.json"
    result = run(*PLACE, *LOAD, "--duration", "5s", "--max-prompt-tokens", 4000, "--json", path)
    assert result.exit_code == 0, result.output
    assert json.loads(path.read_text())["one_cache_hit_ratio"] is None
    assert "one cache" not in result.output


def test_simulate_with_shared_prefixes_reports_what_the_caches_had(run, tmp_path):
    ratios = {}
    for tokens in (100, 3000):
        path = tmp_path / f"{tokens}.json"
        spec = f"groups=2,prompts=1000,tokens={tokens}"
        options = ("--rate", 4, "--duration", "20s", "--shared-prefix", spec, "--json", path)
        result = run(*PLACE, *options)
        assert result.exit_code == 0, result.output
        figures = json.loads(path.read_text())
        ratios[tokens] = figures["prefix_cache_hit_ratio"]
        assert ratios[tokens] < figures["one_cache_hit_ratio"] < 1
        share = f"{figures['one_cache_hit_ratio']:.1%}"
        assert f"one cache     {share} with one cache as large as all" in result.output
        assert f"cache hits    {ratios[tokens]:.1%} of the prompt tokens" in result.output
    assert 0.2 < ratios[100] < 0.6 < 0.8 < ratios[3000] < 1


def test_simulate_with_conversations_reports_all_turns_and_what_the_caches_had(run, tmp_path):
    figures = []
    for turns in (1, 4):
        path = tmp_path / f"{turns}.json"
        options = ("--duration", "20s", "--multi-turn", f"turns={turns},think=2s", "--json", path)
        result = run(*PLACE, "--rate", 4, "--seed", 2, *options)
        assert result.exit_code == 0, result.output
        figures.append(json.loads(path.read_text()))
    alone, chats = figures
    assert chats["num_requests"] == 4 * alone["num_requests"] > 0
    assert alone["prefix_cache_hit_ratio"] == 0 < 0.6 < chats["prefix_cache_hit_ratio"] < 0.8
    assert chats["num_refused"] == chats["num_unsent"] == 0


def test_simulate_of_a_sharegpt_file_takes_its_lengths(run, tmp_path):
    share, figures = tmp_path / "share.json", tmp_path / "figures.json"
    talk = [{"from": sender, "value": "x" * 400} for sender in ("human", "gpt") * 3]
    share.write_text(json.dumps([{"conversations": talk}]))
    common = (*PLACE, "--rate", 2, "--duration", "20s", "--sharegpt", share, "--json", figures)
    numbers = []
    for turns in ((), ("--multi-turn", "turns=2,think=1s")):
        result = run(*common, *turns)
        assert result.exit_code == 0, result.output
        numbers.append(json.loads(figures.read_text())["num_requests"])
    assert numbers[1] == 2 * numbers[0] > 0
    # The only conversation repeats.
    assert json.loads(figures.read_text())["prefix_cache_hit_ratio"] > 0.8


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--prompt-tokens", 5), "go without --sharegpt: its prompts are texts"),
        (("--length-scale", 0.5), "go without --sharegpt: its prompts are texts"),
        (("--shared-prefix", "groups=1,tokens=9"), "go without --sharegpt"),
        (("--tokenizer", "nowhere"), "--tokenizer: nowhere/tokenizer.json: No such file"),
        ((), "share.json is not in ShareGPT's format"),
    ],
)
def test_simulate_of_a_bad_sharegpt_load_fails_with_one_sentence(run, tmp_path, options, sentence):
    share = tmp_path / "share.json"
    share.write_text("{}")
    result = run(*PLACE, "--rate", 1, "--sharegpt", share, *options)
    assert result.exit_code == 2
    assert sentence in result.output and "Traceback" not in result.output


def test_simulate_of_servegens_clients_sends_their_requests(run, tmp_path):
    (tmp_path / "chunk-0-trace.csv").write_text("0,3.0,1.5,Gamma,0.9,0.6\n")
    texts = {"input_tokens": "{90: 1.0}", "output_tokens": "{5: 1.0}"}
    (tmp_path / "chunk-0-dataset.json").write_text(json.dumps({"0": texts}))
    path = tmp_path / "figures.json"
    common = (*PLACE, "--rate", 4, "--duration", "60s", "--servegen", tmp_path)
    result = run(*common, "--json", path)
    assert result.exit_code == 0, result.output
    assert json.loads(path.read_text())["num_requests"] == pytest.approx(240, abs=80)
    assert run(*common, "--servegen-start", "0s").exit_code == 0
    for options, sentence in (
        (("--multi-turn", "turns=2,think=1s"), "go without --servegen"),
        (("--servegen-start", "1h"), "no client sends requests after the start"),
        (("--servegen-start", "-1s"), "--servegen-start"),
    ):
        result = run(*common, *options)
        assert result.exit_code == 2 and sentence in result.output


def test_simulate_of_conversations_beyond_the_model_says_that_they_end(run, tmp_path):
    path = tmp_path / "figures.json"
    options = ("--duration", "10s", "--multi-turn", "turns=4,think=1s", "--json", path)
    result = run(*PLACE, "--rate", 1, "--prompt-tokens", 1800, *options)
    assert result.exit_code == 0, result.output
    num_chats = json.loads(path.read_text())["num_requests"] // 2
    assert f"{num_chats} of {num_chats} conversations end before a turn" in result.output


def test_simulate_of_refused_requests_reports_the_turns_after_them(run, manifest, tmp_path):
    wanted = yaml.safe_load(manifest.read_text())
    wanted["spec"] |= {"slo": {"ttft": "20ms", "tpot": "100ms"}, "scheduling": {"dropLate": True}}
    manifest.write_text(yaml.safe_dump(wanted))
    path = tmp_path / "figures.json"
    options = ("--duration", "5s", "--multi-turn", "turns=3,think=1s", "--json", path)
    result = run(*PLACE, "--rate", 20, "--prompt-tokens", 500, *options)
    assert result.exit_code == 0, result.output
    found = json.loads(path.read_text())
    assert found["num_refused"] > 0 and found["num_unsent"] > 0
    assert f"{found['num_unsent']:,} turns after those refused" in result.output


@pytest.mark.parametrize("num_requests", [1, 3, 4])
def test_simulate_of_few_requests_reports_their_figures(run, tmp_path, num_requests):
    trace, figures = tmp_path / "trace.csv", tmp_path / "figures.json"
    rows = [f"2023-11-16 18:15:{46 + index}.68,10,5" for index in range(num_requests)]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    result = run(*PLACE, "--trace", trace, "--json", figures)
    assert result.exit_code == 0, result.output
    found = json.loads(figures.read_text())
    assert found["num_requests"] == num_requests
    assert found["attainment_by_size"] == ([1.0] * 4 if num_requests == 4 else [])
    assert ("by size" in result.output) is (num_requests == 4)


def test_simulate_with_a_trace_replays_it_whole(run, tmp_path):
    trace = tmp_path / "trace.jsonl"
    rows = [{"arrival_s": 0.5 * i, "prompt_tokens": 100, "output_tokens": 10} for i in range(30)]
    text = "\n".join(map(json.dumps, rows))
    trace.write_text(text)
    path = tmp_path / "figures.json"
    assert run(*PLACE, "--trace", trace, "--json", path).exit_code == 0
    assert json.loads(path.read_text())["num_requests"] == 30
    trace.write_text(text + "\n{}\n")
    result = run(*PLACE, "--trace", trace)
    assert result.exit_code == 2 and "line 31: arrival_s is missing" in result.output
    result = run(*PLACE, "--trace", trace, "--lenient")
    assert result.exit_code == 0 and "1 invalid rows of the trace skipped" in result.output


def test_simulate_of_requests_beyond_the_model_refuses_and_reports_them(run, tmp_path):
    trace, figures = tmp_path / "trace.jsonl", tmp_path / "figures.json"
    lengths = [(100_000, 10), (4096, 10), (4095, 10), (100, 10), (100, 5000)]
    rows = [
        {"arrival_s": 60 * i, "prompt_tokens": prompt, "output_tokens": output}
        for i, (prompt, output) in enumerate(lengths)
    ]
    trace.write_text("\n".join(map(json.dumps, rows)))
    result = run(*PLACE, "--trace", trace, "--json", figures)
    assert result.exit_code == 0, result.output
    found = json.loads(figures.read_text())
    assert (found["num_requests"], found["num_refused"], found["attainment"]) == (5, 2, 0.6)
    assert "2 of 5 requests have prompts longer than spec.model.maxModelLen" in result.output
    assert "2 of 5 responses exceed" in result.output


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            (*LOAD, *PLACE, "--device", "B1000"),
            "'B1000' is not one of A100-40GB",
        ),
        ((*LOAD, *PLACE, "--link", "rope"), "'rope' is not one of nvlink3"),
        (
            (*LOAD, "--device", "L20-48GB", "--model", "nothing"),
            "cannot be read from nothing/config.json",
        ),
        (
            (*LOAD, "--device", "L20-48GB", "--model", "Qwen2-72B"),
            "leave no memory for a cache on 1 x L20-48GB",
        ),
        (PLACE, "give either --trace FILE or --rate R"),
        (
            (*PLACE, *LOAD, "--multi-turn", "5"),
            "--multi-turn: expected turns=5,think=10s, got '5'",
        ),
        (
            (
                *(*PLACE, *LOAD, "--multi-turn", "turns=2,think=1s"),
                *("--shared-prefix", "groups=2,prompts=3,tokens=9"),
            ),
            "omit prompts in --shared-prefix",
        ),
        ((*PLACE, *LOAD, "--duration", "1ms"), "no request arrives within --duration"),
    ],
)
def test_simulate_of_impossible_options_fails_with_one_sentence(run, options, sentence):
    result = run(*options)
    assert result.exit_code == 2
    assert sentence in result.output and "Traceback" not in result.output


def test_simulate_with_a_checkpoint_folder_takes_its_shape(run, tmp_path):
    config = {
        "model_type": "mistral",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 32000,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    named, read = (tmp_path / name for name in ("named.json", "read.json"))
    common = (*LOAD, "--duration", "5s", "--device", "A100-80GB")
    assert run(*common, "--model", "Mistral-7B", "--json", named).exit_code == 0
    assert run(*common, "--model", tmp_path, "--json", read).exit_code == 0
    assert json.loads(named.read_text()) == json.loads(read.read_text())


@pytest.mark.parametrize("config", ["", "[]", "[" * 100_000, '{"hidden_size": "4096"}', "\xff"])
def test_simulate_with_an_unreadable_checkpoint_fails_with_one_sentence(run, tmp_path, config):
    (tmp_path / "config.json").write_bytes(config.encode("latin-1"))
    result = run(*LOAD, "--device", "A100-80GB", "--model", tmp_path)
    assert result.exit_code == 2
    assert "shape cannot be read from" in result.output and "Traceback" not in result.output


def test_simulate_of_each_example_manifest_succeeds(tmp_path):
    app = Typer()
    app.command()(simulate)
    root = Path(__file__).parents[3]
    options = (*LOAD, "--duration", "2s", "--device", "L20-48GB", "--model", "CodeLlama-34B")
    result = CliRunner().invoke(
        app, ["-f", str(root / "manifests/l20-cluster.yaml"), *map(str, options)]
    )
    assert result.exit_code == 0, result.output
    assert "devices" in result.output


def test_simulate_trace_out_writes_trace_events(run, tmp_path):
    path = tmp_path / "run.json"
    result = run(*PLACE, *LOAD, "--duration", "5s", "--trace-out", path)
    assert result.exit_code == 0, result.output
    phases = {event["ph"] for event in json.loads(path.read_text())["traceEvents"]}
    assert phases == {"M", "X", "b", "e"}


def test_simulated_classes_are_judged_by_their_own_targets(manifest, run, tmp_path):
    document = yaml.safe_load(manifest.read_text())
    strict = {"name": "strict", "ttft": "1ms", "tpot": "50ms", "share": 0.4}
    lax = {"name": "lax", "ttft": "30s", "tpot": "500ms", "share": 0.3}
    document["spec"]["slo"]["classes"] = [strict, lax, lax | {"name": "idle", "share": None}]
    del document["spec"]["slo"]["classes"][2]["share"]
    manifest.write_text(yaml.safe_dump(document))
    path = tmp_path / "report.json"
    options = ("--duration", "20s", "--max-prompt-tokens", 4000, "--json", path)
    result = run(*PLACE, *LOAD, *options)
    assert result.exit_code == 0, result.output
    classes = json.loads(path.read_text())["classes"]
    assert {name: found["attainment"] for name, found in classes.items()} == {
        "default": 1.0,
        "lax": 1.0,
        "strict": 0.0,
    }
    assert sum(found["num_requests"] for found in classes.values()) == pytest.approx(80, abs=40)
    assert "class strict" in result.output and "0.0% of" in result.output


def test_simulated_ordering_that_cannot_be_imported_is_refused(manifest, run):
    document = yaml.safe_load(manifest.read_text())
    document["spec"]["scheduling"] = {"strategy": "vllm", "ordering": "nowhere:f"}
    manifest.write_text(yaml.safe_dump(document))
    result = run(*PLACE, *LOAD, "--duration", "5s")
    assert result.exit_code == 2
    assert "spec.scheduling.ordering nowhere:f cannot be imported" in result.output


def test_simulated_chunks_are_those_of_the_manifest(manifest, run, tmp_path):
    """Chunks of 16 tokens serve prompts later, and make no step longer."""
    found = []
    for tuning in ({}, {"chunkTokens": 16}):
        document = yaml.safe_load(manifest.read_text())
        document["spec"]["scheduling"] = {"strategy": "sarathi", "tuning": tuning}
        manifest.write_text(yaml.safe_dump(document))
        path = tmp_path / "report.json"
        result = run(*PLACE, *LOAD, "--duration", "5s", "--json", path)
        assert result.exit_code == 0, result.output
        found.append(json.loads(path.read_text()))
    default, small = found
    assert small["ttft"]["max"] > 2 * default["ttft"]["max"]
    assert small["tbt"]["max"] < default["tbt"]["max"]


def test_simulated_hidden_states_are_those_of_the_manifest(manifest, run, tmp_path):
    """Hidden states let more requests run at a time where the cache has room for a few."""
    found = {}
    for setting in ("On", "Off"):
        document = yaml.safe_load(manifest.read_text())
        document["spec"]["engine"] |= {"hybridCache": setting, "kvCacheMemory": "4GiB"}
        document["spec"]["instances"] = 1
        manifest.write_text(yaml.safe_dump(document))
        path = tmp_path / "report.json"
        place = ("--device", "A100-80GB", "--model", "OPT-13B")
        load = ("--rate", 6, "--prompt-tokens", 700, "--output-tokens", 100, "--duration", "20s")
        result = run(*place, *load, "--json", path)
        assert result.exit_code == 0, result.output
        found[setting] = json.loads(path.read_text())["ttft"]["mean"]
    assert found["On"] < 0.8 * found["Off"]


def test_simulated_hidden_states_that_cannot_be_kept_are_refused(manifest, run):
    document = yaml.safe_load(manifest.read_text())
    document["spec"]["engine"]["hybridCache"] = "On"
    manifest.write_text(yaml.safe_dump(document))
    result = run(*PLACE, *LOAD)
    assert result.exit_code == 2
    sentence = "hybridCache is On, but it does not support the attention of MistralForCausalLM"
    assert sentence in " ".join(result.output.split())


def test_simulated_wait_beyond_the_endpoints_is_told(manifest, run):
    document = yaml.safe_load(manifest.read_text())
    document["spec"]["instances"] = 1
    load = ("--rate", 40, "--prompt-tokens", 1500, "--output-tokens", 50, "--duration", "10s")
    outputs = []
    for most in ("1h", "2s"):
        document["spec"]["scheduling"] = {"maxQueueWait": most}
        manifest.write_text(yaml.safe_dump(document))
        result = run(*PLACE, *load)
        assert result.exit_code == 0, result.output
        outputs.append(" ".join(result.output.split()))
    told = "spec.scheduling.maxQueueWait is not simulated: the endpoint refuses"
    assert [told in output for output in outputs] == [False, True]
    assert "longer than 2.00 s; the longest wait was" in outputs[1]


def test_simulate_of_a_manifest_with_speculative_decoding_says_that_it_is_not_simulated(
    manifest, run
):
    document = yaml.safe_load(manifest.read_text())
    document["spec"]["engine"]["args"] = {"speculativeConfig": {"method": "ngram"}}
    manifest.write_text(yaml.safe_dump(document))
    result = run(*PLACE, *LOAD, "--duration", "5s")
    assert result.exit_code == 0, result.output
    assert "spec.engine.args is not simulated: speculativeConfig." in result.output
