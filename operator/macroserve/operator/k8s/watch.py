"""Watches that keep the store up to date and recover from silence.

A watch may stop sending events without an error, because of a proxy that forgot the connection or
an API server that hangs. So each watch is ended after a while, and the next one continues from the
last change. Only if that fails follows a full list, which is expensive.
"""

import asyncio
import random
from collections.abc import Mapping

from macroserve.api.logs import get_logger
from macroserve.operator import metrics
from macroserve.operator.k8s import names
from macroserve.operator.k8s.cache import Store
from macroserve.operator.k8s.client import Api, ApiError
from macroserve.operator.k8s.kinds import Kind

LABELS: Mapping[str, str] = {"app.kubernetes.io/managed-by": names.MANAGER}
RENEW_S = 90.0
SERVER_TIMEOUT_S = 120
"""Time after which the API server ends a watch without a client."""
FIRST_LISTS_S = 60.0
MIN_RETRY_S = 0.1
MAX_RETRY_S = 10.0

log = get_logger(__name__)


async def until_listed(listed: Mapping[Kind, asyncio.Event]) -> None:
    """Wait for the first list of each kind.

    Raises RuntimeError after FIRST_LISTS_S with the kinds, perhaps forbidden or absent, that have
    none.
    """
    try:
        async with asyncio.timeout(FIRST_LISTS_S):
            for event in listed.values():
                await event.wait()
    except TimeoutError:
        missing = ", ".join(kind.plural for kind, event in listed.items() if not event.is_set())
        raise RuntimeError(f"Could not list {missing} within {FIRST_LISTS_S:g} s.") from None


async def watch(
    api: Api, store: Store, kind: Kind, listed: asyncio.Event, namespace: str = "*"
) -> None:
    """Keep the store's objects of a kind up to date, until cancelled.

    listed: set once the store has all of them.
    namespace: namespace to watch; ``*`` for all.
    """
    retry_s = MIN_RETRY_S
    version: str | None = None
    while True:
        try:
            if version is None:
                version, objects = await api.list(kind, LABELS, namespace)
                store.replace(kind, objects, namespace)
                listed.set()
            async with asyncio.timeout(RENEW_S * random.uniform(0.8, 1.2)):
                async for change, obj in api.watch(
                    kind, LABELS, version, SERVER_TIMEOUT_S, namespace
                ):
                    (store.drop if change == "DELETED" else store.put)(kind, obj)
                    version = obj["metadata"]["resourceVersion"]
        except TimeoutError:
            retry_s = MIN_RETRY_S
            continue
        except ApiError as error:
            log.info("watch restarted", kind=kind.name, reason=str(error))
        except Exception:
            log.exception("watch restarted", kind=kind.name)
        version = None
        metrics.ERRORS.labels("watch").inc()
        await asyncio.sleep(retry_s * random.uniform(0.5, 1.5))
        retry_s = min(2 * retry_s, MAX_RETRY_S)
