"""Keys of prefixes are equal only for equal prefixes."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from support.token_requests import token_request

from macroserve.api.messages import PREFIX_KEY_BYTES
from macroserve.core.routing.prefixes import BOUNDARIES
from macroserve.engine.tokens import TokenRequest
from macroserve.serving.ingress.prefix_keys import prefix_keys

PROMPT = tuple(range(1000, 1700))


def request(token_ids: Iterable[int] = PROMPT, **changes: Any) -> TokenRequest:
    return token_request(prompt=token_ids, **changes)


def shared(one: bytes, other: bytes) -> int:
    """Return the tokens of the longest beginning with equal keys."""
    num_equal = 0
    for start in range(0, min(len(one), len(other)), PREFIX_KEY_BYTES):
        if one[: start + PREFIX_KEY_BYTES] != other[: start + PREFIX_KEY_BYTES]:
            break
        num_equal += 1
    return BOUNDARIES[num_equal - 1] if num_equal else 0


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (PROMPT, 640),
        ((*PROMPT, 1, 2, 3), 640),
        (PROMPT[:641], 640),
        (PROMPT[:640], 512),
        ((*PROMPT[:600], 7, *PROMPT[601:]), 512),
        ((*PROMPT[:64], 7, *PROMPT[65:]), 64),
        ((7, *PROMPT[1:]), 0),
        (PROMPT[1:], 0),
        (PROMPT[:64], 0),
    ],
)
async def test_prompts_share_the_keys_of_their_equal_beginning(
    other: tuple[int, ...], expected: int
) -> None:
    assert shared(await prefix_keys(request()), await prefix_keys(request(other))) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"adapter": "a"},
        {"cache_salt": "a"},
        {"features": b"an image"},
    ],
    ids=["adapter", "salt", "images"],
)
async def test_equal_prompts_of_another_adapter_salt_or_image_share_nothing(
    changes: dict[str, Any],
) -> None:
    keys = await prefix_keys(request(**changes))
    assert shared(await prefix_keys(request()), keys) == 0
    assert keys == await prefix_keys(request(**changes))


@pytest.mark.parametrize("sampling", [{"prompt_logprobs": 0}, {"skip_reading_prefix_cache": True}])
async def test_prompt_that_the_engine_computes_whole_has_no_keys(sampling: dict[str, Any]) -> None:
    assert await prefix_keys(request(sampling=sampling)) == b""


async def test_keys_of_the_longest_prompt_take_half_a_kilobyte() -> None:
    keys = await prefix_keys(request(range(1 << 18)))
    assert len(keys) == PREFIX_KEY_BYTES * len(BOUNDARIES)
    assert len(msgspec.json.encode(keys)) <= 514
