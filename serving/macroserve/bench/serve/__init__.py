"""`macroserve bench serve`: open-loop load against any OpenAI endpoint, and what came of it.

The pure half says what to send (``arrivals``, ``lengths``, ``trace``, ``workload``, ``payload``),
how to read the answers (``sse``, ``stream``) and what to make of them (``record``, ``metrics``,
``goodput``). The other half sends (``client``), shows (``report``, ``progress``, ``plot``) and
joins the two (``run``, ``options``, ``command``).
"""
