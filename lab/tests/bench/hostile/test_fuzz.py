"""Slightly invalid bodies, and the counts of their answers."""

import json
import random
from collections import Counter

from aiohttp import web
from aiohttp.test_utils import TestServer

from macroserve_lab.bench.hostile.fuzz import BODIES, body_of, fuzz


def bodies(seed: int, count: int) -> list[tuple[str, bytes]]:
    rnd = random.Random(seed)
    return [body_of(rnd, "tiny") for _ in range(count)]


def test_fuzzed_bodies_of_the_same_seed_are_equal() -> None:
    assert bodies(1, 50) == bodies(1, 50) != bodies(2, 50)


def test_fuzzed_bodies_reach_every_path_and_field_and_differ() -> None:
    made = bodies(3, 5000)
    assert {path for path, _ in made} == set(BODIES)
    assert len(set(made)) > 4000
    for path, (_, optional) in BODIES.items():
        texts = b"".join(body for of, body in made if of == path)
        assert [name for name in optional if f'"{name}"'.encode() not in texts] == []


def test_fuzzed_bodies_are_mostly_json_objects() -> None:
    def kind(body: bytes) -> str:
        try:
            return type(json.loads(body)).__name__
        except ValueError:
            return "broken"

    kinds = Counter(kind(body) for _, body in bodies(4, 2000))
    assert kinds["dict"] > 1700 and kinds["broken"] > 10


async def test_fuzz_counts_answers_of_500_and_above_wherever_they_come() -> None:
    async def answer(request: web.Request) -> web.Response:
        number = next(numbers)
        if number % 10 == 0:
            return web.Response(status=503, text="down")
        if number % 10 == 1:
            return web.Response(text='data: {"error":{"code":500}}')
        return web.Response(status=400 if number % 2 else 200)

    numbers = iter(range(100))
    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/{path:.*}", answer)
    async with TestServer(app) as server:
        result = await fuzz(str(server.make_url("/")), "tiny", 100, seed=1, concurrency=4)
    assert result.num_bodies == 100
    assert result.num_5xx == 20
    assert result.statuses[500] == 10 and result.statuses[503] == 10
    assert len(result.examples) == 20


async def test_fuzz_counts_answers_that_do_not_come() -> None:
    async with TestServer(web.Application()) as server:
        url = str(server.make_url("/"))
    result = await fuzz(url, "tiny", 5, seed=1)
    assert result.num_5xx == 5 and result.statuses == {0: 5}
