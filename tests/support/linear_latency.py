"""A latency model with round numbers, for times that a reader can verify."""

from collections import namedtuple

NOW = 100.0

Linear = namedtuple("Linear", "tokens decodes")


class LinearLatency:
    """A millisecond per prefill token, two per decode, ``batch_s`` per batch, and a microsecond per
    token whose keys and values are recomputed.

    error_factor: known factor of batches' durations over the prediction.
    """

    def __init__(self, batch_s, error_factor=1.0):
        self.batch_s = batch_s
        self.error_factor = error_factor

    def work(self, prefills=(), num_decodes=0, decode_context=0, hidden_context=0, num_drafted=0):
        return Linear(sum(tokens for tokens, _ in prefills), num_decodes + num_drafted)

    def predict(self, work):
        if not sum(work):
            return 0.0
        return self.batch_s + 0.001 * work.tokens + 0.002 * work.decodes

    def prefill_tokens_within(
        self, budget_s, limit, context=0, num_decodes=0, decode_context=0, num_drafted=0
    ):
        left_s = budget_s - self.batch_s - 0.002 * (num_decodes + num_drafted)
        return int(min(limit, max(0.0, left_s / 0.001 + 1e-6)))

    def prefill_s(self, num_tokens):
        return self.predict(self.work(((num_tokens, 0),)))

    def rebuild_s(self, num_tokens):
        return 1e-6 * num_tokens
