"""Executors: what runs a batch that a core policy has composed.

``vllm`` adapts vLLM (every private touch of it is in that package); ``emulated`` takes the latency
model's time and makes up tokens. Both speak vLLM's token-in, token-out protocol to the ingress.
"""
