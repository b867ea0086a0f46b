"""How long a batch takes: Ascendra's regression on the flops and bytes of the batch.

``LatencyModel`` turns a batch into ``Work`` and work into seconds. It starts from a prior and
learns from every batch that was served (Ascendra, section 4.1 and appendix A).
"""

from collections.abc import Iterable, Sequence
from math import isfinite, log, sqrt
from typing import NamedTuple

import numpy as np

from macroserve.core.shapes import DeviceShape, ModelShape

PRIOR = (0.25, 1.25, 0.0, 0.0, 0.001)
"""C1..C5 before anything was observed: two thirds of the device's peak, a millisecond a batch."""

PRIOR_DEVIATION = np.array([1.0, 1.0, 1.0, 1.0, 0.005])
"""How far each coefficient may be from its prior; the columns are collinear, so it must be said."""

PRIOR_WEIGHT = 0.01
"""The prior counts as this much of an observed batch."""

FORGETTING = 0.995
"""Weight of an observed batch after one more of its kind: some 200 batches are remembered."""

REFIT_EVERY = 16
SURPRISE_RATE = 0.05
SURPRISE_FLOOR = 0.02
OUTLIER_SURPRISES = 3.0
"""A batch this many times more surprising than the usual one counts for less."""

FLOOR_S = 1e-5
"""No batch is predicted to take less."""

FLASH_BLOCK_TOKENS = 128
"""Keys and values that an attention kernel holds at a time; queries are read once for each."""


class Work(NamedTuple):
    """What each device has to do for one batch. rebuild_s: beside that, to make keys and values
    again, where it was measured how long that takes."""

    flops: float
    bytes: float
    rebuild_s: float = 0.0


