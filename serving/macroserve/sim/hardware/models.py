"""The models that the papers serve, by their published configurations."""

from macroserve.core.latency import ModelShape

OPT_VOCABULARY, LLAMA_VOCABULARY = 50272, 32000

MODELS: dict[str, ModelShape] = {
    "OPT-13B": ModelShape(40, 5120, 40, 40, 128, 20480, OPT_VOCABULARY, gated_mlp=False),
    "OPT-30B": ModelShape(48, 7168, 56, 56, 128, 28672, OPT_VOCABULARY, gated_mlp=False),
    "OPT-66B": ModelShape(64, 9216, 72, 72, 128, 36864, OPT_VOCABULARY, gated_mlp=False),
    "OPT-175B": ModelShape(96, 12288, 96, 96, 128, 49152, OPT_VOCABULARY, gated_mlp=False),
    # Llama-30B and Llama-33B are two names of one model.
    "Llama-30B": ModelShape(60, 6656, 52, 52, 128, 17920, LLAMA_VOCABULARY),
    "Llama-33B": ModelShape(60, 6656, 52, 52, 128, 17920, LLAMA_VOCABULARY),
    "CodeLlama-34B": ModelShape(48, 8192, 64, 8, 128, 22016, LLAMA_VOCABULARY),
    "Qwen2-72B": ModelShape(80, 8192, 64, 8, 128, 29568, 152064),
    "Mistral-7B": ModelShape(32, 4096, 32, 8, 128, 14336, LLAMA_VOCABULARY),
    "Llama3.1-8B": ModelShape(32, 4096, 32, 8, 128, 14336, 128256),
    # The first Qwen: its feed-forward size counts both halves of the gate.
    "Qwen-14B": ModelShape(40, 5120, 40, 40, 128, 13696, 152064),
}
"""Shapes of one device; ``dataclasses.replace`` says how many share it."""
