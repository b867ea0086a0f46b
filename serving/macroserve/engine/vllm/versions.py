"""Differences between the supported versions of vLLM; all other names that the adapter uses are in
each of them (``tests/engine/test_vllm_touches.py``)."""

from collections.abc import Callable
from io import BytesIO
from typing import Any

from PIL import Image
from vllm.multimodal import image as vllm_image
from vllm.renderers.hf import HfRenderer

try:
    from vllm.renderers.chat_utils import load_chat_template
except ImportError:  # 0.31
    from vllm.entrypoints.chat_utils import load_chat_template  # type: ignore[no-redef]
try:
    from vllm.entrypoints.launchers.cli_args import FrontendArgs, make_arg_parser
except ImportError:  # 0.33
    from vllm.entrypoints.common.cli_args import FrontendArgs, make_arg_parser  # type: ignore

__all__ = [
    "FrontendArgs",
    "load_chat_template",
    "make_arg_parser",
    "open_image",
    "wrap_render_timeout",
]


def wrap_render_timeout(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace vLLM's time limit for rendering a chat template; 0.31 has none."""
    if limit := getattr(HfRenderer, "_render_with_timeout", None):
        setattr(HfRenderer, "_render_with_timeout", wrap(limit))  # noqa: B010


def open_image(file: BytesIO) -> Image.Image:
    """Open an image of a format that vLLM allows; with 0.31, which allows all, of one that Pillow
    recognizes by its first bytes and decodes without other programs."""
    if opened := getattr(vllm_image, "open_image", None):
        return opened(file)
    return Image.open(file, formats=("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP"))
