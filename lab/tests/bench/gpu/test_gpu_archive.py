"""The archive of the check on a GPU is small and complete, as far as is testable without a GPU."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from macroserve_lab.bench.gpu import archive
from macroserve_lab.bench.gpu.archive import build, locked
from macroserve_lab.bench.gpu.check import ENGINES as ENGINES_COMPARED
from macroserve_lab.bench.gpu.check import STOCK

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1500)]

KERNEL_TESTS = ("test_write_hidden.py", "test_rebuild_kv.py", "test_bench.py")

ENGINES = """
import json, sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from pathlib import Path

class Archive(PathFinder):
    # Finds no package but the archive's, and those of torch and of Python.
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if path is None and not name.startswith("_") and name.partition(".")[0] not in KNOWN:
            return None
        return super().find_spec(name, path, target)

BROUGHT = "torch torchgen functorch triton sympy mpmath networkx jinja2 markupsafe"
BROUGHT += " typing_extensions filelock fsspec macroserve macroserve_lab"
BROUGHT += " setuptools jaraco backports more_itertools"
site = Path(sys.argv[1])
KNOWN = {path.name.partition(".")[0] for path in site.iterdir()} | set(BROUGHT.split())
KNOWN |= sys.stdlib_module_names
sys.meta_path[:] = [BuiltinImporter, FrozenImporter, Archive]

from macroserve_lab.bench.gpu import check, engines

folder = Path(sys.argv[2])
small = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2}
small |= {"num_attention_heads": 4, "num_key_value_heads": 4}
engines.build(folder, engines.MODEL | small)
print(json.dumps(engines.measure(folder, sys.argv[3], "eager", num_tokens=6)))
"""

GPU_ENGINE = """
import importlib, json, sys
from pathlib import Path
import vllm.platforms
from vllm.platforms.cuda import NonNvmlCudaPlatform
from vllm.platforms.interface import DeviceCapability

class Hopper(NonNvmlCudaPlatform):
    get_device_capability = classmethod(lambda cls, device_id=0: DeviceCapability(9, 0))
    get_device_name = classmethod(lambda cls, device_id=0: "H100")
    get_device_total_memory = classmethod(lambda cls, device_id=0: 80 << 30)
    num_compute_units = classmethod(lambda cls, device_id=0: 132)

vllm.platforms._current_platform = Hopper()
for module in ("gpu.model_runner", "gpu.warmup", "gpu_model_runner", "gpu_worker"):
    importlib.import_module(f"vllm.v1.worker.{module}")
import vllm.model_executor.models.llama, vllm.model_executor.warmup.kernel_warmup
import vllm.v1.attention.backends.triton_attn
from macroserve_lab.bench.gpu import engines
from macroserve.core.status import Pool
from macroserve.engine.vllm.options import engine_args

