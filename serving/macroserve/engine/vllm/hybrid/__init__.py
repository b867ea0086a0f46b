"""Hidden states beside keys and values, in one pool of vLLM's pages (Apt-Serve, sections 3.1, 4.1).

The way of a request that keeps hidden states:

- ``worker.py`` finds at start whether the model can (``support.py``), and tells the scheduler by
  the cache's specification (``spec.py``) how many hidden states fill a page.
- Our scheduler says of each request which cache it has; ``blocks.py`` hands out pages accordingly,
  and every batch names the requests in it that keep hidden states.
- In each layer a hook hands the input of the attention block to ``layer.py``; ``attention.py``
  divides the batch (``rows.py``) and writes what came in to the pages. Decodes attend to hidden
  states on one GPU (``by_kernels.py``), and anywhere else where no rotary embedding turns keys
  (``direct.py``). For all others keys and values of the tokens before are made (``projection.py``),
  for one layer at a time (``scratch.py``), and vLLM's own attention reads those. What that takes a
  token is measured at the start (``rho.py``).
"""

HIDDEN_REQUESTS = "macroserve_hidden"
"""An attribute of ours on vLLM's ``SchedulerOutput``: the ids, in a frozenset, of the requests in
the batch that keep hidden states."""
