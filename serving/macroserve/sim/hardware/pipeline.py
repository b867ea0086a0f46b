"""Step time of a pipeline: groups of devices hold successive layers, through which a batch runs in
micro-batches."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from macroserve.core.scheduler.rounds import decode_share, piece_tokens
from macroserve.sim.hardware.links import Link
from macroserve.sim.hardware.step_time import StepTime


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages that work on one micro-batch each: a batch's decodes are divided evenly between them,
    its prompts into successive pieces."""

    step_time: StepTime
    """Time of all layers on the devices of one stage, which has an equal share of them."""
    num_stages: int
    link: Link
    """Link between stages."""
    hidden_bytes: int
    """Bytes of one token's hidden state, which stages send to each other."""

    def stage_s(
        self,
        prefills: Sequence[tuple[int, int]],
        num_decodes: int,
        decode_context: int,
        hidden_context: int = 0,
    ) -> float:
        """Return the seconds for which the longest micro-batch occupies each stage; arguments as
        for ``core.latency.LatencyModel.work``."""
        stages, longest_s = self.num_stages, 0.0
        # Pieces of a prompt differ in their context; decodes are alike.
        share = decode_share(num_decodes, stages)
        context, hidden = decode_context, hidden_context
        if num_decodes:
            context, hidden = (round(c * share / num_decodes) for c in (context, hidden))
        for part in self._parts(prefills):
            sent = share + sum([tokens for tokens, _ in part])
            pass_s = self.step_time.seconds(part, share, context, hidden)
            send_s = self.link.latency_s + sent * self.hidden_bytes / self.link.bytes_per_s
            longest_s = max(longest_s, pass_s / stages + send_s)
        return longest_s

    def seconds(
        self,
        prefills: Sequence[tuple[int, int]],
        num_decodes: int,
        decode_context: int,
        hidden_context: int = 0,
    ) -> float:
        """Return the seconds from a batch to the next one like it: decodes return to the first
        stage after the last one, while prompts alone only pass the first."""
        stage_s = self.stage_s(prefills, num_decodes, decode_context, hidden_context)
        return stage_s * (self.num_stages if num_decodes else len(self._parts(prefills)))

    def _parts(self, prefills: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
        """Return the prompts of each micro-batch with any; at least one list."""
        num_tokens = sum([tokens for tokens, _ in prefills])
        return cut(prefills, piece_tokens(num_tokens, self.num_stages)) or [[]]


def cut(prefills: Iterable[tuple[int, int]], size: int) -> list[list[tuple[int, int]]]:
    """Return the prompts' tokens in runs of ``size``: pieces with the tokens before each."""
    parts: list[list[tuple[int, int]]] = []
    room = 0
    for tokens, before in prefills:
        while tokens:
            if not room:
                parts.append([])
                room = size
            taken = min(tokens, room)
            parts[-1].append((taken, before))
            tokens, before, room = tokens - taken, before + taken, room - taken
    return parts
