"""`macroserve bench serve`: open-loop load against any OpenAI endpoint, and its results.

The pure half decides the requests (``arrivals``, ``lengths``, ``trace``, ``workload``,
``payload``), parses the answers (``sse``, ``stream``) and computes the figures (``record``,
``metrics``, ``goodput``). The other half sends (``client``), shows (``report``, ``progress``,
``plot``) and joins the two (``run``, ``options``, ``command``).
"""
