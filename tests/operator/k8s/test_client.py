"""What a refusal of the API server means for what comes next."""

import pytest

from macroserve.operator.k8s.client import ApiError


@pytest.mark.parametrize(
    ("status", "is_passing"),
    [
        (None, True),
        (409, True),
        (429, True),
        (500, False),
        (502, True),
        (503, True),
        (504, True),
        (400, False),
        (403, False),
        (404, False),
        (422, False),
    ],
)
def test_what_may_pass_is_tried_again_and_the_rest_is_told(
    status: int | None, is_passing: bool
) -> None:
    assert ApiError(status, "").is_passing is is_passing


def test_conflicts_and_absences() -> None:
    assert ApiError(409, "").is_conflict and not ApiError(404, "").is_conflict
    assert ApiError(404, "").is_absence and not ApiError(409, "").is_absence
