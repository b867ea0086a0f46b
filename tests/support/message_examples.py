"""Print each kind of message between pods, with an example and what its decoder accepts, as JSON.

``python tests/support/message_examples.py > tests/api/messages_before.json`` at a release records
the messages with which later versions must remain compatible. Until 0.1.0 is released, an
incompatible change records them anew.
"""

import json
import typing

import msgspec
from msgspec import inspect

from macroserve.api import messages
from macroserve.api.handle import InstanceHandle
from macroserve.core.scaling.load import LoadReport
from macroserve.core.status import InstanceStatus
from macroserve.engine.token_frames import Call, Cancel, Item
from macroserve.serving.head.cells import HeadCells

KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        messages.RouteQuery,
        messages.Settled,
        messages.Hello,
        messages.Refused,
        messages.RouteReply,
        messages.CellSummary,
        messages.Placed,
        messages.CommandOrder,
        messages.LatencyAnswer,
        InstanceStatus,
        InstanceHandle,
        Call,
        Cancel,
        Item,
        HeadCells,
        messages.InstanceIdentity,
        messages.CellReport,
        messages.HeadReport,
        LoadReport,
        messages.AdoptOrder,
        messages.ReleaseOrder,
        messages.PoolOrder,
        messages.DrainOrder,
        messages.MigrateOrder,
    )
}
MAPPING_KEY = "a key"
_VALID = {"address": "http://10.0.0.7:8000", "control": "http://10.0.0.7:8001", "pool": "lp"}
"""Values of fields that do not accept every text."""


def example(kind: type) -> typing.Any:
    """A message with every field set."""
    return msgspec.convert(_filled(inspect.type_info(kind)), kind)


def _filled(info: inspect.Type, name: str = "") -> typing.Any:
    match info:
        case inspect.StructType() | inspect.DataclassType():
            tag = getattr(info, "tag", None)
            fields = {f.encode_name: _filled(f.type, f.name) for f in info.fields}
            if getattr(info, "array_like", False):
                return list(fields.values())
            return {"type": tag, **fields} if tag else fields
        case inspect.NamedTupleType():
            return [_filled(f.type, f.name) for f in info.fields]
        case inspect.EnumType():
            return next(iter(info.cls)).value
        case inspect.UnionType():
            return _filled(next(t for t in info.types if not isinstance(t, inspect.NoneType)), name)
        case inspect.ListType() | inspect.VarTupleType() | inspect.FrozenSetType():
            return [_filled(info.item_type)]
        case inspect.TupleType():
            return [_filled(each) for each in info.item_types]
        case inspect.DictType():
            return {MAPPING_KEY: _filled(info.value_type)}
        case inspect.BoolType():
            return True
        case inspect.IntType():
            # Fewer tokens have been streamed than the prompt has.
            return 1 if "streamed" in name else 2
        case inspect.AnyType():
            return 2
        case inspect.FloatType():
            return 0.5
        case inspect.BytesType():
            return "AAAA"  # base64
        case inspect.StrType():
            return _VALID.get(name, name or "text")
        case _:
            raise TypeError(f"no example of {info}")


def main() -> None:
    record = {
        name: {
            "message": msgspec.to_builtins(example(kind)),
            "accepts": _without_prose(msgspec.json.schema(kind)),
        }
        for name, kind in sorted(KINDS.items())
    }
    lines = [f"{json.dumps(name)}: {json.dumps(record[name])}" for name in record]
    print("{\n" + ",\n".join(lines) + "\n}")


def _without_prose(schema: typing.Any) -> typing.Any:
    if isinstance(schema, list):
        return [_without_prose(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_prose(value)
        for key, value in schema.items()
        if not (key in ("title", "description") and isinstance(value, str))
    }


if __name__ == "__main__":
    main()
