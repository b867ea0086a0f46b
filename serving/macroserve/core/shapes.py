"""The cost of a batch follows from the shape of the model and the peak rates of the device."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The shape describes a dense decoder-only transformer for the formulas of Ascendra's appendix
    A."""

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
    """Whether a token's position rotates its keys (Llama) or is added to the embedding (OPT)."""

    def __post_init__(self) -> None:
        if any(getattr(self, field.name) < 1 for field in fields(self) if field.type is int):
            raise ValueError(f"every size of a model is at least 1, got {self}")

    @property
    def attention_size(self) -> int:
        """Return the elements of a token's queries in one layer."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Return the elements of a token's keys and values in one layer."""
        return 2 * self.num_kv_heads * self.head_dim

    @property
    def kv_bytes_per_token(self) -> int:
        """Return the KV-cache bytes of one token, all layers and devices together."""
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
        """Return the bytes of all weights, with separate input and output embeddings, all devices
        together."""
        parameters = self.num_layers * self.layer_parameters + 2 * self.head_parameters
        return parameters * self.dtype_bytes

    @property
    def layer_activations(self) -> int:
        """Return the elements per token read and written by the matrix products of one layer (table
        3)."""
        qkv = self.hidden_size + self.attention_size + self.kv_size
        output = self.attention_size + self.hidden_size
        up = self.hidden_size + (2 if self.gated_mlp else 1) * self.intermediate_size
        return qkv + output + up + self.intermediate_size + self.hidden_size


@dataclass(frozen=True, slots=True)
class DeviceShape:
    """The shape gives peak compute and memory bandwidth of one device (F_H and M_H)."""

    flops_per_s: float
    """Peak compute, floating-point operations per second."""
    bytes_per_s: float
    """Peak memory bandwidth, bytes per second."""

    def __post_init__(self) -> None:
        if not (self.flops_per_s > 0 and self.bytes_per_s > 0):
            raise ValueError(f"a device computes and reads at positive rates, got {self}")
