"""The size of decoded JSON."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from macroserve.api.json_size import JsonSize, measured

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def by_recursion(value: Any) -> JsonSize:
    if isinstance(value, str):
        return JsonSize(chars=len(value))
    if type(value) is int:
        return JsonSize(largest_integer=abs(value))
    if not isinstance(value, list | dict):
        return JsonSize()
    keys, entries = (value, value.values()) if isinstance(value, dict) else ((), value)
    parts = [by_recursion(entry) for entry in entries]
    return JsonSize(
        depth=1 + max((part.depth for part in parts), default=0),
        chars=sum(map(len, keys)) + sum(part.chars for part in parts),
        largest_integer=max((part.largest_integer for part in parts), default=0),
    )


@given(JSON)
def test_size_of_any_json_is_that_by_recursion(value: Any) -> None:
    assert measured(value) == by_recursion(value)