class LatencyModel:
    """t = C1 (M/M_H + F/F_H) + C2 max(M/M_H, F/F_H) + C3 M/M_H + C4 F/F_H + C5 (equation 4).

    The coefficients are kept non-negative, so a prediction never falls when work is added.
    coefficients: five numbers from an earlier model's ``coefficients``, to start from instead of
    the prior. Raises ValueError unless they are finite and not negative.
    rebuild_s_per_token: by how much each token of which the hidden state is kept makes a decode
    batch longer, as measured (Apt-Serve's rho, equation 6). Until it is, keys and values are taken
    to be projected again and written once.
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
        # Memory-bound and compute-bound batches are remembered apart: a long decode phase must
        # not make the model forget what prefills cost.
        self._moments = (_Moments(), _Moments())
        self._surprise = 1.0
        self._num_observed = 0
        # What is asked for again and again until the next refit.
        self._prefills_s: dict[tuple[int, int], float] = {}

        ranks, layers, element = model.tensor_parallel, model.num_layers, model.dtype_bytes
        self._token_flops = 2 * layers * model.layer_parameters / ranks
        self._sample_flops = 2 * model.head_parameters / ranks
        self._pair_flops = 4 * layers * model.attention_size / ranks
        parameters = layers * model.layer_parameters + model.head_parameters
        self._weight_bytes = parameters * element / ranks
        self._token_bytes = layers * model.layer_activations * element / ranks
        self._kv_bytes = model.kv_bytes_per_token / ranks
        self._rebuild_flops = 2 * layers * model.hidden_size * model.kv_size / ranks
        # Keys and values are written once more before attention reads them.
        self._rebuild_bytes = layers * model.hidden_size * element + self._kv_bytes
        block_bytes = 3 * layers * model.attention_size * element / ranks
        self._pair_bytes = block_bytes / FLASH_BLOCK_TOKENS

    @property
    def coefficients(self) -> tuple[float, ...]:
        """C1..C5; C5 in seconds, the others without unit."""
        return self._coefficients

    def work(
        self,
        prefills: Iterable[tuple[int, int]] = (),
        num_decodes: int = 0,
        decode_context: int = 0,
        hidden_context: int = 0,
    ) -> Work:
        """The work of one batch (equations 8 and 9, grouped-query attention included).

        prefills: for each, the prompt tokens computed in this batch and those computed before.
        decode_context: tokens in the cache of all decodes together. hidden_context: those of them
            of which only the hidden state is kept, so that keys and values are computed again.
        Weights are read once whatever the batch: the floor under small batches.
        """
        num_tokens, num_samples = num_decodes, num_decodes
        context, pairs, prefill_pairs = decode_context, float(decode_context), 0
        for tokens, before in prefills:
            keys = before + tokens
            num_tokens += tokens
            num_samples += 1
            context += keys
            pairs += tokens * (before + 0.5 * tokens)
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
            + self._rebuild_flops * hidden_context,
            self._weight_bytes
            + self._token_bytes * num_tokens
            + self._kv_bytes * context
            + self._rebuild_bytes * hidden_context
            + self._pair_bytes * prefill_pairs,
            rebuild_s,
        )

    def predict(self, work: Work) -> float:
        """Seconds that a batch takes; 0 for no work at all."""
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
        """Seconds that a decode batch takes longer where so many tokens of its context are hidden
        states: Apt-Serve's rho (equation 6), times the tokens."""
        if self.rebuild_s_per_token is not None:
            return self.rebuild_s_per_token * num_tokens
        c1, c2, c3, c4, _ = self._coefficients
        compute_s = self._rebuild_flops * num_tokens / self.device.flops_per_s
        memory_s = self._rebuild_bytes * num_tokens / self.device.bytes_per_s
        return (c1 + c2 + c4) * compute_s + (c1 + c3) * memory_s

    def prefill_s(self, num_tokens: int, context: int = 0) -> float:
        """Seconds to prefill ``num_tokens`` alone, after ``context`` tokens of the same prompt."""
        found = self._prefills_s.get((num_tokens, context))
        if found is None:
            found = self.predict(self.work(((num_tokens, context),)))
            self._prefills_s[num_tokens, context] = found
        return found

    def batched_prefill_s(self, num_tokens: int, batch_tokens: int) -> float:
        """Its share, in seconds, of a batch filled with prompts like it.

        Many short prompts read the weights together; ``prefill_s`` would count that for each.
        """
        copies = max(1, batch_tokens // num_tokens)
        flops, moved, _ = self.work(((num_tokens, 0),))
        moved = self._weight_bytes + copies * (moved - self._weight_bytes)
        return self.predict(Work(copies * flops, moved)) / copies

    def prefill_tokens_within(
        self,
        budget_s: float,
        limit: int,
        context: int = 0,
        num_decodes: int = 0,
        decode_context: int = 0,
    ) -> int:
        """The most prefill tokens, at most ``limit``, that keep a batch within ``budget_s``.

        They follow ``context`` tokens of their own prompt and share the batch with the decodes.
        Time is the larger of two quadratics in their number (memory bound, compute bound).
        """
        c1, c2, c3, c4, c5 = self._coefficients
        memory, compute = 1 / self.device.bytes_per_s, 1 / self.device.flops_per_s
        flops_0 = (
            self._token_flops * num_decodes
            + self._sample_flops * (num_decodes + 1)
            + self._pair_flops * decode_context
        )
        flops_1 = self._token_flops + self._pair_flops * context
        flops_2 = 0.5 * self._pair_flops
        bytes_0 = (
            self._weight_bytes
            + self._token_bytes * num_decodes
            + self._kv_bytes * (decode_context + context)
        )
        bytes_1 = self._token_bytes + self._kv_bytes + self._pair_bytes * context
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
        """Learn from a batch that took ``elapsed_s``; times that are no times are ignored.

        Relative errors are fitted, each at most 1, and surprising batches count for less, so
        that a stall of the machine moves the coefficients little.
        """
        elapsed_s -= work.rebuild_s
        if not work.bytes or not (isfinite(elapsed_s) and elapsed_s > 0):
            return
        predicted_s = self.predict(Work(work.flops, work.bytes))
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
        """Ridge regression towards the prior; coefficients that come out negative are zero."""
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


class _Moments:
    """Sums of a least-squares problem in which older rows fade; new rows are folded in together,
    for that is much cheaper."""

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
