"""Messages are the same on both ends, and versions may mix from 0.1.0 on."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from support.message_examples import KINDS, MAPPING_KEY, example
from support.route_queries import route_query

from macroserve.api import messages
from macroserve.api.messages import (
    PREFIX_KEY_BYTES,
    PoolOrder,
    RouteQuery,
    decode_to_cell,
    decode_to_ingress,
    encode,
)
from macroserve.core.batch import HandBackReason
from macroserve.core.request import Slo
from macroserve.core.status import InstanceStatus, Phase, Pool

BEFORE = json.loads(Path(__file__).with_name("messages_before.json").read_text())
"""Recorded messages, one of each kind, with the JSON schema of their decoders: see
``support.message_examples``."""


@pytest.mark.parametrize("slo", [Slo(1.0, 0.1), Slo(1.0, 0.1, 0.2)], ids=["means", "every token"])
def test_route_query_after_the_wire_keeps_its_targets(slo: Slo) -> None:
    query = route_query(age_s=0.25, slo=slo, num_streamed_tokens=3, exclude=("a",))
    assert decode_to_cell(encode(query)) == query
    request = query.info.to_request("r", 100, 10, now=5.0)
    assert (request.slo, request.arrival_s, request.num_streamed_tokens) == (slo, 4.75, 3)


@pytest.mark.parametrize(
    ("prefix", "keys"),
    [
        (b"", ()),
        (bytes(5) + b"\x07" + bytes(5) + b"\x08", (7, 8)),
        (bytes(7), ()),
        (bytes(PREFIX_KEY_BYTES * 65), ()),
    ],
    ids=["none", "two", "of another size", "too many"],
)
def test_route_query_has_the_keys_that_it_was_given_or_none(
    prefix: bytes, keys: tuple[int, ...]
) -> None:
    found = decode_to_cell(encode(route_query(prefix=prefix)))
    assert isinstance(found, RouteQuery) and found.placement.prefix_keys == keys


def test_recorded_kinds_of_messages_are_all_present() -> None:
    """Old pods send them until all are replaced."""
    assert set(BEFORE) <= set(KINDS)


@pytest.mark.parametrize("kind", BEFORE)
def test_recorded_message_is_understood(kind: str) -> None:
    message = BEFORE[kind]["message"]
    decoded = msgspec.to_builtins(msgspec.convert(message, KINDS[kind]))
    assert _kept(message, decoded) == message


@pytest.mark.parametrize("kind", BEFORE)
def test_recorded_decoder_accepts_the_message(kind: str) -> None:
    message = json.loads(msgspec.json.encode(example(KINDS[kind])))
    jsonschema.validate(message, BEFORE[kind]["accepts"])


@pytest.mark.parametrize("kind", KINDS)
def test_message_with_unknown_fields_ignores_them_anywhere(kind: str) -> None:
    known = example(KINDS[kind])
    later = _with_more_fields(msgspec.to_builtins(known))
    assert msgspec.convert(later, KINDS[kind]) == known


def test_request_of_an_info_has_its_ids_class_and_age() -> None:
    info = messages.RequestInfo(
        route_id="route", age_s=0.25, slo=Slo(1.0, 0.1), num_streamed_tokens=3, slo_class="batch"
    )
    request = info.to_request("r", 100, 10, now=5.0, adapter="sql")
    assert (request.request_id, request.route_id, request.adapter) == ("r", "route", "sql")
    assert (request.slo, request.slo_class) == (info.slo, "batch")
    assert (request.arrival_s, request.num_streamed_tokens, request.probe) == (4.75, 3, False)


@pytest.mark.parametrize("decode", [decode_to_cell, decode_to_ingress])
def test_message_of_an_unknown_kind_is_ignored(decode) -> None:
    assert decode(b'{"type": "later", "a": 1}') is None


@pytest.mark.parametrize("message", [b'{"type": "route"}', b'{"type": 5}', b"{}", b"[", b"\xff"])
def test_message_that_is_malformed_raises_an_error(message: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_to_cell(message)


def test_message_with_unknown_enum_values_gets_safe_defaults() -> None:
    status = b'{"seq": 1, "phase": "later"}'
    assert msgspec.json.decode(status, type=InstanceStatus).phase is Phase.MIXED
    member = b'{"name": "a", "address": "b", "pool": "later"}'
    assert msgspec.json.decode(member, type=messages.CellMember).pool is Pool.LP
    assert HandBackReason("later") is HandBackReason.DRAIN


def test_pool_order_for_an_unknown_pool_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="lp, hp"):
        msgspec.json.decode(b'{"name": "a", "pool": "later"}', type=PoolOrder)


def _kept(before: Any, now: Any) -> Any:
    """Return ``now``, with only the fields of objects that were there before."""
    if isinstance(before, dict):
        return {key: _kept(value, now[key]) for key, value in before.items() if key in now}
    if isinstance(before, list):
        return [_kept(old, new) for old, new in zip(before, now, strict=True)]
    return now


def _with_more_fields(value: Any) -> Any:
    """Return the value with unknown fields in objects, not in mappings, whose keys are data."""
    if isinstance(value, dict):
        more = {} if MAPPING_KEY in value else {"later": [1]}
        return {key: _with_more_fields(each) for key, each in value.items()} | more
    if isinstance(value, list | tuple):
        return [_with_more_fields(each) for each in value]
    return value
