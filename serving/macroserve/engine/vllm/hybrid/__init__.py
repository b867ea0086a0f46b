"""Hidden states beside keys and values in one pool of vLLM's pages (Apt-Serve, sections 3.1, 4.1).

A request that keeps hidden states passes through these modules:

- ``worker.py`` checks at the start whether the model supports them (``capability.py``), and tells
  the scheduler by the cache's specification (``cache_spec.py``) how many hidden states fill a page.
- Macroserve's scheduler decides the kind of cache of each request; ``HybridBlocks`` allocates pages
  accordingly, and every batch names its requests that keep hidden states.
- In each layer a hook hands the input of the attention block to ``layer.py``; ``attention.py``
  divides the batch (``metadata.py``) and writes the input to the pages. Decodes attend to hidden
  states on one GPU (``triton_attention.py``), and elsewhere if no rotary embedding rotates keys
  (``absorbed.py``, weight absorption). For all others keys and values of the earlier tokens are
  recomputed (``projection.py``), one layer at a time (``scratch_pages.py``), and vLLM's own
  attention reads them. Their time per token is measured at the start (``calibrate.py``).
"""

HIDDEN_REQUESTS = "macroserve_hidden"
"""Attribute added to vLLM's ``SchedulerOutput``: a frozenset of the ids of the requests in the
batch that keep hidden states."""
