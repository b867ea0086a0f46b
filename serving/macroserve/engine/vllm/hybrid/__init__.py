"""Hidden states beside keys and values, in one pool of vLLM's pages (Apt-Serve, sections 3.1, 4.1).

A request that keeps hidden states passes through these modules:

- ``worker.py`` finds at start whether the model can (``capability.py``), and tells the scheduler by
  the cache's specification (``cache_spec.py``) how many hidden states fill a page.
- Our scheduler decides the kind of cache of each request; ``HybridBlocks`` hands out pages
  accordingly, and every batch names the requests in it that keep hidden states.
- In each layer a hook hands the input of the attention block to ``layer.py``; ``attention.py``
  divides the batch (``metadata.py``) and writes what came in to the pages. Decodes attend to hidden
  states on one GPU (``triton_attention.py``), and anywhere else where no rotary embedding turns
  keys (``absorbed.py``, weight absorption). For all others keys and values of the tokens before
  are made (``projection.py``), one layer at a time (``scratch_pages.py``), and vLLM's own attention
  reads those. Their time per token is measured at the start (``calibrate.py``).
"""

HIDDEN_REQUESTS = "macroserve_hidden"
"""An attribute of ours on vLLM's ``SchedulerOutput``: the ids, in a frozenset, of the requests in
the batch that keep hidden states."""
