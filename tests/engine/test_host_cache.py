"""The host cache reports the blocks that can be loaded, and learns the duration of a load."""

from typing import Any

import pytest

from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from macroserve.engine.vllm.host_cache import ASSUMED_BYTES_PER_S, HostCache  # noqa: E402


class Connector:
    """A connector that has ``num_tokens`` of each prompt, or does not know yet."""

    def __init__(self, num_tokens: int | None) -> None:
        self._num_tokens = num_tokens

    def get_num_new_matched_tokens(self, request: Any, num_local: int) -> tuple[int | None, bool]:
        if self._num_tokens is None:
            return None, False
        return max(0, self._num_tokens - num_local), True


def host_cache(num_tokens: int | None = 0) -> Any:
    connector: Any = Connector(num_tokens)
    return HostCache(connector, token_bytes=1e6, block_size=16)


@pytest.mark.parametrize(
    ("num_tokens", "num_local", "beyond"),
    [(64, 0, 64), (64, 32, 32), (64, 64, 0), (64, 40, 24), (48, 47, 1), (32, 40, 0), (None, 32, 0)],
)
def test_tokens_beyond_the_pool_are_those_that_only_the_host_has(
    num_tokens: int | None, num_local: int, beyond: int
) -> None:
    assert host_cache(num_tokens).num_beyond(None, num_local) == beyond


def test_load_takes_the_time_of_the_last_ones() -> None:
    cache = host_cache()
    assert cache.load_s(100) == pytest.approx(100 * 1e6 / ASSUMED_BYTES_PER_S)
    for number in range(50):
        cache.begin(f"{number}", 1000, now=float(number))
        cache.end([f"{number}", "another"], now=number + 0.5)
    assert cache.load_s(100) == pytest.approx(0.05, rel=0.01)


def test_load_of_a_request_that_left_teaches_nothing() -> None:
    cache = host_cache()
    before_s = cache.load_s(100)
    cache.begin("r", 1000, now=0.0)
    cache.forget("r")
    cache.end(["r"], now=60.0)
    assert cache.load_s(100) == before_s
