"""An executor that waits for a device's time and generates artificial tokens."""

import struct
from collections.abc import Callable, Sequence
from typing import Any

from macroserve.core.batch import Batch, BatchResult
from macroserve.core.latency import LatencyModel, Work
from macroserve.engine.emulated_prefixes import PrefixCache
from macroserve.engine.tokens import Choice, Logprobs, TokenReader, TokenRequest, pack, unpack


class Stream:
    """The state of one sequence."""

    def __init__(
        self, request: TokenRequest, token_ids: Sequence[int], reader: TokenReader
    ) -> None:
        self._reader = reader
        self._seed = sum(token_ids[:4])
        self._num_given = len(token_ids)
        self._max_tokens = request.max_new_tokens
        self._num_logprobs = request.sampling.get("logprobs")
        self._logprob_token_ids = request.sampling.get("logprob_token_ids")
        self.num_emitted = 0
        self.num_computed = 0
        self.num_cached = 0
        self.is_hidden = False

    @property
    def num_tokens(self) -> int:
        return self._num_given + self.num_emitted

    def emit(self) -> tuple[int, bool]:
        """Generate the next token; return it, and whether it was the last.

        The token depends only on the start of the prompt and the position, so that a request can
        continue on another instance.
        """
        token = 100 + (self._seed * 31 + self.num_tokens * 7) % 1000
        num_cached = 0 if self.num_emitted else self.num_cached
        self.num_emitted += 1
        done = self.num_emitted >= self._max_tokens
        reason = "length" if done else None
        self._reader.put(Choice([token], reason, None, self._logprobs(token), num_cached))
        return token, done

    def end(self, finish_reason: str, stop_reason: str | None = None) -> None:
        """End the stream without a further token."""
        self._reader.put(Choice([], finish_reason, stop_reason))

    def _logprobs(self, token: int) -> Logprobs | None:
        """Return artificial logprobs: 0 for the token, -10 for all others."""
        if self._num_logprobs is None:
            return None
        others = self._logprob_token_ids or range(token + 1, token + 1 + self._num_logprobs)
        values = [0.0] + [-10.0] * len(others)
        return Logprobs(pack([token, *others]), struct.pack(f"<{len(values)}f", *values), pack([1]))


class EmulatedExecutor:
    """An executor that runs batches by waiting.

    cache: the prefix cache; None without one.

    Attributes:
        streams: by request id; one may disappear during a batch.
    """

    def __init__(
        self,
        truth: LatencyModel,
        clock: Callable[[], float],
        sleep: Callable[[float], Any],
        cache: PrefixCache | None = None,
    ) -> None:
        self.streams: dict[str, Stream] = {}
        self._truth = truth
        self._clock, self._sleep = clock, sleep
        self._cache = cache

    def add(self, request: TokenRequest, reader: TokenReader) -> None:
        """Add a request under its attempt's id. Raises ValueError for a prompt that is none."""
        token_ids, name = unpack(request.token_ids), request.info.route_id
        if self._cache:
            # Adapters share no blocks.
            self._cache.add(name, token_ids, f"{request.adapter or ''}/{request.cache_salt or ''}")
        self.streams[name] = Stream(request, token_ids, reader)

    def remove(self, request_id: str) -> None:
        del self.streams[request_id]
        if self._cache:
            self._cache.remove(request_id)

    async def run(self, batch: Batch) -> BatchResult:
        for request_id in batch.preempted:
            self.streams[request_id].num_computed = 0
        cached = self._find(batch)
        for prefill in batch.prefills:
            stream = self.streams[prefill.request_id]
            stream.is_hidden = prefill.hidden
            stream.num_cached = cached.get(prefill.request_id, stream.num_cached)
            stream.num_computed += cached.get(prefill.request_id, 0)
        started = self._clock()
        await self._sleep(self._truth.predict(self._work(batch)))
        if self._cache:
            for request_id in self.streams.keys() & batch.preempted:
                self._cache.record.release(request_id)
        prefilled = {p.request_id: p.num_tokens for p in batch.prefills}
        emitted: dict[str, int] = {}
        finished: list[str] = []
        for request_id in (*prefilled, *batch.decodes):
            stream = self.streams.get(request_id)
            if stream is None:
                continue
            stream.num_computed += prefilled.get(request_id, 1)
            if self._cache:
                self._cache.record.compute(request_id, stream.num_computed)
            if stream.num_computed >= stream.num_tokens:
                emitted[request_id] = 1
                token, done = stream.emit()
                if self._cache:
                    self._cache.append(request_id, token)
                if done:
                    finished.append(request_id)
        if self._cache:
            for request_id in finished:
                self._cache.record.release(request_id)
        return BatchResult(
            self._clock() - started, prefilled, emitted, tuple(finished), cached=cached
        )

    def _find(self, batch: Batch) -> dict[str, int]:
        """Return the cached prompt tokens of the prefills that begin."""
        if self._cache is None:
            return {}
        ids = [p.request_id for p in batch.prefills if not self.streams[p.request_id].num_computed]
        return {request_id: self._cache.record.find(request_id).num_tokens for request_id in ids}

    def _work(self, batch: Batch) -> Work:
        prefills = [(p.num_tokens, self.streams[p.request_id].num_computed) for p in batch.prefills]
        decodes = [self.streams[request_id] for request_id in batch.decodes]
        context = sum(stream.num_tokens for stream in decodes)
        hidden = sum(stream.num_tokens for stream in decodes if stream.is_hidden)
        return self._truth.work(prefills, len(decodes), context, hidden)
