"""Executors of the batches that a core policy composes.

``vllm`` adapts vLLM, and only it uses vLLM's private parts; ``emulated`` waits for the predicted
time of a batch and generates artificial tokens.
"""
