"""Handlers for kopf: ``python -m kopf run -A -m macroserve.operator.handlers``.

kopf watches MacroInstances, serves the admission webhook and answers liveness probes. It stores
    nothing in the cluster: no annotations, no finalizers, no peering.
"""

from typing import Any

import kopf

from macroserve.operator import logs
from macroserve.operator.admission import spec as admission
from macroserve.operator.k8s import names
from macroserve.operator.k8s.kinds import Object
from macroserve.operator.k8s.names import Key
from macroserve.operator.options import OperatorOptions
from macroserve.operator.runtime import Runtime

RESOURCE = (names.GROUP, names.VERSION, names.PLURAL)
WATCH_S = 120
"""The API server ends a watch after this time; the client gives up a little later."""
SHUTDOWN_S = 25.0
"""Less than the default grace period of a pod."""

options = OperatorOptions.from_env()
runtime = Runtime(options)


@kopf.on.startup(errors=kopf.ErrorsMode.PERMANENT)
async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
    logs.configure()
    settings.posting.enabled = False
    settings.peering.standalone = True
    # Otherwise kopf lists all CRDs and namespaces of the cluster only to find ours.
    settings.scanning.disabled = True
    settings.watching.server_timeout = WATCH_S
    settings.watching.client_timeout = WATCH_S + 10
    settings.watching.connect_timeout = 10
    settings.networking.request_timeout = 30
    settings.process.ultimate_exiting_timeout = SHUTDOWN_S
    if folder := options.webhook_cert_dir:
        settings.admission.server = kopf.WebhookServer(
            port=options.webhook_port,
            host=f"{names.MANAGER}.{options.namespace}.svc",
            certfile=folder / "tls.crt",
            pkeyfile=folder / "tls.key",
        )
    await runtime.start()


@kopf.on.cleanup()
async def stop(**_: Any) -> None:
    await runtime.stop()


@kopf.on.probe(id="work", errors=kopf.ErrorsMode.PERMANENT)
async def probe(**_: Any) -> str:
    runtime.check()
    return "ok"


@kopf.on.event(*RESOURCE)
async def changed(event: kopf.RawEvent, **_: Any) -> None:
    resource: dict[str, Any] = dict(event["object"])
    # Managed fields, most of a resource's size, are not used.
    resource["metadata"] = {**resource["metadata"]}
    resource["metadata"].pop("managedFields", None)
    (runtime.queue.gone if event["type"] == "DELETED" else runtime.queue.changed)(resource)


async def validate(
    operation: str,
    old: kopf.Body | None,
    new: kopf.Body | None,
    subresource: str | None,
    **_: Any,
) -> None:
    before: Object | None = old
    if subresource == "scale" and new is not None:
        # The API server sends two Scale objects without the rest of the spec.
        before = runtime.queue.resource(Key.of(new))
    if problems := admission.review(operation, before, new, subresource or "", options.pod_policy):
        raise kopf.AdmissionError(" ".join(problems), code=422)


if options.webhook_cert_dir:
    kopf.on.validate(*RESOURCE, id="validate")(validate)
    kopf.on.validate(*RESOURCE, id="validate-scale", subresource="scale")(validate)
