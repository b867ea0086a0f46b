"""Chats of several turns: each prompt is the previous prompt, its answer and new words.

Turns are planned open loop, so that every deployment gets the same requests: a turn is sent at its
time, or right after the previous answer if that is later. Some chats began before the run, with a
history of words, so that the rate is steady from the first second on.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple, Self

from macroserve.bench.serve.client import LoadClient
from macroserve.bench.serve.payload import WORDS, Endpoint, encode_body
from macroserve.bench.serve.record import RequestRecord
from macroserve.bench.serve.stream import StreamMeter
from macroserve.workload.arrivals import Arrival, gamma_gaps

TOKENS_PER_WORD = 2
"""Mean tokens of a word in the tiny model's vocabulary."""


class Turn(NamedTuple):
    """One request of a chat."""

    at_s: float
    """Seconds since the start of the run; negative before it."""
    words: str
    """The user's message."""
    num_output_tokens: int


Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Chat:
    """Messages from before the run, and turns to send."""

    history: tuple[Message, ...]
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class ChatLoad:
    """Chats that begin as a Poisson process, with numbers uniformly drawn from ranges."""

    name: str
    rates: Sequence[float]
    num_turns: tuple[int, int]
    """Range of turns of a chat."""
    num_first_words: tuple[int, int]
    """Range of words of a user's first message."""
    num_words: tuple[int, int]
    """Range of words of each message after it."""
    num_output_tokens: tuple[int, int] = (16, 64)
    """Range of tokens of an answer."""
    gap_s: tuple[float, float] = (3.0, 7.0)
    """Range of seconds between a chat's turns."""

    def stretched(self, scale: float) -> Self:
        """Return the load with gaps for engines whose times are stretched by ``scale``."""
        return replace(self, gap_s=(scale * self.gap_s[0], scale * self.gap_s[1]))

    def plan(self, rate: float, duration_s: float, seed: int) -> list[Chat]:
        """Return the chats with a turn within ``duration_s``, at ``rate`` turns per second."""
        random = Random(seed)
        gap_s = gamma_gaps(rate / (sum(self.num_turns) / 2), 1.0, random.gammavariate)
        longest_s = self.num_turns[1] * self.gap_s[1]
        start_s, chats = gap_s() - longest_s, list[Chat]()
        while start_s < duration_s:
            turns = self._turns(start_s, random)
            sent = tuple(turn for turn in turns if 0 <= turn.at_s < duration_s)
            if sent:
                before = [turn for turn in turns if turn.at_s < 0]
                history = (message for turn in before for message in _messages(turn, random))
                chats.append(Chat(tuple(history), sent))
            start_s += gap_s()
        return chats

    async def run(
        self, client: LoadClient, model: str, rate: float, duration_s: float, seed: int
    ) -> list[RequestRecord]:
        chats = self.plan(rate, duration_s, seed)
        start = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_run_chat(client, model, chat, start)) for chat in chats]
        return sorted((r for task in tasks for r in task.result()), key=lambda r: r.scheduled_s)

    def _turns(self, start_s: float, random: Random) -> list[Turn]:
        turns: list[Turn] = []
        for _ in range(random.randint(*self.num_turns)):
            num_words = self.num_words if turns else self.num_first_words
            words = " ".join(random.choices(WORDS, k=random.randint(*num_words)))
            turns.append(Turn(start_s, words, random.randint(*self.num_output_tokens)))
            start_s += random.uniform(*self.gap_s)
        return turns


CHATS = ChatLoad("chats", (5.0, 7.0, 8.5, 10.0, 12.0), (2, 6), (10, 60), (10, 60))
LONG_CHATS = ChatLoad("long_chats", (0.8, 1.2, 1.8, 2.4), (2, 4), (450, 550), (20, 60))
"""Chats about a text of 900 to 1,200 tokens, which grow to at most 1,950 of the model's 2,048."""

WHOLE_CHATS = ChatLoad("chats", (), (2, 6), (20, 200), (20, 100), (50, 400), (10.0, 40.0))
WHOLE_LONG_CHATS = ChatLoad(
    "long_chats", (), (2, 5), (2000, 4000), (20, 100), (50, 400), (10.0, 40.0)
)
"""Chats for models of any length, the long ones about a text of 4,000 to 8,000 tokens."""


async def _run_chat(
    client: LoadClient, model: str, chat: Chat, start: float
) -> list[RequestRecord]:
    clock = asyncio.get_running_loop().time
    messages = list(chat.history)
    num_tokens = sum(_num_tokens(message["content"]) for message in messages)
    records: list[RequestRecord] = []
    for turn in chat.turns:
        messages.append({"role": "user", "content": turn.words})
        body = encode_body(model, {"messages": messages}, turn.num_output_tokens)
        at_s = max(turn.at_s, clock() - start)
        await asyncio.sleep(start + at_s - clock())
        meter = StreamMeter(keeps_answer=True)
        num_tokens += _num_tokens(turn.words)
        planned = Arrival(at_s, num_tokens, turn.num_output_tokens)
        path = Endpoint.CHAT.path
        records.append(await client.exchange(path, len(records), planned, body, start, meter))
        messages.append({"role": "assistant", "content": meter.text})
        num_tokens += turn.num_output_tokens
    return records


def _messages(turn: Turn, random: Random) -> tuple[Message, Message]:
    num_words = round(turn.num_output_tokens / TOKENS_PER_WORD)
    answer = " ".join(random.choices(WORDS, k=num_words))
    return {"role": "user", "content": turn.words}, {"role": "assistant", "content": answer}


def _num_tokens(words: str) -> int:
    return TOKENS_PER_WORD * len(words.split())
