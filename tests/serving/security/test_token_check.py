import pytest

from macroserve.api.auth import TokenCheck, bearer, new_secret


@pytest.mark.parametrize(
    ("value", "allowed"),
    [
        ("Bearer one", True),
        ("bearer two", True),
        ("Bearer one ", False),
        ("Bearer on", False),
        ("Bearer ", False),
        ("Bearer \udcff", False),  # a byte that is no UTF-8
        ("Basic one", False),
        ("one", False),
        ("", False),
    ],
)
def test_token_check_allows_only_known_bearer_tokens(value: str, allowed: bool) -> None:
    assert TokenCheck(["one", "two"]).allows({"Authorization": value}) is allowed


def test_token_check_without_a_header_or_a_token_refuses() -> None:
    assert not TokenCheck(["one"]).allows({})
    assert not TokenCheck([]).allows(bearer("anything"))


def test_new_secrets_differ() -> None:
    secrets = {new_secret() for _ in range(100)}
    assert len(secrets) == 100 and min(map(len, secrets)) >= 43