folder = Path(sys.argv[1])
(folder / "config.json").write_text(json.dumps(
    engines.MODEL | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
))
args = engine_args(engines.settings(folder, engines.ENGINES["vllm"], "graphs"), Pool.LP, None)
config = args.create_engine_config()
print(json.dumps([
    config.use_v2_model_runner,
    config.scheduler_config.async_scheduling,
    config.attention_config.backend.name,
    config.compilation_config.cudagraph_mode.name,
    config.scheduler_config.max_num_seqs,
]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Return a folder with the unpacked archive."""
    folder = tmp_path_factory.mktemp("bare")
    packed = folder / "gpu-check.tar.xz"
    build(packed)
    assert packed.stat().st_size < 60e6
    with tarfile.open(packed) as file:
        file.extractall(folder, filter="data")
    return folder / "gpu-check"


def run(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    words = [str(word) for word in command]
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=900)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ((), "the check needs a GPU, and PyTorch finds none here"),
        (("-I", "-S"), "the check needs torch and Triton, and this Python has no torch"),
    ],
    ids=["no-gpu", "no-torch"],
)
def test_check_on_a_machine_that_lacks_something_says_so(folder, tmp_path, options, reason):
    path = tmp_path / "figures.json"
    ended = run(sys.executable, *options, folder / "check.py", "--json", path)
    assert (ended.returncode, ended.stderr) == (1, f"error: {reason}\n")
    assert not path.exists()


def test_unpacked_kernels_pass_their_tests_in_the_interpreter(folder):
    """The other packages of the archive are for another Python."""
    path = os.pathsep.join([str(folder / "src"), str(folder / "tests")])
    options = ("-q", "-p", "no:cacheprovider", "--import-mode=importlib", "--rootdir", folder)
    tests = [folder / "tests" / "kernels" / name for name in KERNEL_TESTS]
    ended = run(sys.executable, "-m", "pytest", *options, *tests, PYTHONPATH=path)
    assert ended.returncode == 0, ended.stdout
    assert " passed" in ended.stdout


def test_engines_import_nothing_that_the_archive_lacks_and_agree(folder, tmp_path):
    found = {}
    for name in (STOCK, *ENGINES_COMPARED):
        ended = run(
            *(sys.executable, "-c", ENGINES, folder / "site", tmp_path / "model", name),
            PYTHONPATH=str(folder / "src"),
        )
        assert ended.returncode == 0, ended.stderr[-3000:]
        found[name] = json.loads(ended.stdout.splitlines()[-1])
    assert found["vllm"]["tokens"] == found["stock"]["tokens"]
    for name in ("unified", "hybrid"):
        assert [len(tokens) for tokens in found[name]["tokens"]] == [6] * 64
    assert all(each["steps_per_s"] > 0 for each in found.values())


def test_archived_vllm_on_a_device_that_is_made_up_chooses_runner_v2(folder, tmp_path):
    """The modules of a GPU's engine can be imported with replacements of vLLM's compiled parts.
    Only the archive's vLLM and sources are used, as other packages are for another Python."""
    gpu = tmp_path / "site"
    gpu.mkdir()
    for path in (folder / "site").glob("vllm*"):
        (gpu / path.name).symlink_to(path)
    ended = run(
        *(sys.executable, "-c", GPU_ENGINE, tmp_path),
        PYTHONPATH=os.pathsep.join([str(gpu), str(folder / "src")]),
        VLLM_USE_V2_MODEL_RUNNER="1",
        CUDA_VISIBLE_DEVICES="",  # vLLM then takes Triton without a driver
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    chosen = json.loads(ended.stdout.splitlines()[-1])
    assert chosen == [True, True, "TRITON_ATTN", "FULL_DECODE_ONLY", 64]


def test_stand_ins_for_operators_equal_torch(folder):
    """The check runs in a separate process, as vLLM's build for CPUs has the same operators."""
    code = """
import torch
import operators
x = torch.randn(5, 8, dtype=torch.bfloat16)
out = torch.empty(5, 4, dtype=torch.bfloat16)
torch.ops._C.silu_and_mul(out, x)
torch.testing.assert_close(out, torch.nn.functional.silu(x[:, :4]) * x[:, 4:])
weight, residual = torch.randn(8, dtype=torch.bfloat16), torch.randn_like(x)
both = x + residual
wanted = torch.nn.functional.rms_norm(both.float(), (8,), weight.float(), 1e-5).bfloat16()
torch.ops._C.fused_add_rms_norm(x, residual, weight, 1e-5)
torch.testing.assert_close(residual, both)
torch.testing.assert_close(x, wanted, atol=0.05, rtol=0.02)
"""
    ended = run(sys.executable, "-c", code, PYTHONPATH=str(Path(archive.__file__).parent))
    assert ended.returncode == 0, ended.stderr
    packed = folder / "site" / "vllm" / "_C_stable_libtorch.py"
    assert packed.read_text() == Path(archive.__file__).with_name("operators.py").read_text()


def test_packages_of_the_archive_are_those_of_the_locks():
    text = locked(["numpy", "pytest"])
    assert text.startswith("numpy==") and "\npytest==" in text
    assert text.count("--hash=sha256:") > 2
    with pytest.raises(KeyError, match="no-such-package"):
        locked(["no-such-package"])
