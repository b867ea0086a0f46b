"""`macroserve bench serve`: open-loop load against any OpenAI endpoint, and its results.

The pure half makes the bodies of the requests (``payload``) that ``macroserve.workload`` plans,
meters the answers (``stream``) and computes the figures (``record``, ``metrics``, ``goodput``). The
other half sends (``client``), shows (``report``, ``progress``, ``plot``) and joins the two
(``run``); the command is in ``macroserve.cli``.
"""
