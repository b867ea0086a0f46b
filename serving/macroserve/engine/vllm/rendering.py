"""A time limit for rendering chat templates, and protection of the start from failing ones.

vLLM stops waiting for a render after 30 s and answers 500, while its thread continues. Here the
thread is interrupted, and the answer is 400.
"""

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.exceptions import VLLMValidationError
from vllm.renderers import hf

from macroserve.engine.vllm.versions import wrap_render_timeout

RENDER_S = 5.0
"""Renders take milliseconds, long conversations with many tools some hundred milliseconds."""


class OverdueError(Exception):
    """Error raised in the thread of an overdue render; vLLM answers with its message."""

    def __str__(self) -> str:
        return f"the chat template takes longer than {RENDER_S:g} s for these messages"


def bound_rendering() -> None:
    """Install the limit, before a renderer is created; a second call has no effect."""
    if hf.safe_apply_chat_template.__module__ != __name__:
        hf.safe_apply_chat_template = _bounded(hf.safe_apply_chat_template)
        wrap_render_timeout(_refused_late)
        probe = _safe(AnthropicServingMessages._detect_merge_inline_system)
        setattr(AnthropicServingMessages, "_detect_merge_inline_system", staticmethod(probe))  # noqa: B010


def _bounded(render: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(render)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        try:
            with _deadline(RENDER_S):
                return render(*args, **kwargs)
        except OverdueError as error:
            raise VLLMValidationError(str(error)) from None

    bounded.__module__ = __name__
    return bounded


def _refused_late(wait: Callable[..., Any]) -> Callable[..., Any]:
    """Answer 400 at vLLM's time limit: native code cannot be interrupted."""

    @wraps(wait)
    async def refused(*args: Any) -> Any:
        try:
            return await wait(*args)
        except TimeoutError:
            raise VLLMValidationError(str(OverdueError())) from None

    return refused


def _safe(probe: Callable[[str | None], bool]) -> Callable[[str | None], bool]:
    """Return True when vLLM's probe of the template fails at the start, as other messages may
    work."""

    @wraps(probe)
    def safe(template: str | None) -> bool:
        try:
            with _deadline(RENDER_S):
                return probe(template)
        except Exception:
            return True

    return safe


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Raise OverdueError in this thread if the block takes longer."""
    thread, lock, inside = threading.get_ident(), threading.Lock(), True

    def interrupt() -> None:
        with lock:
            if inside:
                _raise_in(thread, OverdueError)

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            inside = False
            # An exception that is set but not raised yet must not reach the thread's next task.
            _raise_in(thread, None)


def _raise_in(thread: int, error: type[Exception] | None) -> None:
    raised = ctypes.py_object() if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)
