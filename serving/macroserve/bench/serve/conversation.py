"""The requests of one conversation, each of which goes on from the response before it."""

from dataclasses import replace

from macroserve.bench.serve.payload import PayloadMaker, Text
from macroserve.bench.serve.record import Failure, RequestRecord
from macroserve.bench.serve.stream import StreamMeter
from macroserve.workload.arrivals import Arrival

NO_TOKEN_IDS = (
    "the response has no token_ids, and so the next prompt cannot hold it: take --endpoint chat"
)


class Conversation:
    """The conversation makes the prompt of each turn from all that came before, with the responses
    as they came. A single request is a conversation of one turn.

    number: number of its first request in the plan.
    max_model_len: longest context of the model in tokens; None where the endpoint does not tell it.
    arrival: the next turn to send; at first, the request of the plan.
    goes_on: whether there is a next turn.
    """

    def __init__(
        self,
        payloads: PayloadMaker,
        number: int,
        arrival: Arrival,
        max_model_len: int | None = None,
    ) -> None:
        self.number = number
        self.arrival = arrival
        self.goes_on = True
        self._payloads = payloads
        self._max_model_len = max_model_len
        self._turn = 0
        self._said: list[Text] = [payloads.prompt(number, arrival)]
        """Messages and responses in turn; the last one is the next turn's message."""

    def body(self) -> bytes:
        """Return the JSON body of the next turn."""
        return self._payloads.encode(
            self._said, self.arrival.num_output_tokens, goes_on=bool(self.arrival.turns)
        )

    def take(self, record: RequestRecord, meter: StreamMeter) -> RequestRecord:
        """Take in the response to the turn that was sent; return its record with what it means for
        the conversation."""
        self.goes_on = False
        turns, record = self.arrival.turns, replace(record, turn=self._turn)
        if not turns or record.failure is Failure.INTERRUPTED:
            return record
        response = meter.text if isinstance(self._said[0], str) else meter.token_ids
        if record.failure is None and isinstance(response, list) and not response:
            record = replace(record, failure=Failure.MALFORMED, detail=NO_TOKEN_IDS)
        following = self.arrival.next_turn(
            record.ended_s, record.num_prompt_tokens + record.num_tokens
        )
        num_tokens = following.num_prompt_tokens + following.num_output_tokens
        is_too_long = self._max_model_len is not None and num_tokens > self._max_model_len
        if record.failure is not None or is_too_long:
            return replace(record, num_unsent=len(turns))
        self._turn += 1
        message = self._payloads.message(self.number, self._turn, turns[0])
        self._said += [response, message]
        self.arrival, self.goes_on = following, True
        return record
