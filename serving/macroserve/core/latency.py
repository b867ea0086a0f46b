"""Ascendra's regression of batch time on flops and bytes (section 4.1 and appendix A).

``LatencyModel`` turns a batch into ``Work`` and work into seconds, starting from a prior and
learning from every served batch.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Sequence
from math import ceil, isfinite, log, sqrt
from typing import NamedTuple

import numpy as np

from macroserve.core.shapes import DeviceShape, ModelShape

PRIOR = (0.25, 1.25, 0.0, 0.0, 0.001)
"""C1..C5 before any observation: two thirds of the device's peak, a millisecond per batch."""

PRIOR_DEVIATION = np.array([1.0, 1.0, 1.0, 1.0, 0.005])
"""Standard deviation of each coefficient from its prior, which is needed because the columns are
collinear."""

PRIOR_WEIGHT = 0.01
"""Weight of the prior, in observed batches."""

FORGETTING = 0.995
"""Factor on the weight of older batches per new batch of the same kind: a memory of about 200."""

REFIT_EVERY = 16
SURPRISE_RATE = 0.05
SURPRISE_FLOOR = 0.02
OUTLIER_SURPRISES = 3.0
"""Multiple of the usual surprise above which a batch gets a lower weight."""

FLOOR_S = 1e-5
"""Shortest predicted duration of a batch, seconds."""

FLASH_BLOCK_TOKENS = 128
"""Keys and values that an attention kernel holds at a time; queries are read once per block."""


class Work(NamedTuple):
    """The work of each device for one batch."""

    flops: float
    bytes: float
    """Bytes moved to and from device memory."""
    rebuild_s: float = 0.0
    """Time to rebuild keys and values from hidden states, seconds, if measured."""


