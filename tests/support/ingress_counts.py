"""Read the metrics of an ingress."""

from macroserve.serving.ingress.metrics import IngressMetrics


def counted(metrics: IngressMetrics, name: str, **labels: str) -> float:
    """Return the sum of the samples with this name and at least these labels."""
    return sum(
        sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
