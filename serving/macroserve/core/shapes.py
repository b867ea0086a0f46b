"""Model shapes and device rates, from which the cost of a batch follows."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Experts:
    """Mixture of experts in the feed-forward blocks."""

    num: int
    """Routed experts per layer."""
    per_token: int
    """Experts that the router chooses for a token."""
    size: int
    """Intermediate size of each."""
    shared_size: int = 0
    """Total intermediate size of the shared experts."""
    num_dense_layers: int = 0
    """Layers with an ordinary feed-forward block."""


@dataclass(frozen=True, slots=True)
class LatentKv:
    """The one cached vector of multi-head latent attention, from which the keys and values of all
    heads are projected (DeepSeek-V2, section 2.1)."""

    rank: int
    """Elements of the vector, without its position."""
    position_dim: int
    """Elements with the position (RoPE), shared by all heads."""
    content_dim: int
    """Other elements of a head's queries and keys."""
    value_dim: int
    """Elements of a head's values."""
    query_rank: int | None = None
    """Elements of the vector from which queries are projected, if any."""


@dataclass(frozen=True, slots=True)
class Window:
    """Sliding window of some layers, which attend to and cache the nearest tokens only."""

    num_tokens: int
    num_layers: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Shape of a decoder-only transformer, for the formulas of Ascendra's appendix A."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    dtype_bytes: int = 2
    """Bytes per weight and per activation."""
    tensor_parallel: int = 1
    """Devices that share every layer."""
    gated_mlp: bool = True
    """Whether a feed-forward block has three matrices (Llama) or two (OPT)."""
    rotary: bool = True
    """Whether positions rotate keys (Llama) or are added to the embedding (OPT)."""
    experts: Experts | None = None
    """If set, ``intermediate_size`` is that of the dense layers."""
    latent: LatentKv | None = None
    window: Window | None = None

    def __post_init__(self) -> None:
        if any(getattr(self, field.name) < 1 for field in fields(self) if field.type is int):
            raise ValueError(f"every size of a model is at least 1, got {self}")

    @property
    def attention_size(self) -> int:
        """Return the elements of a token's queries in one layer."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Return the cached elements of a token in one layer."""
        if self.latent:
            return self.latent.rank + self.latent.position_dim
        return 2 * self.num_kv_heads * self.head_dim

    @property
    def kv_bytes_per_token(self) -> int:
        """Return the KV-cache bytes of one token within the windows, over all layers and devices.
        Every device holds a copy of a latent vector."""
        copies = self.tensor_parallel if self.latent else 1
        return copies * self.num_layers * self.kv_size * self.dtype_bytes

    @property
    def pair_size(self) -> int:
        """Return the multiplications per layer of a prompt token with one token that it attends
        to."""
        if self.latent:
            return self.num_heads * (self.head_dim + self.latent.value_dim)
        return 2 * self.attention_size

    @property
    def decode_pair_size(self) -> int:
        """Return the same for a decoded token, which attends to latent vectors directly."""
        if self.latent:
            return self.num_heads * (2 * self.latent.rank + self.latent.position_dim)
        return self.pair_size

    @property
    def attention_parameters(self) -> int:
        """Return the parameters of one layer's attention."""
        if not (latent := self.latent):
            return self.hidden_size * (2 * self.attention_size + self.kv_size)
        if latent.query_rank:
            queries = latent.query_rank * (self.hidden_size + self.attention_size)
        else:
            queries = self.hidden_size * self.attention_size
        heads = self.num_heads * (latent.content_dim + latent.value_dim)
        output = self.num_heads * latent.value_dim * self.hidden_size
        return queries + self.hidden_size * self.kv_size + latent.rank * heads + output

    @property
    def active_parameters(self) -> int:
        """Return the parameters that a token passes in all layers, without embeddings."""
        num_dense, chosen = self.num_layers, 0
        if experts := self.experts:
            num_dense = experts.num_dense_layers
            active = self._feed_forward(experts.per_token * experts.size + experts.shared_size)
            router = self.hidden_size * experts.num
            chosen = (self.num_layers - num_dense) * (active + router)
        dense = num_dense * self._feed_forward(self.intermediate_size)
        return self.num_layers * self.attention_parameters + dense + chosen

    @property
    def expert_parameters(self) -> int:
        """Return the parameters of all routed experts."""
        if not (experts := self.experts):
            return 0
        num_layers = self.num_layers - experts.num_dense_layers
        return num_layers * self._feed_forward(experts.num * experts.size)

    @property
    def parameters(self) -> int:
        """Return the parameters of all layers, without embeddings."""
        return self.common_parameters + self.expert_parameters

    @property
    def common_parameters(self) -> int:
        """Return the parameters of all layers that every token passes."""
        if not (experts := self.experts):
            return self.active_parameters
        return self.active_parameters - self.expert_parameters * experts.per_token // experts.num

    @property
    def head_parameters(self) -> int:
        return self.hidden_size * self.vocab_size

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of all weights over all devices, with untied embeddings."""
        return (self.parameters + 2 * self.head_parameters) * self.dtype_bytes

    @property
    def active_size(self) -> int:
        """Return the intermediate elements per token in most layers."""
        experts = self.experts
        if not experts:
            return self.intermediate_size
        return experts.per_token * experts.size + experts.shared_size

    @property
    def layer_activations(self) -> int:
        """Return the elements per token read and written by one layer's matrix products (table
        3)."""
        qkv = self.hidden_size + self.attention_size + self.kv_size
        output = self.attention_size + self.hidden_size
        up = self.hidden_size + (2 if self.gated_mlp else 1) * self.active_size
        return qkv + output + up + self.active_size + self.hidden_size

    def _feed_forward(self, size: int) -> int:
        return (3 if self.gated_mlp else 2) * self.hidden_size * size


@dataclass(frozen=True, slots=True)
class DeviceShape:
    """Peak compute and memory bandwidth of one device (F_H and M_H)."""

    flops_per_s: float
    bytes_per_s: float

    def __post_init__(self) -> None:
        if not (self.flops_per_s > 0 and self.bytes_per_s > 0):
            raise ValueError(f"a device computes and reads at positive rates, got {self}")
