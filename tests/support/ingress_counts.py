"""Read the metrics of an ingress."""

from macroserve.serving.ingress.metrics import IngressMetrics


def counted(metrics: IngressMetrics, name: str, **labels: str) -> float:
    """Return the sum of the samples of a name that have these labels, whatever others."""
    return sum(
        sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
