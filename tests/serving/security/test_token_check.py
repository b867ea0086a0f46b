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
        ("Basic one", False),
        ("one", False),
        ("", False),
    ],
)
def test_only_known_bearer_tokens_pass(value: str, allowed: bool) -> None:
    assert TokenCheck(["one", "two"]).allows({"Authorization": value}) is allowed


def test_no_header_and_no_token() -> None:
    assert not TokenCheck(["one"]).allows({})
    assert not TokenCheck([]).allows(bearer("anything"))


def test_secrets_differ() -> None:
    secrets = {new_secret() for _ in range(100)}
    assert len(secrets) == 100 and min(map(len, secrets)) >= 43
