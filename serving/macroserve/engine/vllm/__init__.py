"""Adapter of vLLM, which contains every use of vLLM's private parts.

The private parts in use, by module:

- ``scheduler.py`` subclasses ``vllm.v1.core.sched.async_scheduler.AsyncScheduler``: narrows
  ``running``, ``waiting``, ``max_num_scheduled_tokens`` and ``max_num_active_reqs`` around
  ``schedule()``; calls ``_preempt_request``; appends to the outputs of ``update_from_output``;
  adds one method to ``EngineCore`` for commands.
- ``frontend.py`` builds an ``AsyncLLM`` without its constructor, around an ``EngineCoreClient`` of
  our own, reads ``OutputProcessor.request_states`` to fail a request, and overrides
  ``_finish_request`` to count the tokens before a stop string.
- ``stopped.py`` ends a request by ``OutputProcessor``'s own steps (``external_req_ids``,
  ``_finish_request``, ``_update_stats_from_finished``) under the name that ``ServingTokens`` gives.
- ``grammar.py`` subclasses ``InputProcessor`` (``_validate_params``, ``structured_outputs_config``)
  and sets ``StructuredOutputsParams._backend``; ``compilation.py`` calls
  ``SamplingParams._validate_structured_outputs`` and ``StructuredOutputManager`` apart;
  ``chat_template.py`` reads a template's variables as ``renderers.hf`` does.
- ``rendering.py`` puts a time around ``renderers.hf.safe_apply_chat_template``, and around
  ``AnthropicServingMessages._detect_merge_inline_system``, which renders at the start.
- ``api.py`` wires ``ServingTokens`` (``entrypoints.scale_out``) to an engine; ``choices.py``
  overrides its ``serve_tokens_stream_generator`` and takes over its attributes.
- ``choices.py`` also keeps the logprobs of a prompt from ``LogprobsProcessor``
  (``_update_prompt_logprobs``).
- ``images.py`` takes the place of the ``MediaConnector`` named ``http``; ``features.py`` uses the
  serialization between vLLM's own processes; ``scheduler.py`` frees places of the
  ``encoder_cache_manager``; ``options.py`` sets ``_api_process_count`` for the ingress.
- ``hybrid/`` registers a ``KVCacheSpec`` and its manager, puts its own attention in front of each
  layer's (``Attention.attn_backend`` and ``impl``), hooks the attention blocks of the models that
  it knows, and sets an attribute on ``SchedulerOutput``.
- ``cpu_worker.py`` subclasses ``CPUWorker`` and sets ``model_runner.intermediate_tensors``.
- ``cpu_adapters.py`` puts kernels of our own in place of ``PunicaWrapperCPU``, by
  ``CpuPlatform.get_punica_wrapper``.
- ``options.py`` names ``EngineArgs`` fields.
- ``versions.py`` covers the differences between the supported versions; all other modules use names
  that each version has.
- ``stderr_tail.py`` reads how an ``EngineCore`` process that failed is reported.

``tests/engine`` guards all of it by comparing greedy tokens with stock vLLM in every strategy, and
by looking up each name in what ``make vllm-names`` has found in the sources of each version.
"""

ENGINE_NICENESS = 10
"""Niceness of an engine's processes on a CPU, whose cores the servers need, too."""

OPTIONS_KEY = "macroserve"
"""Macroserve's key in vLLM's ``additional_config``, written by ``options``, read by
``scheduler``."""
