"""Shapes of published models."""

from macroserve.core.shapes import ModelShape

LLAMA_30B = ModelShape(60, 6656, 52, 52, 128, 17920, 32000)
CODELLAMA_34B = ModelShape(48, 8192, 64, 8, 128, 22016, 32000, tensor_parallel=4)
OPT_13B = ModelShape(40, 5120, 40, 40, 128, 20480, 50272, gated_mlp=False)
