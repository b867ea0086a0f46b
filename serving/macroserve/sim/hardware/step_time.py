"""True time of a batch: its kernels, its collectives and the host, one after another."""

from collections.abc import Iterable

from macroserve.core.shapes import ModelShape
from macroserve.sim.hardware.devices import Device
from macroserve.sim.hardware.host import VLLM_HOST, Host
from macroserve.sim.hardware.kernels import ELEMENT_BYTES, row_blocks
from macroserve.sim.hardware.links import Link

NORM_MOVES = 8
"""Times that a layer's norms and residuals read or write a token's hidden state."""

SCORE_BYTES = 4
"""Bytes of an element of the product of a query and a hidden state, in float32."""

COLLECTIVES = 2
"""All-reduces of a layer: after attention and after the feed-forward block."""

TRIAL_TOKENS = 8192
"""Hidden states with which rho is measured."""


class StepTime:
    """The step time of an instance whose ``tensor_parallel`` devices share every layer by
    ``link``."""

    def __init__(
        self, model: ModelShape, device: Device, link: Link, host: Host = VLLM_HOST
    ) -> None:
        self._model = model
        self._device = device
        self._link = link
        self._host = host
        ranks = model.tensor_parallel
        self._heads = max(1, model.num_heads // ranks)
        self._kv_heads = max(1, model.num_kv_heads // ranks)
        gates = 2 if model.gated_mlp else 1
        attention, feed_forward = model.attention_size // ranks, model.intermediate_size // ranks
        qkv = (self._heads + 2 * self._kv_heads) * model.head_dim
        hidden = model.hidden_size
        self._products = (
            (qkv, hidden),
            (hidden, attention),
            (gates * feed_forward, hidden),
            (hidden, feed_forward),
        )
        """Columns and depth of each matrix product of a layer."""
        elements = NORM_MOVES * hidden + (gates + 1) * feed_forward + 2 * qkv
        self._token_moves_s = ELEMENT_BYTES * elements / device.roof.bytes_per_s
        self._by_tokens: dict[int, float] = {}
        self._by_samples: dict[int, float] = {}

    def seconds(
        self,
        prefills: Iterable[tuple[int, int]],
        num_decodes: int,
        decode_context: int,
        hidden_context: int = 0,
    ) -> float:
        """Return the seconds of a batch, 0 for an empty one; arguments as those of
        ``core.latency.LatencyModel.work``."""
        roof, kernels, head_dim = self._device.roof, self._device.kernels, self._model.head_dim
        num_tokens, num_samples, attention_s = num_decodes, num_decodes, 0.0
        for tokens, before in prefills:
            num_tokens += tokens
            num_samples += 1
            attention_s += kernels.prompt_attention.seconds(
                tokens, before, self._heads, self._kv_heads, head_dim, roof
            )
        if not num_tokens:
            return 0.0
        if num_decodes:
            blocks = row_blocks(decode_context / num_decodes)
            attention_s += kernels.decode_attention.seconds(
                num_decodes, blocks, self._heads, self._kv_heads, head_dim, roof
            )
        if hidden_context:
            attention_s += self._rebuild_s(hidden_context)
        layers_s = self._model.num_layers * (self._layer_s(num_tokens) + attention_s)
        host_s = self._host.step_s + self._host.sequence_s * num_samples
        return layers_s + self._head_s(num_samples) + host_s

    @property
    def rebuild_s_per_token(self) -> float:
        """Return the seconds that a token with a kept hidden state adds to a decode batch:
        Apt-Serve's rho (equation 6)."""
        return self._model.num_layers * self._rebuild_s(TRIAL_TOKENS) / TRIAL_TOKENS

    def _layer_s(self, num_tokens: int) -> float:
        """Return the seconds of a layer without attention."""
        found = self._by_tokens.get(num_tokens)
        if found is None:
            product, roof = self._device.kernels.product, self._device.roof
            products_s = sum(product.seconds(num_tokens, n, k, roof) for n, k in self._products)
            hidden_bytes = ELEMENT_BYTES * num_tokens * self._model.hidden_size
            ranks = self._model.tensor_parallel
            reduce_s = COLLECTIVES * self._link.all_reduce_s(hidden_bytes, ranks)
            found = products_s + reduce_s + num_tokens * self._token_moves_s
            self._by_tokens[num_tokens] = found
        return found

    def _rebuild_s(self, num_tokens: int) -> float:
        """Return the seconds per layer to attend to tokens with kept hidden states, beyond those to
        read their keys and values. Each rank has its part of a hidden state.

        With rotary embedding the ranks gather the whole ones and make keys and values of them
        (Apt-Serve, section 3.1). Without, queries take the keys' projection in, so that each head
        is one product with the hidden states, and the mix of them another (``kernels``).
        """
        model, product, roof = self._model, self._device.kernels.product, self._device.roof
        ranks, hidden = model.tensor_parallel, model.hidden_size
        if model.rotary:
            gather_s = self._link.all_gather_s(ELEMENT_BYTES * num_tokens * hidden, ranks)
            columns = 2 * self._kv_heads * model.head_dim
            return gather_s + product.seconds(num_tokens, columns, hidden, roof)
        scores_s = self._link.all_reduce_s(SCORE_BYTES * num_tokens * model.num_heads, ranks)
        return scores_s + 2 * product.seconds(num_tokens, model.num_heads, hidden // ranks, roof)

    def _head_s(self, num_samples: int) -> float:
        found = self._by_samples.get(num_samples)
        if found is None:
            columns = self._model.vocab_size // self._model.tensor_parallel
            found = self._device.kernels.product.seconds(
                num_samples, columns, self._model.hidden_size, self._device.roof
            )
            self._by_samples[num_samples] = found
        return found
