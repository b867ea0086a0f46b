"""Fetching and decoding of images in clients' requests, within limits.

vLLM's connector, which this one replaces, fetches any URL, including addresses inside the cluster,
decodes any number of pixels, and answers 500 for some invalid images.
"""

import ipaddress
import socket
import threading
import weakref
from http import HTTPStatus
from io import BytesIO
from typing import Any

import aiohttp
from aiohttp.connector import AddrInfoType
from PIL import Image, UnidentifiedImageError
from vllm.connections import HTTPConnection
from vllm.exceptions import (
    GracefulHTTPError,
    VLLMError,
    VLLMUnprocessableEntityError,
    VLLMValidationError,
)
from vllm.multimodal.media.base import MediaWithBytes
from vllm.multimodal.media.connector import MEDIA_CONNECTOR_REGISTRY, MediaConnector
from vllm.multimodal.media.image import ImageMediaIO

from macroserve.engine.vllm.versions import open_image

MAX_PIXELS = 1 << 25
"""Limit on one image, 100 MB decoded; its file may have a few kilobytes."""
MAX_HELD_PIXELS = 1 << 27
"""Limit on all decoded images at the same time, four of the largest."""
MAX_FETCHED_BYTES = 8 << 20
"""Limit on a fetched image, the same as for a request's body."""
FETCH_TIMEOUT_S = 5.0


class ImageConnector(MediaConnector):
    """Loader of images from ``data:`` URLs and, within the limits of ``Fetcher``, from others. All
    failures are the request's fault (400)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.connection = Fetcher(anywhere=not self.allowed_media_domains)

    async def fetch_image_async(self, image_url: str, *, image_mode: str | None = "RGB") -> Any:
        options = {"image_mode": image_mode, **self.media_io_kwargs.get("image", {})}
        try:
            return await self.load_from_url_async(image_url, BoundedImageIO(**options))
        except VLLMUnprocessableEntityError:
            problem = "an image could not be fetched: its URL is not valid"
        except (aiohttp.ClientError, TimeoutError) as error:
            # Without the message, whose addresses may reveal the cluster's network.
            problem = f"an image could not be fetched: {type(error).__name__}"
        except UnidentifiedImageError:
            problem = "an image could not be read: its format is not known"
        except VLLMError:
            raise
        except Exception as error:
            problem = f"an image could not be read: {error}"
        raise VLLMValidationError(problem, parameter="messages")

    async def fetch_audio_async(self, *_: Any, **__: Any) -> Any:
        raise VLLMValidationError(
            "audio is not supported, only text and images", parameter="messages"
        )

    async def fetch_video_async(self, *_: Any, **__: Any) -> Any:
        raise VLLMValidationError(
            "video is not supported, only text and images", parameter="messages"
        )


def install() -> None:
    """Replace vLLM's connector."""
    MEDIA_CONNECTOR_REGISTRY.register("http")(ImageConnector)


class Fetcher(HTTPConnection):
    """Downloads of at most ``MAX_FETCHED_BYTES`` over HTTP.

    anywhere: whether any host is allowed; then only public addresses are connected to, also after
        name resolution and redirects. Otherwise hosts have been checked, and redirects fail.
    """

    def __init__(self, anywhere: bool) -> None:
        super().__init__()
        self._anywhere = anywhere

    async def async_get_bytes(self, url: str, **_: Any) -> bytes:
        connector = aiohttp.TCPConnector(socket_factory=public_socket if self._anywhere else None)
        timeout = aiohttp.ClientTimeout(FETCH_TIMEOUT_S)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as http,
            http.get(url, allow_redirects=self._anywhere) as response,
        ):
            if response.status != HTTPStatus.OK:
                raise _unfetched(f"its server returned HTTP {response.status}")
            data = bytearray()
            async for part in response.content.iter_any():
                data += part
                if len(data) > MAX_FETCHED_BYTES:
                    raise _unfetched(f"it has more than {MAX_FETCHED_BYTES} bytes")
            return bytes(data)


def _unfetched(why: str) -> VLLMValidationError:
    return VLLMValidationError(f"an image could not be fetched: {why}", parameter="messages")


def public_socket(address: AddrInfoType) -> socket.socket:
    family, kind, protocol, _, (host, *_) = address
    ip = ipaddress.ip_address(str(host).partition("%")[0])
    ip = getattr(ip, "ipv4_mapped", None) or ip
    if not ip.is_global or ip.is_multicast:
        raise OSError("the address is not on the public internet")
    return socket.socket(family=family, type=kind, proto=protocol)


class BoundedImageIO(ImageMediaIO):
    """Decoder of images up to ``MAX_PIXELS``, and ``MAX_HELD_PIXELS`` at the same time."""

    def load_bytes(self, data: bytes) -> MediaWithBytes[Image.Image]:
        with open_image(BytesIO(data)) as image:
            width, height = image.size
        if width * height > MAX_PIXELS:
            raise ValueError(f"it has {width} x {height} pixels; at most {MAX_PIXELS} are allowed")
        _held.take(width * height)
        try:
            found = super().load_bytes(data)
        except BaseException:
            _held.give_back(width * height)
            raise
        weakref.finalize(found.media, _held.give_back, width * height)
        return found


class HeldPixels:
    """Thread-safe count of the pixels of all decoded images."""

    def __init__(self) -> None:
        self.num_pixels = 0
        self._lock = threading.Lock()

    def take(self, num_pixels: int) -> None:
        """Add pixels. Raises GracefulHTTPError (503) if there are too many."""
        with self._lock:
            if self.num_pixels + num_pixels > MAX_HELD_PIXELS:
                raise GracefulHTTPError(
                    "too many large images at once; retry later", HTTPStatus.SERVICE_UNAVAILABLE
                )
            self.num_pixels += num_pixels

    def give_back(self, num_pixels: int) -> None:
        with self._lock:
            self.num_pixels -= num_pixels


_held = HeldPixels()
