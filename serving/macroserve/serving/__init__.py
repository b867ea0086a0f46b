"""HTTP and Ray around the policies, a package per process: ingress, cell, instance, head.

Path of a request: ``ingress.server`` (text to tokens) → ``ingress.dispatcher`` (holds it until its
last token) → ``ingress.cell_directory`` (which cell) → ``cell.scheduler`` (which instance) →
``instance.token_server`` (the engine) and straight back to ``ingress.dispatcher``. Shared by the
processes: ``http`` (servers), ``security`` (tokens and TLS between them), ``discovery``. Only
``ray`` imports Ray.
"""

from macroserve.serving.ray.environment import prepare_environment

# Here, before any module of this package can import Ray.
prepare_environment()
