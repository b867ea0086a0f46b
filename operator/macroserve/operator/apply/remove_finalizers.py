"""Command that removes the operator's finalizer from all MacroInstances before it is uninstalled.

``python -m macroserve.operator.apply.remove_finalizers``
"""

import asyncio
from collections.abc import Sequence

from macroserve.operator.apply.deletion import has_finalizer, remove_finalizer
from macroserve.operator.k8s.client import Api, ApiError, connected
from macroserve.operator.k8s.kinds import MACROINSTANCE
from macroserve.operator.options import namespaces

MAX_TRIES = 10


async def release(api: Api, namespaces: Sequence[str] = ("*",)) -> None:
    """Remove the finalizers in these namespaces (``*``: all). Raise ApiError."""
    for _ in range(MAX_TRIES):
        listed = [await api.list(MACROINSTANCE, {}, namespace) for namespace in namespaces]
        resources = [resource for _, found in listed for resource in found]
        held = [resource for resource in resources if has_finalizer(resource)]
        if not held:
            return
        for resource in held:
            try:
                await remove_finalizer(api, resource)
            except ApiError as error:
                if not error.is_conflict:
                    raise
    raise ApiError(None, f"MacroInstances still have the finalizer after {MAX_TRIES} tries.")


async def main() -> None:
    async with connected() as api:
        await release(api, namespaces() or ("*",))


if __name__ == "__main__":
    asyncio.run(main())
