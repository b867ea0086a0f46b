"""Logprobs of a prompt, sent from an instance to an ingress as arrays."""

from http import HTTPStatus

import numpy as np
import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.outputs import LogprobsTensors

from macroserve.engine.tokens import PromptLogprobs, RefusedError

MAX_LOGPROBS = 1 << 18
"""Limit on one prompt's logprobs, each of which takes the ingress two microseconds."""


def check_prompt_logprobs(params: SamplingParams, num_prompt: int, vocab_size: int) -> None:
    """Raise RefusedError if the request asks for too many logprobs."""
    if params.prompt_logprob_token_ids is not None:
        message = "prompt_logprob_token_ids are not available; prompt_logprobs are"
        raise RefusedError(HTTPStatus.BAD_REQUEST, message)
    if (asked := params.prompt_logprobs) is None:
        return
    count = num_prompt * (1 + (asked if asked >= 0 else vocab_size))
    if count > MAX_LOGPROBS:
        raise RefusedError(
            HTTPStatus.BAD_REQUEST,
            f"the logprobs of a prompt of {num_prompt} tokens would be {count}; at most "
            f"{MAX_LOGPROBS} are allowed: request fewer per token, or send a shorter prompt",
        )


def packed(tensors: LogprobsTensors) -> PromptLogprobs:
    token_ids, logprobs, ranks, *_ = tensors
    return PromptLogprobs(_bytes(token_ids, "<i4"), _bytes(logprobs, "<f4"), _bytes(ranks, "<i4"))


def unpacked(logprobs: PromptLogprobs) -> LogprobsTensors | None:
    """Return the arrays; None for a prompt of one token, which has no logprob."""
    if not logprobs.ranks:
        return None
    ranks = _tensor(logprobs.ranks, "<i4")
    shape = (len(ranks), -1)
    return LogprobsTensors(
        _tensor(logprobs.token_ids, "<i4").view(shape),
        _tensor(logprobs.logprobs, "<f4").view(shape),
        ranks,
    )


def _bytes(tensor: torch.Tensor, dtype: str) -> bytes:
    return tensor.numpy().astype(dtype).tobytes()


def _tensor(data: bytes, dtype: str) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, dtype).astype(dtype[1:]))
