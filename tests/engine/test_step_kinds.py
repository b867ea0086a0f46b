"""An iteration is the first of its kind until one of its size, with its sampling, has ended."""

import pytest

from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from vllm.sampling_params import SamplingParams  # noqa: E402

from macroserve.engine.vllm.step_kinds import StepKinds  # noqa: E402

PLAIN = SamplingParams()
PENALIZED = SamplingParams(presence_penalty=0.5)


def kinds(**params: SamplingParams) -> StepKinds:
    """Return a record of the requests' parameters after plain iterations of 4 to 7 tokens."""
    kinds = StepKinds()
    kinds.begin(4, ())
    kinds.end()
    for request_id, given in params.items():
        kinds.add(request_id, given)
    return kinds


@pytest.mark.parametrize(
    ("num_tokens", "request_ids", "is_first"),
    [(4, ["a"], False), (7, ["a"], False), (8, ["a"], True), (3, ["a"], True), (4, ["b"], True)],
)
def test_iteration_is_the_first_of_its_size_and_sampling(
    num_tokens: int, request_ids: list[str], is_first: bool
) -> None:
    assert kinds(a=PLAIN, b=PENALIZED).begin(num_tokens, request_ids) == is_first


def test_sampling_is_known_once_an_iteration_with_it_has_ended() -> None:
    record = kinds(a=PENALIZED, b=PENALIZED)
    assert [record.begin(4, ["a"]), record.begin(4, ["b"])] == [True, True]
    record.end()
    assert not record.begin(4, ["b"])
    record.add("c", PENALIZED)
    assert not record.begin(4, ["c"])


def test_iterations_end_in_the_order_in_which_they_began() -> None:
    record = kinds()
    for num_tokens in (8, 16):
        record.begin(num_tokens, ())
    record.end()
    assert not record.begin(8, ())
    assert record.begin(16, ())


def test_request_that_left_makes_no_iteration_the_first_of_its_kind() -> None:
    record = kinds(a=PENALIZED)
    record.remove("a")
    assert not record.begin(4, ["a"])
