"""Adapter of vLLM, which contains all uses of vLLM's private parts:

- ``scheduler.py`` subclasses ``vllm.v1.core.sched.async_scheduler.AsyncScheduler``: narrows
  ``running``, ``waiting``, ``max_num_scheduled_tokens`` and ``max_num_active_reqs`` around
  ``schedule()``; calls ``_preempt_request``; appends to the outputs of ``update_from_output``.
- ``core_loop.py`` runs an ``EngineCore`` as ``EngineCoreProc`` does; ``outputs.py`` passes on its
  outputs, and calls ``OutputProcessor`` for statistics and traces (``_update_stats_from_output``,
  ``_update_stats_from_finished``).
- ``frontend.py`` builds an ``AsyncLLM`` without its constructor, around a separate
  ``EngineCoreClient``, reads ``OutputProcessor.request_states`` to fail a request, and overrides
  ``_finish_request`` to count the tokens before a stop string.
- ``grammar.py`` subclasses ``InputProcessor`` (``_validate_params``, ``structured_outputs_config``)
  and sets ``StructuredOutputsParams._backend``; ``compilation.py`` calls
  ``SamplingParams._validate_structured_outputs`` and ``StructuredOutputManager`` in a separate
  process; ``chat_template.py`` reads a template's variables as ``renderers.hf`` does.
- ``rendering.py`` limits the time of ``renderers.hf.safe_apply_chat_template`` and of
  ``AnthropicServingMessages._detect_merge_inline_system``, which renders at the start.
- ``images.py`` replaces the ``MediaConnector`` named ``http``; ``features.py`` uses the
  serialization between vLLM's processes; ``exact_scheduler.py`` frees slots of the
  ``encoder_cache_manager``; ``options.py`` sets ``_api_process_count`` for the ingress.
- ``hybrid/`` registers a ``KVCacheSpec`` and its manager, wraps each layer's attention
  (``Attention.attn_backend`` and ``impl``), hooks the attention blocks of supported models, and
  sets an attribute on ``SchedulerOutput``.
- ``cpu_worker.py`` subclasses ``CPUWorker``, sets ``model_runner.intermediate_tensors``, and
  replaces ``PunicaWrapperCPU`` by ``CpuPlatform.get_punica_wrapper``.
- ``options.py`` names ``EngineArgs`` fields.
- ``versions.py`` covers the differences between supported versions; all other modules use names
  that each version has.
- ``stderr_tail.py`` parses how vLLM reports a worker process that failed.

``tests/engine`` checks all of it: greedy tokens equal stock vLLM's in every strategy, and each name
is in the list that ``make vllm-names`` has extracted from the sources of each version.
"""

ENGINE_NICENESS = 10
"""Niceness of an engine's processes on a CPU, which share cores with the servers."""

OPTIONS_KEY = "macroserve"
"""Macroserve's key in vLLM's ``additional_config`` (written in ``options``)."""
