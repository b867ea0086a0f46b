"""The desired objects follow from one generation of a MacroInstance alone."""

from macroserve.operator.admission.spec import admitted
from macroserve.operator.apply.owned_objects import OwnedObjects
from macroserve.operator.k8s.kinds import Kind, Object
from macroserve.operator.options import OperatorOptions
from macroserve.operator.render import instance
from macroserve.operator.render.context import RenderContext


class DesiredObjects:
    """The desired objects of one generation. Raise ManifestError if the spec is not valid, or the
    policy refuses its template.

    budget: the kind of disruption budget of this cluster.
    """

    def __init__(self, resource: Object, options: OperatorOptions, budget: Kind) -> None:
        metadata = resource["metadata"]
        self.generation: int = metadata["generation"]
        self.render_context = RenderContext(
            manifest=admitted(resource, options.pod_policy),
            document=resource,
            namespace=metadata["namespace"],
            uid=metadata["uid"],
            image=options.engine_image,
            image_pull_policy=options.engine_image_pull_policy,
            operator_namespace=options.namespace,
            network=options.served_network,
            tls=options.served_tls,
        )
        self.manifest = self.render_context.manifest
        self.owned = OwnedObjects(self.render_context, budget)
        self.revision = instance.revision(self.render_context)
