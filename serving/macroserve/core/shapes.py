"""What a model is, and what a device can do at best, as a batch's cost follows from them."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A dense decoder-only transformer, as the formulas of Ascendra's appendix A see it.

    dtype_bytes: bytes per weight and per activation. tensor_parallel: devices that share every
    layer. gated_mlp: three matrices (Llama) or two (OPT) in each feed-forward block. rotary: a
    token's position turns its keys (Llama); else it is added to the embedding (OPT).
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    dtype_bytes: int = 2
    tensor_parallel: int = 1
    gated_mlp: bool = True
    rotary: bool = True

    def __post_init__(self) -> None:
        if any(getattr(self, field.name) < 1 for field in fields(self) if field.type is int):
            raise ValueError(f"every size of a model is at least 1, got {self}")

    @property
    def attention_size(self) -> int:
        """Elements of a token's queries in one layer."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Elements of a token's keys and values in one layer."""
        return 2 * self.num_kv_heads * self.head_dim

    @property
    def kv_bytes_per_token(self) -> int:
        """KV cache of one token, all layers and devices together."""
        return self.num_layers * self.kv_size * self.dtype_bytes

    @property
    def layer_parameters(self) -> int:
        attention = self.hidden_size * (2 * self.attention_size + self.kv_size)
        return attention + (3 if self.gated_mlp else 2) * self.hidden_size * self.intermediate_size

    @property
    def head_parameters(self) -> int:
        return self.hidden_size * self.vocab_size

    @property
    def weight_bytes(self) -> int:
        """All weights with separate input and output embeddings, all devices together."""
        parameters = self.num_layers * self.layer_parameters + 2 * self.head_parameters
        return parameters * self.dtype_bytes

    @property
    def layer_activations(self) -> int:
        """Elements read and written by the matrix products of one layer, per token (table 3)."""
        qkv = self.hidden_size + self.attention_size + self.kv_size
        output = self.attention_size + self.hidden_size
        up = self.hidden_size + (2 if self.gated_mlp else 1) * self.intermediate_size
        return qkv + output + up + self.intermediate_size + self.hidden_size


@dataclass(frozen=True, slots=True)
class DeviceShape:
    """Peak compute and memory bandwidth of one device (F_H and M_H)."""

    flops_per_s: float
    bytes_per_s: float

    def __post_init__(self) -> None:
        if not (self.flops_per_s > 0 and self.bytes_per_s > 0):
            raise ValueError(f"a device computes and reads at positive rates, got {self}")
