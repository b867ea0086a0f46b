"""Images are fetched from where they may be, and decoded within limits; all else is refused."""

import asyncio
import base64
import gc
import io
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from PIL import Image

from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from vllm.exceptions import GracefulHTTPError, VLLMValidationError  # noqa: E402

from macroserve.engine.vllm import images  # noqa: E402
from macroserve.engine.vllm.images import ImageConnector  # noqa: E402


def png(width: int = 8, height: int = 8, mode: str = "RGB") -> bytes:
    data = io.BytesIO()
    Image.new(mode, (width, height)).save(data, "PNG")
    return data.getvalue()


def data_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


class Site:
    """A web server at ``localhost`` with one image.

    Attributes:
        paths: what was asked for.
    """

    def __init__(self) -> None:
        self.paths: list[str] = []
        app = web.Application()
        app.router.add_get("/{name}", self._answer)
        self.server = TestServer(app, host="localhost")

    def url(self, name: str, host: str = "localhost") -> str:
        return f"http://{host}:{self.server.port}/{name}"

    async def _answer(self, request: web.Request) -> web.Response:
        self.paths.append(request.path)
        match request.match_info["name"]:
            case "image":
                return web.Response(body=png())
            case "moved":
                raise web.HTTPFound(self.url("image"))
            case "large":
                return web.Response(body=bytes(images.MAX_FETCHED_BYTES + 1))
            case "slow":
                await asyncio.sleep(60)
        raise web.HTTPNotFound


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    await site.server.start_server()
    yield site
    await site.server.close()


async def test_image_in_the_url_is_decoded() -> None:
    found = await ImageConnector().fetch_image_async(data_url(png(5, 7)))
    assert found.media.size == (5, 7)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("data:image/png;base64,AAAA", "could not be read"),
        ("data:image/png;base64,!!", "could not be read"),
        ("data:image/png,AAAA", "Only base64"),
        ("data:nothing", "missing ','"),
        (data_url(png()[:40]), "could not be read"),
        (data_url(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"), "its format is not known"),
        (data_url(png(6000, 6000, "1")), "it has 6000 x 6000 pixels; at most 33554432"),
        (data_url(png(20_000, 20_000, "1")), "could not be read"),
        ("file:///etc/passwd", "--allowed-local-media-path"),
        ("ftp://localhost/image", "must be either a HTTP, data or file URL"),
        ("image.png", "must be either"),
        ("http://", "could not be"),
        ("http://[", "could not be read"),
    ],
)
async def test_url_of_no_image_is_the_fault_of_the_request(url: str, says: str) -> None:
    with pytest.raises(VLLMValidationError, match=says):
        await ImageConnector().fetch_image_async(url)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1", "[::ffff:127.0.0.1]"])
async def test_url_that_leads_inside_reaches_nothing(site: Site, host: str) -> None:
    with pytest.raises(VLLMValidationError, match="could not be fetched") as caught:
        await ImageConnector().fetch_image_async(site.url("image", host))
    assert "127.0.0.1" not in str(caught.value) and site.paths == []


@pytest.mark.parametrize(
    "address",
    ["10.0.0.1", "169.254.169.254", "100.64.0.1", "::1", "fd00::1", "::ffff:100.64.0.1"],
)
def test_address_that_is_not_of_the_public_internet_gets_no_socket(address: str) -> None:
    with pytest.raises(OSError, match="not on the public internet"):
        public_socket(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2001:4860:4860::8888", "::ffff:8.8.8.8"])
def test_address_of_the_public_internet_gets_a_socket(address: str) -> None:
    public_socket(address).close()


def public_socket(address: str) -> images.socket.socket:
    family = images.socket.AF_INET6 if ":" in address else images.socket.AF_INET
    return images.public_socket((family, images.socket.SOCK_STREAM, 6, "", (address, 80)))


async def test_listed_host_is_reached_and_no_other(site: Site) -> None:
    connector = ImageConnector(allowed_media_domains=["localhost"])
    found = await connector.fetch_image_async(site.url("image"))
    assert found.media.size == (8, 8) and site.paths == ["/image"]
    with pytest.raises(VLLMValidationError, match="allowed domains"):
        await connector.fetch_image_async(site.url("image", "127.0.0.1"))
    assert site.paths == ["/image"]


@pytest.mark.parametrize(
    ("name", "says"),
    [("moved", "HTTP 302"), ("absent", "HTTP 404"), ("large", "more than"), ("slow", "fetched")],
)
async def test_answer_that_is_no_image_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch, name: str, says: str
) -> None:
    monkeypatch.setattr(images, "FETCH_TIMEOUT_S", 0.2)
    connector = ImageConnector(allowed_media_domains=["localhost"])
    with pytest.raises(VLLMValidationError, match=says):
        await connector.fetch_image_async(site.url(name))


async def test_file_is_read_from_the_allowed_folder_alone(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    for name in ("open/a.png", "b.png"):
        (tmp_path / name).write_bytes(png())
    connector = ImageConnector(allowed_local_media_path=str(tmp_path / "open"))
    await connector.fetch_image_async(f"file://{tmp_path}/open/a.png")
    with pytest.raises(VLLMValidationError, match="must be a subpath"):
        await connector.fetch_image_async(f"file://{tmp_path}/open/../b.png")


async def test_images_beyond_what_may_be_held_wait_for_others_to_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gc.collect()
    monkeypatch.setattr(images, "MAX_HELD_PIXELS", 100)
    connector, url = ImageConnector(), data_url(png(8, 8))
    held = await connector.fetch_image_async(url)
    with pytest.raises(GracefulHTTPError) as caught:
        await connector.fetch_image_async(url)
    assert caught.value.http_status == HTTPStatus.SERVICE_UNAVAILABLE
    del held
    gc.collect()
    await connector.fetch_image_async(url)


async def test_image_that_cannot_be_decoded_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MAX_HELD_PIXELS", 100)
    for _ in range(3):
        with pytest.raises(VLLMValidationError, match="could not be read"):
            await ImageConnector().fetch_image_async(data_url(png()[:45]))


async def test_audio_and_video_are_refused() -> None:
    with pytest.raises(VLLMValidationError, match="audio is not supported"):
        await ImageConnector().fetch_audio_async("data:audio/wav;base64,AAAA")
    with pytest.raises(VLLMValidationError, match="video is not supported"):
        await ImageConnector().fetch_video_async("data:video/mp4;base64,AAAA")
