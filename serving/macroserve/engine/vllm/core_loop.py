"""vLLM's engine core in this process, whose steps run in one thread.

``EngineCoreProc``, its counterpart in vLLM, is a process behind ZeroMQ sockets. Here the event loop
that serves the ingresses' connections is in the engine's process (docs/decisions).
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor.abstract import Executor
from vllm.v1.request import Request

from macroserve.api.messages import RequestInfo
from macroserve.engine.vllm.scheduler import MacroserveScheduler

LOADING_S = 0.001
"""Sleep between steps that compute nothing, in which other threads load blocks of a cache."""


class CoreLoop:
    """An engine core and its loop. Construction, ``run`` and ``shutdown`` belong to one thread, as
    devices do; other methods may be called from any thread.

    take: gets the outputs of each step, in that thread.
    """

    def __init__(self, config: VllmConfig, take: Callable[[EngineCoreOutputs], None]) -> None:
        self._take = take
        self._calls: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._stopping = False
        executor = Executor.get_class(config)
        self._core = EngineCore(config, executor, True, self._on_executor_failure)
        scheduler = self._core.scheduler
        assert isinstance(scheduler, MacroserveScheduler)
        self._scheduler = scheduler

    def run(self) -> None:
        """Run steps until ``stop``. Raises what a step raises, after which the core can only be
        shut down."""
        while not self._stopping:
            self._call()
            if self._has_work:
                self._step()

    def shutdown(self) -> None:
        """Free the device and end the workers' processes, within seconds."""
        self._core.shutdown()

    def prepared(self, request: EngineCoreRequest) -> Request:
        """Return a request with its blocks' hashes, and start to compile its grammar. Only one
        thread may do so. Raises ValueError if vLLM cannot prepare it."""
        prepared, _ = self._core.preprocess_add_request(request)
        return prepared

    def add(self, request: Request, info: RequestInfo) -> None:
        """Add a prepared request."""
        self._calls.put(partial(self._scheduler.introduce, request.request_id, info))
        self._calls.put(partial(self._core.add_request, request))

    def abort(self, request_id: str) -> None:
        """End a request, if it still runs."""
        # The first is looked at within a step, the second wakes the loop.
        self._core.aborts_queue.put_nowait([request_id])
        self._calls.put(partial(self._core.abort_requests, [request_id]))

    def call(self, function: Callable[[EngineCore], Any]) -> Future[Any]:
        """Call a function between two steps."""
        future = Future[Any]()

        def run() -> None:
            try:
                future.set_result(function(self._core))
            except Exception as error:
                future.set_exception(error)

        self._calls.put(run)
        return future

    def stop(self) -> None:
        def stop() -> None:
            self._stopping = True

        self._calls.put(stop)

    def _call(self) -> None:
        """Run the calls of other threads; wait for one while there is nothing to do."""
        while not self._stopping and not (self._calls.empty() and self._has_work):
            self._calls.get()()

    @property
    def _has_work(self) -> bool:
        return self._core.scheduler.has_requests() or bool(self._core.batch_queue)

    def _step(self) -> None:
        outputs, is_executed = self._core.step_fn()
        for each in (outputs or {}).values():
            self._take(each)
        self._core.post_step(is_executed)
        if not is_executed and self._core.scheduler.has_requests():
            time.sleep(LOADING_S)

    def _on_executor_failure(self) -> None:
        def fail() -> None:
            raise RuntimeError("a worker's process has ended")

        self._calls.put(fail)
