"""Hidden states and keys and values in one pool of vLLM's pages (Apt-Serve, sections 3.1, 4.1).

A request that keeps hidden states passes through these modules:

- ``worker.py`` checks at the start whether the model supports them (``capability.py``); the cache's
  specification (``cache_spec.py``) has the number of hidden states per page.
- Macroserve's scheduler decides each request's kind of cache, and every batch lists its requests
  that keep hidden states. ``HybridBlocks`` allocates pages accordingly.
- In each layer a hook passes the input of the attention block to ``layer.py``; ``attention.py``
  splits the batch (``metadata.py``) and writes the input to the pages. Decodes attend to hidden
  states on one GPU (``triton_attention.py``), and elsewhere without a rotary embedding
  (``absorbed.py``, weight absorption). Otherwise the keys and values of earlier tokens are
  recomputed (``projection.py``), one layer at a time (``scratch_pages.py``), for vLLM's attention.
  The time of that per token is measured at the start (``calibrate.py``).
"""

HIDDEN_REQUESTS = "macroserve_hidden"
"""Attribute of vLLM's ``SchedulerOutput``: frozenset of the ids of requests that keep hidden
states."""
