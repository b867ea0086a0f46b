"""True time of a batch: the sum of its kernels, its collectives and host time."""

from collections.abc import Iterable

from macroserve.core.shapes import Experts, LatentKv, ModelShape
from macroserve.sim.hardware.devices import Device
from macroserve.sim.hardware.host import VLLM_HOST, Host
from macroserve.sim.hardware.kernels import ELEMENT_BYTES, row_blocks
from macroserve.sim.hardware.links import Link

NORM_MOVES = 8
"""Reads and writes of a token's hidden state by a layer's norms and residuals."""

SCORE_BYTES = 4
"""Bytes per element of the product of queries and hidden states (float32)."""

COLLECTIVES = 2
"""All-reduces per layer: after attention and after the feed-forward block."""

TRIAL_TOKENS = 8192
"""Number of hidden states for which rho is computed."""

Products = tuple[tuple[int, int], ...]
"""Columns and depth of matrix products."""


class StepTime:
    """Step times of an instance whose devices share every layer over ``link``."""

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
        self._decode_head = (self._kv_heads, model.head_dim)
        """Number and size of the cached heads that a decode reads."""
        self._gates = gates = 2 if model.gated_mlp else 1
        attention, feed_forward = model.attention_size // ranks, model.intermediate_size // ranks
        qkv = (self._heads + 2 * self._kv_heads) * model.head_dim
        hidden = model.hidden_size
        self._attention_products: Products = ((qkv, hidden), (hidden, attention))
        if latent := model.latent:
            qkv = self._heads * model.head_dim
            self._attention_products = _latent_products(latent, model, self._heads)
            # Keys and values are one vector, which is read once: half of it for each.
            self._decode_head = (1, model.kv_size // 2)
        self._dense = ((gates * feed_forward, hidden), (hidden, feed_forward))
        elements = NORM_MOVES * hidden + (gates + 1) * (model.active_size // ranks) + 2 * qkv
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
        """Return the seconds of a batch, 0 for an empty one; arguments as for
        ``core.latency.LatencyModel.work``."""
        num_tokens, num_samples, attention_s = num_decodes, num_decodes, 0.0
        windowed_s, window = 0.0, self._model.window
        for tokens, before in prefills:
            num_tokens += tokens
            num_samples += 1
            attention_s += self._prompt_s(tokens, before)
            if window:
                # One window after another, each attending to the previous one.
                near = min(tokens, window.num_tokens)
                windowed_s += tokens / near * self._prompt_s(near, min(before, window.num_tokens))
        if not num_tokens:
            return 0.0
        if num_decodes:
            context = decode_context / num_decodes
            attention_s += self._decode_s(num_decodes, context)
            if window:
                windowed_s += self._decode_s(num_decodes, min(context, window.num_tokens))
        if hidden_context:
            attention_s += self._rebuild_s(hidden_context)
        layers_s = self._model.num_layers * (self._layer_s(num_tokens) + attention_s)
        if window:
            layers_s += window.num_layers * (windowed_s - attention_s)
        host_s = self._host.step_s + self._host.sequence_s * num_samples
        device_s = layers_s + self._head_s(num_samples)
        return max(device_s, host_s) if self._host.ahead else device_s + host_s

    @property
    def rebuild_s_per_token(self) -> float:
        """Return the seconds that a token cached as hidden state adds to a decode batch:
        Apt-Serve's rho (equation 6)."""
        return self._model.num_layers * self._rebuild_s(TRIAL_TOKENS) / TRIAL_TOKENS

    def _prompt_s(self, tokens: int, before: int) -> float:
        heads, kv_heads, head_dim = self._heads, self._kv_heads, self._model.head_dim
        kernel, roof = self._device.kernels.prompt_attention, self._device.roof
        return kernel.seconds(tokens, before, heads, kv_heads, head_dim, roof)

    def _decode_s(self, num_decodes: int, context: float) -> float:
        (kv_heads, head_dim), blocks = self._decode_head, row_blocks(context)
        kernel, roof = self._device.kernels.decode_attention, self._device.roof
        return kernel.seconds(num_decodes, blocks, self._heads, kv_heads, head_dim, roof)

    def _products_s(self, num_tokens: float, products: Products) -> float:
        product, roof = self._device.kernels.product, self._device.roof
        return sum(product.seconds(num_tokens, n, k, roof) for n, k in products)

    def _experts_s(self, num_tokens: int, experts: Experts) -> float:
        """Return the seconds of a feed-forward block with experts: one product over the columns of
        all experts used, each with the mean number of tokens."""
        hidden, ranks = self._model.hidden_size, self._model.tensor_parallel
        used = experts.num * (1 - (1 - experts.per_token / experts.num) ** num_tokens)
        took_s = self._products_s(num_tokens, ((experts.num, hidden),))
        for rows, size in (
            (num_tokens * experts.per_token / used, used * experts.size),
            (num_tokens, experts.shared_size),
        ):
            if columns := round(size / ranks):
                gated = ((self._gates * columns, hidden), (hidden, columns))
                took_s += self._products_s(rows, gated)
        return took_s

    def _layer_s(self, num_tokens: int) -> float:
        """Return the seconds of a layer without attention."""
        found = self._by_tokens.get(num_tokens)
        if found is None:
            products_s = self._products_s(num_tokens, self._attention_products + self._dense)
            if experts := self._model.experts:
                share = 1 - experts.num_dense_layers / self._model.num_layers
                instead_s = self._experts_s(num_tokens, experts)
                products_s += share * (instead_s - self._products_s(num_tokens, self._dense))
            hidden_bytes = ELEMENT_BYTES * num_tokens * self._model.hidden_size
            ranks = self._model.tensor_parallel
            reduce_s = COLLECTIVES * self._link.all_reduce_s(hidden_bytes, ranks)
            found = products_s + reduce_s + num_tokens * self._token_moves_s
            self._by_tokens[num_tokens] = found
        return found

    def _rebuild_s(self, num_tokens: int) -> float:
        """Return the extra seconds per layer to attend to tokens cached as hidden states, of which
        each rank has a part.

        With rotary embedding the ranks gather them and compute keys and values (Apt-Serve, section
        3.1). Without, the keys' projection is folded into the queries, so that scores and outputs
        are two products with the hidden states (``kernels``).
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


def _latent_products(latent: LatentKv, model: ModelShape, heads: int) -> Products:
    """Return the products for queries, the cached vector, keys and values from it, and the
    output."""
    queries, hidden = heads * model.head_dim, model.hidden_size
    rank = latent.query_rank
    to_queries = ((rank, hidden), (queries, rank)) if rank else ((queries, hidden),)
    return (
        *to_queries,
        (model.kv_size, hidden),
        (heads * (latent.content_dim + latent.value_dim), latent.rank),
        (hidden, heads * latent.value_dim),
    )
