"""An invented profile, with the settings of its engine."""

from macroserve.bench.profile import Profile
from macroserve.core.request import Slo
from macroserve.core.shapes import DeviceShape, ModelShape
from macroserve.engine.engine import EngineShape
from macroserve.engine.settings import EngineSettings
from macroserve.sim.instance import FixedLatencyModel

MODEL = ModelShape(4, 256, 4, 4, 64, 1024, 2000)
LATENCY = FixedLatencyModel(MODEL, DeviceShape(1e12, 1e11), (0.0, 1.0, 0.0, 0.0, 0.01))
PROFILE = Profile(
    EngineShape(500, 32, 16, 512, "off: not here", "off: not here"),
    LATENCY,
    decodes_beyond_s={1: 0.002, 4: 0.005, 16: 0.002},
    prefills_beyond_s={32: 0.008, 128: 0.002},
    churn=1.0,
    jitter=(0.9, 1.0, 1.1),
    spread=1.0,
)
SETTINGS = EngineSettings(
    model="tiny",
    served_name="tiny",
    max_model_len=1024,
    strategy="vllm",
    slo=Slo(2.0, 0.1),
    max_num_seqs=16,
    max_batch_tokens=512,
)
