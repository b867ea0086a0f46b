"""HTTP and Ray around the policies: ingress, cell schedulers, instances.

A request's way, module by module: ``ingress`` (text to tokens) → ``dispatch`` (keeps it until its
last token) → ``directory`` (which cell) → ``cell`` (which instance) → ``instance`` (the engine) and
straight back to ``dispatch``.
"""

from macroserve.serving.ray_environment import prepare_environment

# Here, because no module of this package must be able to import Ray before.
prepare_environment()
