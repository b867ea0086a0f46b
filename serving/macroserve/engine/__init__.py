"""Executors run the batches that a core policy has composed.

``vllm`` adapts vLLM (every use of its private parts is in that package); ``emulated`` waits for the
time that the latency model gives and generates artificial tokens. Both speak vLLM's token-in,
token-out protocol to the ingress.
"""
