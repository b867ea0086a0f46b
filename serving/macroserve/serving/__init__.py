"""HTTP and Ray around the policies: ingress, cell schedulers, instances.

A request's way, module by module: ``ingress`` (text to tokens) → ``dispatch`` (keeps it until its
last token) → ``directory`` (which cell) → ``cell`` (which instance) → ``instance`` (the engine) and
straight back to ``dispatch``.
"""
