"""HTTP and Ray around the policies, a package per process: ingress, cell, instance, head.

A request's way: ``ingress.server`` (text to tokens) → ``ingress.dispatcher`` (keeps it until its
last token) → ``ingress.cell_directory`` (which cell) → ``cell.scheduler`` (which instance) →
``instance.token_server`` (the engine) and straight back to ``ingress.dispatcher``. What the
processes share: ``http`` (servers), ``security`` (tokens and TLS between them), ``discovery``.
``ray`` has all imports of Ray.
"""

from macroserve.serving.ray.environment import prepare_environment

# Here, because no module of this package must be able to import Ray before.
prepare_environment()
