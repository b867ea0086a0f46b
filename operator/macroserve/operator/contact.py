"""What a MacroInstance's head has to say, if it answers."""

from dataclasses import dataclass

import aiohttp

from macroserve.core.reports import LoadReport, Report
from macroserve.operator import metrics, names
from macroserve.operator.api import Api
from macroserve.operator.head_client import CallError, HeadClient
from macroserve.operator.log import about
from macroserve.operator.names import Key
from macroserve.operator.resources.blueprint import Blueprint
from macroserve.operator.tokens import Tokens, tokens


@dataclass(frozen=True, slots=True)
class Answer:
    """cells: schedulers that run. load: None unless it was asked for."""

    head: HeadClient
    report: Report
    cells: frozenset[str]
    load: LoadReport | None


class Contact:
    """With one MacroInstance's processes. It keeps their tokens."""

    def __init__(self, api: Api, http: aiohttp.ClientSession, key: Key) -> None:
        self._log = about(key, __name__)
        self._api = api
        self._http = http
        self._tokens: Tokens | None = None

    async def tokens(self, blueprint: Blueprint) -> Tokens:
        """Makes them if there are none. Raises ApiError and TokensError."""
        if self._tokens is None:
            self._tokens = await tokens(self._api, blueprint)
        return self._tokens

    async def ask(self, address: str, admin_token: str, with_load: bool) -> Answer | None:
        """address: the head pod's. None when it does not answer as it should."""
        host = f"[{address}]" if ":" in address else address
        head = HeadClient(self._http, f"http://{host}:{names.HEAD_PORT}", admin_token)
        try:
            report, cells = await head.report(), await head.cells()
            load = await head.load() if with_load else None
        except CallError as error:
            if error.unauthorized:
                self._tokens = None
            metrics.ERRORS.labels("head").inc()
            self._log.info("The head does not answer: %s", error)
            return None
        return Answer(head, report, cells, load)
