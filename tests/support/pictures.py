"""Images, and messages with them."""

import base64
import io
from typing import Any

import numpy as np
from PIL import Image


def picture(seed: int, width: int = 50, height: int = 40) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def base64_of(seed: int, **size: int) -> str:
    data = io.BytesIO()
    picture(seed, **size).save(data, "PNG")
    return base64.b64encode(data.getvalue()).decode()


def image(seed: int, **size: int) -> dict[str, Any]:
    url = f"data:image/png;base64,{base64_of(seed, **size)}"
    return {"type": "image_url", "image_url": {"url": url}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def user(*parts: dict[str, Any]) -> Any:
    return [{"role": "user", "content": [*parts]}]
