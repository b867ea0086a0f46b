"""An engine that allocates blocks without a model, while batches are in flight."""

from collections import deque

from macroserve.core.batch import BatchKind, BatchResult
from macroserve.core.request import Request


class AllocatingEngine:
    """An engine that allocates a batch's blocks when it starts it, while others are in flight.

    Attributes:
        computing: tokens of each batch in flight, by request.
    """

    def __init__(self, scheduler, pool, ahead):
        self.scheduler, self.pool, self.ahead = scheduler, pool, ahead
        self.now = 0.0
        self.flights = deque()
        self.computing = deque()
        self.prompt, self.left, self.computed, self.emitted = {}, {}, {}, {}
        self.num_cached = 0

    def add(self, name, num_prompt, num_tokens, slo, hashes=()):
        self.pool.add(name, num_prompt, hashes)
        self.prompt[name], self.left[name] = num_prompt, num_tokens
        self.computed[name] = self.emitted[name] = 0
        request = Request(name, self.now, num_prompt, num_tokens, slo)
        assert self.scheduler.add_request(request, self.now) is None

    def leave(self, name):
        if name in self.left:
            self.forget(name)
            self.scheduler.finish(name)

    def forget(self, name):
        self.pool.remove(name)
        del self.left[name]

    def step(self):
        batch = self.scheduler.schedule(self.now)
        for item in batch.handed_back:
            self.forget(item.request_id)
        flying = {name for _, _, tokens in self.flights for name in tokens}
        for name in batch.preempted:
            self.pool.release(name)
            self.computed[name] = 0
            for tokens in self.computing:
                tokens.pop(name, None)
        computing: dict[str, int] = {}
        prefilled, cached, emitted = {}, {}, {}
        for prefill in batch.prefills:
            name = prefill.request_id
            prefilled[name] = 0
            if name in flying and not self.computed[name]:
                continue  # its tokens are out before it begins again
            if not self.computed[name]:
                cached[name] = self.computed[name] = self.pool.find(name).num_tokens
                self.num_cached += cached[name]
            known = self.prompt[name] + self.emitted[name]
            prefilled[name] = min(prefill.num_tokens, known - self.computed[name])
            self.compute(name, prefilled[name])
            computing[name] = prefilled[name]
            if self.computed[name] == known:
                emitted[name] = 1
        for name in batch.decodes:
            self.compute(name, 1)
            computing[name] = emitted[name] = 1
        for name in emitted:
            self.emitted[name] += 1
        taken = BatchResult(batch.predicted_s, prefilled, emitted, decoded=1, cached=cached)
        self.scheduler.promise(batch, taken)
        self.flights.append((batch, self.now, emitted))
        self.computing.append(computing)
        while len(self.flights) > (self.ahead if batch.kind is not BatchKind.IDLE else 0):
            self.settle()
        return batch.kind is not BatchKind.IDLE or bool(self.left)

    def compute(self, name, num_tokens):
        self.computed[name] += num_tokens
        room = self.scheduler.running.blocks.room(name)
        assert self.computed[name] <= room, f"{name} outruns its reservation"
        self.pool.compute(name, self.computed[name])

    def num_in_flight(self, name):
        """Return the tokens in flight of a request."""
        return sum([tokens.get(name, 0) for tokens in self.computing])

    def settle(self):
        batch, _, emitted = self.flights.popleft()
        self.computing.popleft()
        self.now += batch.predicted_s or 0.01
        finished = []
        for name in emitted:
            if name in self.left:
                self.left[name] -= 1
                if not self.left[name]:
                    finished.append(name)
        for name in finished:
            self.forget(name)
        self.scheduler.settle(finished, {}, self.now)
