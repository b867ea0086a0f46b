"""Dynamo's vLLM worker on Macroserve's CPU build of vLLM.

    python dynamo_worker.py SITE ARGUMENTS OF dynamo.vllm...

SITE is the folder with Dynamo's packages, which come after this environment's, so that vLLM and its
dependencies are the same as in other deployments.

Dynamo 1.6.1 requires vLLM 0.31 with CUDA. Two names that it imports for images and embeddings are
missing in vLLM 0.32 without torchvision; they are faked here, and a text model uses neither.
"""

import runpy
import sys
from types import ModuleType

_IMAGES = "transformers.models.qwen2_vl.image_processing_qwen2_vl"


def _unavailable(*_: object, **__: object) -> None:
    raise NotImplementedError("Dynamo's worker serves text alone here")


def _stand_in() -> None:
    import vllm.v1.engine.utils as engine_utils

    images = ModuleType(_IMAGES)
    images.smart_resize = _unavailable  # type: ignore[attr-defined]
    sys.modules[_IMAGES] = images
    if not hasattr(engine_utils, "get_engine_zmq_addresses"):
        engine_utils.get_engine_zmq_addresses = _unavailable  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.path.append(sys.argv.pop(1))
    _stand_in()
    runpy.run_module("dynamo.vllm", run_name="__main__", alter_sys=True)
