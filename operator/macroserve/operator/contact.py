"""What a MacroInstance's head has to say, if it answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import aiohttp

from macroserve.core.reports import HeadReport, LoadReport, Report
from macroserve.operator import metrics, names
from macroserve.operator.api import Api
from macroserve.operator.head_client import CallError, HeadClient
from macroserve.operator.log import about
from macroserve.operator.names import Key
from macroserve.operator.objects import Object
from macroserve.operator.observe import is_being_set_up
from macroserve.operator.resources.blueprint import Blueprint
from macroserve.operator.tokens import Tokens, restore, tokens


@dataclass(frozen=True, slots=True)
class Answer:
    """load: None if it was not asked for, or is not told."""

    head: HeadClient
    report: HeadReport
    load: LoadReport | None


class Contact:
    """With one MacroInstance's processes. It keeps their tokens."""

    def __init__(self, api: Api, http: aiohttp.ClientSession, key: Key) -> None:
        self._log = about(key, __name__)
        self._api = api
        self._http = http
        self._tokens: Tokens | None = None

    async def tokens(self, blueprint: Blueprint, pods: Sequence[Object]) -> Tokens:
        """Makes them if there are none. Raises ApiError and TokensError.

        pods: all that need them. While one is being set up, their Secret is looked for: without
        it a pod waits for ever.
        """
        if self._tokens is None:
            self._tokens = await tokens(self._api, blueprint, pods)
        elif any(is_being_set_up(pod) for pod in pods):
            await restore(self._api, blueprint, self._tokens)
        return self._tokens

    async def ask(
        self, address: str, admin_token: str, needs_load: Callable[[Report], bool]
    ) -> Answer | None:
        """address: the head pod's. None when it does not answer as it should."""
        head = HeadClient(self._http, f"http://{address}:{names.HEAD_PORT}", admin_token)
        try:
            report = await head.report()
        except CallError as error:
            self._note(error)
            return None
        load = await self._load(head) if needs_load(report) else None
        return Answer(head, report, load)

    async def _load(self, head: HeadClient) -> LoadReport | None:
        try:
            return await head.load()
        except CallError as error:
            self._note(error)
            return None

    def _note(self, error: CallError) -> None:
        if error.unauthorized:
            self._tokens = None
        metrics.ERRORS.labels("head").inc()
        self._log.info("The head does not answer: %s", error)
