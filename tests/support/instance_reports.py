"""Reports of cells with busy instances, which differ from each other."""

from typing import Any

import msgspec

from macroserve.api.messages import CellReport, InstanceReport
from macroserve.core.status import CellView, InstanceStatus, Phase, Pool

PHASES = (Phase.DECODE, Phase.PREFILL, Phase.DECODE, Phase.MIXED)


def busy(number: int, status: dict[str, Any] | None = None, **differs: Any) -> InstanceReport:
    """Return the report of instance-``number``; instances 0, 4, ... are in the HP pool."""
    usual = InstanceStatus(
        seq=7,
        phase=PHASES[number % 4],
        phase_s=10.0 + number,
        num_waiting=3 + number,
        num_running=20 + number,
        num_decoding=12,
        saved_tpot_p10_s=0.412 - number,
        free_blocks=380 - number,
        num_blocks=1000,
        hidden_blocks=50 + number,
        step_s=0.0213 + number / 1000,
        predicted_step_s=0.0198 + number / 1000,
        oldest_wait_s=1.44 + number,
        prompt_tokens=1000,
        cached_tokens=620 + number,
        finished=100,
        attained=97,
    )
    fields: dict[str, Any] = {
        "name": f"instance-{number}",
        "pool": Pool.LP if number % 4 else Pool.HP,
        "address": f"http://10.0.0.{number}:8000",
        "status": msgspec.structs.replace(usual, **(status or {})),
        "age_s": 0.1,
        "in_flight": 2,
    }
    return InstanceReport(**{**fields, **differs})


def busy_cell(name: str, *instances: InstanceReport, **differs: Any) -> CellReport:
    """Return the report of a cell with these instances."""
    num_blocks = sum(each.status.num_blocks for each in instances)
    view = CellView(
        name,
        tuple(each.name for each in instances),
        tuple(each.name for each in instances if each.pool is Pool.HP),
        num_prefilling=8,
        num_decoding=12,
        num_waiting=5,
        num_running=20,
        free_blocks=sum(each.status.free_blocks for each in instances) - 10,
        num_blocks=num_blocks,
    )
    fields: dict[str, Any] = {"recent_prompt_tokens": 200, "recent_cached_tokens": 77}
    return CellReport(view, instances, **{**fields, **differs})
