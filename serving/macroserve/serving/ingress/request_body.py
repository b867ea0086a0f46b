"""The body of a request to an instance: vLLM's own, with Macroserve's tag."""

from typing import Any

from macroserve.api import messages
from macroserve.engine.tag import RequestTag
from macroserve.engine.tokens import TokenRequest


def request_body(
    request: TokenRequest, query: messages.RouteQuery, emitted: list[int]
) -> dict[str, Any]:
    """Return vLLM's ``GenerateRequest``, with the emitted tokens appended to the prompt."""
    tag = RequestTag(
        route_id=query.route_id,
        age_s=query.age_s,
        slo=query.slo,
        slo_class=query.slo_class,
        num_streamed_tokens=query.num_streamed_tokens,
        probe=query.probe,
    )
    sampling = {
        **request.sampling,
        "max_tokens": query.max_new_tokens,
        "extra_args": {**(request.sampling.get("extra_args") or {}), **tag.to_args()},
    }
    if "min_tokens" in sampling:
        sampling["min_tokens"] = max(0, sampling["min_tokens"] - len(emitted))
    if emitted:
        # The first tokens brought the logprobs; without them the prefix cache can be used.
        sampling |= dict.fromkeys(("prompt_logprobs", "skip_reading_prefix_cache"))
    return {
        **request.options,
        "model": request.adapter,
        "request_id": query.route_id,
        "token_ids": [*request.token_ids, *emitted],
        "sampling_params": sampling,
        "stream": True,
    }
