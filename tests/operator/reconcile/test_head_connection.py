"""A partially readable report of a head is used as far as possible."""

from typing import cast

import aiohttp
from support.fake_deployment import HEAD_ADDRESS, KEY, FakeDeployment

from macroserve.api.keys import KeyRing, Purpose
from macroserve.operator.k8s.client import Api
from macroserve.operator.reconcile.head_connection import HeadConnection


async def test_head_without_a_load_report_still_reports_cells() -> None:
    fake = FakeDeployment(cells={"cell-0": {}})

    def answer_all_but_the_load(path: str) -> None:
        if path.endswith("/load"):
            raise TimeoutError

    fake.before_request = answer_all_but_the_load
    ring = KeyRing.derived(["admin"], [Purpose.ADMIN])
    contact = HeadConnection(cast(Api, fake.api), cast(aiohttp.ClientSession, fake), KEY)
    answer = await contact.ask(HEAD_ADDRESS, ring, lambda report: True)
    assert answer is not None
    assert [cell.cell.name for cell in answer.report.cells] == ["cell-0"]
    assert (answer.report.running, answer.load) == ({"cell-0"}, None)
