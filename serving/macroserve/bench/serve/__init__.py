"""``macroserve bench serve``: open-loop load against any OpenAI endpoint, and its results.

Without I/O: request bodies (``payload``) for the plans of ``macroserve.workload``, timing of
answers (``stream``) and results (``record``, ``metrics``, ``goodput``). With I/O: ``client``,
``report``, ``plot`` and ``run``, which joins them; the command is in ``macroserve.cli``.
"""
