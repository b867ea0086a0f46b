"""Serialization of images from an ingress to an instance, as between vLLM's frontend and engine.

An image is a hash, its place in the prompt, and the tensors from the model's processor, in vLLM's
msgpack, which unpickles nothing.
"""

from collections.abc import Sequence

from vllm import envs
from vllm.multimodal.inputs import MultiModalFeatureSpec
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

MAX_FEATURES_BYTES = 48 << 20
"""Limit on one request's images, so that they fit in a call (``token_frames``)."""
MAX_HELD_BYTES = 512 << 20
"""Limit on the images of all requests of an ingress, which it keeps for further attempts."""

_INLINE = 1 << 62
"""Larger than any tensor, so that all of them are in one buffer."""


def encode_features(features: Sequence[MultiModalFeatureSpec]) -> bytes:
    (data,) = MsgpackEncoder(_INLINE).encode(list(features))
    assert isinstance(data, bytes)
    return data


def decode_features(data: bytes) -> list[MultiModalFeatureSpec]:
    """Undo ``encode_features``. Raises ValueError for other data."""
    if envs.VLLM_ALLOW_INSECURE_SERIALIZATION:
        raise ValueError("images are not accepted while VLLM_ALLOW_INSECURE_SERIALIZATION is set")
    try:
        return MsgpackDecoder(list[MultiModalFeatureSpec]).decode(data)
    except Exception as error:  # the decoder may raise anything
        raise ValueError(f"the images cannot be decoded: {type(error).__name__}") from error


def check_features(features: Sequence[MultiModalFeatureSpec], num_prompt: int) -> None:
    """Raise ValueError for images that do not fit a prompt of ``num_prompt`` tokens."""
    for feature in features:
        place = feature.mm_position
        if feature.data is None or feature.mm_hash is None:
            raise ValueError("an image has no data")
        if not 0 <= place.offset <= place.offset + place.length <= num_prompt:
            raise ValueError("an image is outside of the prompt")
