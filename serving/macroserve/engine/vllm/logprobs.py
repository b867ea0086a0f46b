"""Logprobs, sent from an instance to an ingress as arrays."""

from http import HTTPStatus

import numpy as np
import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.outputs import LogprobsLists, LogprobsTensors

from macroserve.engine.tokens import Logprobs, RefusedError

LEAST_LOGPROB = -9999.0
"""What vLLM's API answers for minus infinity, which JSON does not have."""
MAX_PROMPT_LOGPROBS = 1 << 18
"""Limit on one prompt's logprobs, each of which takes the ingress two microseconds."""


def check_prompt_logprobs(params: SamplingParams, num_prompt: int, vocab_size: int) -> None:
    """Raise RefusedError if the request asks for too many logprobs."""
    if params.prompt_logprob_token_ids is not None:
        message = "prompt_logprob_token_ids are not available; prompt_logprobs are"
        raise RefusedError(HTTPStatus.BAD_REQUEST, message)
    if (asked := params.prompt_logprobs) is None:
        return
    count = num_prompt * (1 + (asked if asked >= 0 else vocab_size))
    if count > MAX_PROMPT_LOGPROBS:
        raise RefusedError(
            HTTPStatus.BAD_REQUEST,
            f"the logprobs of a prompt of {num_prompt} tokens would be {count}; at most "
            f"{MAX_PROMPT_LOGPROBS} are allowed: request fewer per token, or send a shorter prompt",
        )


def packed(logprobs: LogprobsLists | LogprobsTensors) -> Logprobs:
    token_ids, values, ranks, *_ = logprobs
    return Logprobs(_bytes(token_ids, "<i4"), _bytes(values, "<f4"), _bytes(ranks, "<i4"))


def unpacked_prompt(logprobs: Logprobs) -> LogprobsTensors | None:
    """Return the arrays; None for a prompt of one token, which has no logprob."""
    if not logprobs.ranks:
        return None
    token_ids, values, ranks = _arrays(logprobs)
    return LogprobsTensors(
        torch.from_numpy(token_ids), torch.from_numpy(values), torch.from_numpy(ranks)
    )


def unpacked(logprobs: Logprobs) -> LogprobsLists | None:
    """Return the arrays, in which a logprob that is no number is the least that vLLM answers; None
    without a token."""
    if not logprobs.ranks:
        return None
    token_ids, values, ranks = _arrays(logprobs)
    return LogprobsLists(token_ids, np.nan_to_num(values, nan=LEAST_LOGPROB), ranks)


def _bytes(values: np.ndarray | torch.Tensor, dtype: str) -> bytes:
    return np.asarray(values).astype(dtype).tobytes()


def _arrays(logprobs: Logprobs) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    ranks = _array(logprobs.ranks, "<i4")
    shape = (len(ranks), -1)
    token_ids, values = _array(logprobs.token_ids, "<i4"), _array(logprobs.logprobs, "<f4")
    return token_ids.reshape(shape), values.reshape(shape), ranks


def _array(data: bytes, dtype: str) -> np.ndarray:
    return np.frombuffer(data, dtype).astype(dtype[1:])