class LatencyModel:
    """Predictor of batch times, refined by every batch that it observes.

    A batch takes C1 (M/M_H + F/F_H) + C2 max(M/M_H, F/F_H) + C3 M/M_H + C4 F/F_H + C5 (equation 4).
    The coefficients are never negative, so more work never shortens a prediction.

    coefficients: an earlier model's ``coefficients``, to replace the prior. Raises ValueError
        unless they are five finite numbers, none negative.
    rebuild_s_per_token: measured seconds added to a decode batch per token cached as hidden state
        (Apt-Serve's rho, equation 6). By default, keys and values are assumed to be projected again
        and written once.
    """

    def __init__(
        self,
        model: ModelShape,
        device: DeviceShape,
        coefficients: Sequence[float] | None = None,
        rebuild_s_per_token: float | None = None,
    ) -> None:
        prior = tuple(float(c) for c in (PRIOR if coefficients is None else coefficients))
        if len(prior) != len(PRIOR) or not all(isfinite(c) and c >= 0 for c in prior):
            raise ValueError(f"a latency model has five coefficients, none negative, got {prior}")
        self.model = model
        self.device = device
        self.rebuild_s_per_token = rebuild_s_per_token
        self._coefficients = prior
        ridge = PRIOR_WEIGHT / PRIOR_DEVIATION**2
        self._prior_gram, self._prior_moment = np.diag(ridge), ridge * np.array(prior)
        # Memory-bound and compute-bound batches separately: a long decode phase must not make the
        # model forget the cost of prefills.
        self._moments = (_Moments(), _Moments())
        self._surprise = 1.0
        self._num_observed = 0
        self._error = StepError()
        self._prefills_s: dict[tuple[int, int], float] = {}  # until the next refit

        ranks, layers, element = model.tensor_parallel, model.num_layers, model.dtype_bytes
        self._token_flops = 2 * model.active_parameters / ranks
        self._sample_flops = 2 * model.head_parameters / ranks
        self._pair_flops = 2 * layers * model.pair_size / ranks
        self._latent_flops = 2 * layers * (model.decode_pair_size - model.pair_size) / ranks
        parameters = model.common_parameters + model.head_parameters
        self._common_bytes = parameters * element / ranks
        self._expert_bytes = model.expert_parameters * element / ranks
        experts = model.experts
        self._skip_share = 1 - experts.per_token / experts.num if experts else 1.0
        self._window_tokens = model.window.num_tokens if model.window else 0
        self._window_share = model.window.num_layers / layers if model.window else 0.0
        self._token_bytes = layers * model.layer_activations * element / ranks
        self._kv_bytes = model.kv_bytes_per_token / ranks
        self._rebuild_flops = 2 * layers * model.hidden_size * model.kv_size / ranks
        # Rebuilt keys and values are written once before attention reads them.
        self._rebuild_bytes = layers * model.hidden_size * element + self._kv_bytes
        block_bytes = 3 * layers * model.attention_size * element / ranks
        self._pair_bytes = block_bytes / FLASH_BLOCK_TOKENS

    @property
    def coefficients(self) -> tuple[float, ...]:
        """Return C1..C5; C5 is in seconds, the others have no unit."""
        return self._coefficients

    @property
    def error_factor(self) -> float:
        """Return the recent 90th percentile of measured over predicted time, at least 1."""
        return self._error.factor

    def work(
        self,
        prefills: Iterable[tuple[int, int]] = (),
        num_decodes: int = 0,
        decode_context: int = 0,
        hidden_context: int = 0,
        num_drafted: float = 0.0,
    ) -> Work:
        """Return the work of one batch (equations 8 and 9, extended to grouped-query attention).

        prefills: pairs of prompt tokens to compute in this batch and tokens computed before.
        decode_context: cached tokens of all decodes together.
        hidden_context: those of them cached as hidden states, whose keys and values are recomputed.
        num_drafted: drafted tokens that the decodes verify.

        Weights are read once per batch, which dominates the time of small batches.
        """
        num_tokens = num_samples = num_decodes + num_drafted
        seen = float(decode_context)
        if self._window_share:
            seen = self._attended(seen, num_decodes * self._window_tokens)
        context, pairs, prefill_pairs = seen, _pairs(num_decodes, seen, num_drafted), 0.0
        for tokens, before in prefills:
            keys = float(before + tokens)
            mean_keys = before + 0.5 * tokens
            if self._window_share:
                keys = self._attended(keys, tokens + self._window_tokens)
                mean_keys = self._attended(mean_keys, self._window_tokens)
            num_tokens += tokens
            num_samples += 1
            context += keys
            pairs += tokens * mean_keys
            prefill_pairs += tokens * keys
        if not num_tokens:
            return Work(0.0, 0.0)
        rebuild_s = 0.0
        if self.rebuild_s_per_token is not None:
            rebuild_s, hidden_context = self.rebuild_s_per_token * hidden_context, 0
        return Work(
            self._token_flops * num_tokens
            + self._sample_flops * num_samples
            + self._pair_flops * pairs
            + self._latent_flops * seen
            + self._rebuild_flops * hidden_context,
            self._weights_read(num_tokens)
            + self._token_bytes * num_tokens
            + self._kv_bytes * context
            + self._rebuild_bytes * hidden_context
            + self._pair_bytes * prefill_pairs,
            rebuild_s,
        )

    def _attended(self, num_tokens: float, in_window: float) -> float:
        """Return the mean tokens that a layer attends to, at most ``in_window`` with a window."""
        return num_tokens - self._window_share * max(0.0, num_tokens - in_window)

    def _weights_read(self, num_tokens: float) -> float:
        """Return the bytes of weights that a batch reads: of the experts, those chosen for at least
        one token, assuming that the router chooses each equally often."""
        if not self._expert_bytes:
            return self._common_bytes
        return self._common_bytes + self._expert_bytes * (1 - self._skip_share**num_tokens)

    def predict(self, work: Work) -> float:
        """Return the predicted seconds of a batch; 0 for no work at all."""
        flops, moved, rebuild_s = work
        if not moved:
            return 0.0
        memory_s = moved / self.device.bytes_per_s
        compute_s = flops / self.device.flops_per_s
        c1, c2, c3, c4, c5 = self._coefficients
        bound_s = memory_s if memory_s > compute_s else compute_s
        predicted_s = (c1 + c3) * memory_s + (c1 + c4) * compute_s + c2 * bound_s + c5 + rebuild_s
        return predicted_s if predicted_s > FLOOR_S else FLOOR_S

    def rebuild_s(self, num_tokens: int) -> float:
        """Return the seconds that ``num_tokens`` of hidden states add to a decode batch (rho times
        the tokens; Apt-Serve, equation 6)."""
        if self.rebuild_s_per_token is not None:
            return self.rebuild_s_per_token * num_tokens
        c1, c2, c3, c4, _ = self._coefficients
        compute_s = self._rebuild_flops * num_tokens / self.device.flops_per_s
        memory_s = self._rebuild_bytes * num_tokens / self.device.bytes_per_s
        return (c1 + c2 + c4) * compute_s + (c1 + c3) * memory_s

    def prefill_s(self, num_tokens: int, context: int = 0) -> float:
        """Return the seconds to prefill ``num_tokens`` alone after ``context`` cached tokens."""
        found = self._prefills_s.get((num_tokens, context))
        if found is None:
            found = self.predict(self.work(((num_tokens, context),)))
            self._prefills_s[num_tokens, context] = found
        return found

    def batched_prefill_s(self, num_tokens: int, batch_tokens: int, context: int = 0) -> float:
        """Return a prompt's share of a batch full of such prompts, seconds.

        Short prompts share the reading of weights, which ``prefill_s`` counts for each of them.
        """
        copies = max(1, batch_tokens // num_tokens)
        flops, moved, _ = self.work(((num_tokens, context),))
        own = moved - self._weights_read(num_tokens)
        moved = self._weights_read(copies * num_tokens) + copies * own
        return self.predict(Work(copies * flops, moved)) / copies

    def prefill_tokens_within(
        self,
        budget_s: float,
        limit: int,
        context: int = 0,
        num_decodes: int = 0,
        decode_context: int = 0,
        num_drafted: float = 0.0,
    ) -> int:
        """Return the most prefill tokens, at most ``limit``, that keep a batch within ``budget_s``.

        The tokens follow ``context`` tokens of their prompt and share the batch with the decodes.
        Time is the larger of two quadratics in their number (memory bound, compute bound).
        """
        c1, c2, c3, c4, c5 = self._coefficients
        memory, compute = 1 / self.device.bytes_per_s, 1 / self.device.flops_per_s
        share, window = self._window_share, self._window_tokens
        seen = self._attended(decode_context, num_decodes * window)
        keys = self._attended(context, window)
        # The tokens attend to more and more of their own prompt until the window is full.
        mean_keys = (1 - share) * context + share * min(context + 0.5 * limit, window)
        verified = num_decodes + num_drafted
        flops_0 = (
            self._token_flops * verified
            + self._sample_flops * (verified + 1)
            + self._pair_flops * _pairs(num_decodes, seen, num_drafted)
            + self._latent_flops * seen
        )
        flops_1 = self._token_flops + self._pair_flops * mean_keys
        flops_2 = 0.5 * (1 - share) * self._pair_flops
        bytes_0 = (
            self._weights_read(verified + limit)
            + self._token_bytes * verified
            + self._kv_bytes * (seen + keys)
        )
        bytes_1 = self._token_bytes + self._kv_bytes + self._pair_bytes * keys
        bytes_2 = self._pair_bytes
        most = float(limit)
        for c_memory, c_compute in ((c1 + c2 + c3, c1 + c4), (c1 + c3, c1 + c2 + c4)):
            m, f = c_memory * memory, c_compute * compute
            left_s = budget_s - c5 - m * bytes_0 - f * flops_0
            if left_s <= 0:
                return 0
            linear, square = m * bytes_1 + f * flops_1, m * bytes_2 + f * flops_2
            slope = linear + sqrt(linear * linear + 4 * square * left_s)
            if slope * most > 2 * left_s:
                most = 2 * left_s / slope
        return int(most)

    def observe(self, work: Work, elapsed_s: float) -> None:
        """Learn from a batch that took ``elapsed_s``, unless that is not positive and finite.

        The fit minimizes relative errors of at most 1 and gives outliers a lower weight, so that a
        stall of the machine hardly moves the coefficients.
        """
        elapsed_s -= work.rebuild_s
        if not work.bytes or not (isfinite(elapsed_s) and elapsed_s > 0):
            return
        predicted_s = self.predict(Work(work.flops, work.bytes))
        self._error.observe(predicted_s, elapsed_s)
        surprise = abs(log(elapsed_s / predicted_s))
        usual = max(self._surprise, SURPRISE_FLOOR)
        weight = min(1.0, OUTLIER_SURPRISES * usual / surprise) if surprise else 1.0
        self._surprise += SURPRISE_RATE * (min(surprise, 1.0) - self._surprise)

        memory_s = work.bytes / self.device.bytes_per_s
        compute_s = work.flops / self.device.flops_per_s
        scale_s = max(elapsed_s, predicted_s)
        memory, compute = memory_s / scale_s, compute_s / scale_s
        row = (memory + compute, max(memory, compute), memory, compute, 1 / scale_s)
        self._moments[compute_s > memory_s].add(row, elapsed_s / scale_s, weight)

        self._num_observed += 1
        if self._num_observed < REFIT_EVERY or self._num_observed % REFIT_EVERY == 0:
            self._refit()

    def _refit(self) -> None:
        """Fit the coefficients by ridge regression towards the prior, none below zero."""
        for moments in self._moments:
            moments.fold()
        memory, compute = self._moments
        gram = memory.gram + compute.gram + self._prior_gram
        moment = memory.moment + compute.moment + self._prior_moment
        kept = list(range(len(PRIOR)))
        solution = np.linalg.solve(gram, moment)
        while solution[worst := int(solution.argmin())] < 0:
            del kept[worst]
            solution = np.linalg.solve(gram[np.ix_(kept, kept)], moment[kept])
        coefficients = [0.0] * len(PRIOR)
        for index, value in zip(kept, solution.tolist(), strict=True):
            coefficients[index] = value
        self._coefficients = tuple(coefficients)
        self._prefills_s.clear()


def _pairs(num_decodes: int, context: float, num_drafted: float) -> float:
    """Return the query-key pairs in the attention of decodes."""
    return context * (1 + num_drafted / num_decodes) if num_drafted else context


class _Moments:
    """Sums of a least-squares problem with exponential forgetting; new rows are folded in together,
    which is much cheaper."""

    __slots__ = ("_rows", "_targets", "_weights", "gram", "moment")

    def __init__(self) -> None:
        self.gram = np.zeros((len(PRIOR), len(PRIOR)))
        self.moment = np.zeros(len(PRIOR))
        self._rows: list[tuple[float, ...]] = []
        self._targets: list[float] = []
        self._weights: list[float] = []

    def add(self, row: tuple[float, ...], target: float, weight: float) -> None:
        self._rows.append(row)
        self._targets.append(target)
        self._weights.append(weight)

    def fold(self) -> None:
        if not self._rows:
            return
        rows, num = np.array(self._rows), len(self._rows)
        fading = FORGETTING ** np.arange(num - 1, -1, -1)
        weighted = rows.T * (fading * self._weights)
        self.gram = FORGETTING**num * self.gram + weighted @ rows
        self.moment = FORGETTING**num * self.moment + weighted @ np.array(self._targets)
        self._rows, self._targets, self._weights = [], [], []


# -- the error of predictions

GROUP_BATCHES = 16
"""Batches per group. TPOT is a mean, in which independent errors cancel out but stalls and slow
periods do not. Single batches hide one stall in fifty; groups of 32 show slow periods late."""

NUM_GROUPS = 64
"""Latest groups kept: about a thousand batches, or a minute."""

FEWEST_GROUPS = 10
"""Minimum groups for an error above 1, so that a single stall does not count."""

ERROR_QUANTILE = 0.9

MAX_ERROR_FACTOR = 2.0
"""Beyond this, prompts would wait for a pace that the machine never reaches."""


class StepError:
    """Recent ratio of measured to predicted time, as a quantile over groups of batches."""

    def __init__(self) -> None:
        self.factor = 1.0
        """The quantile, from 1 (predictions are exact or too long) to ``MAX_ERROR_FACTOR``."""
        self._num_batches = 0
        self._predicted_s = 0.0
        self._elapsed_s = 0.0
        self._ratios: deque[float] = deque()
        self._sorted: list[float] = []

    def observe(self, predicted_s: float, elapsed_s: float) -> None:
        """Add a batch; times that are not positive and finite are ignored."""
        if not (isfinite(predicted_s) and isfinite(elapsed_s) and min(predicted_s, elapsed_s) > 0):
            return
        self._num_batches += 1
        self._predicted_s += predicted_s
        self._elapsed_s += elapsed_s
        if self._num_batches == GROUP_BATCHES:
            self._add(self._elapsed_s / self._predicted_s)
            self._num_batches, self._predicted_s, self._elapsed_s = 0, 0.0, 0.0

    def _add(self, ratio: float) -> None:
        if len(self._ratios) == NUM_GROUPS:
            del self._sorted[bisect_left(self._sorted, self._ratios.popleft())]
        self._ratios.append(ratio)
        insort(self._sorted, ratio)
        num = len(self._sorted)
        if num >= FEWEST_GROUPS:
            self.factor = min(
                max(1.0, self._sorted[ceil(ERROR_QUANTILE * num) - 1]), MAX_ERROR_FACTOR
            )
