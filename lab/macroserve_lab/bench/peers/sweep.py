"""The order of a sweep: points in deployments in rounds."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from random import Random

from macroserve_lab.bench.peers.journal import PointKey


@dataclass(frozen=True, slots=True)
class Turn:
    """One deployment in one round, with its points."""

    round: int
    deployment: str
    points: tuple[PointKey, ...]


@dataclass(frozen=True, slots=True)
class Sweep:
    """All rates of all loads, for all deployments, in all rounds.

    The order is shuffled by seed and round, so that slow minutes of the machine affect all
    deployments.
    """

    rounds: int
    deployments: Sequence[str]
    rates: Mapping[str, Sequence[float]]
    """Rates by load, requests per second."""
    seed: int

    def turns(self, done: Set[PointKey] = frozenset()) -> Iterator[Turn]:
        """Yield the turns with points that are not done, in order."""
        for round_ in range(self.rounds):
            random = Random(f"{self.seed}/{round_}")
            order = random.sample(sorted(self.deployments), len(self.deployments))
            for deployment in order:
                points = [
                    PointKey(round_, deployment, load, rate)
                    for load in sorted(self.rates)
                    for rate in sorted(self.rates[load])
                ]
                random.shuffle(points)
                if missing := tuple(point for point in points if point not in done):
                    yield Turn(round_, deployment, missing)

    @property
    def num_points(self) -> int:
        return self.rounds * len(self.deployments) * sum(map(len, self.rates.values()))

    def num_done(self, done: Set[PointKey]) -> int:
        """Return the number of the sweep's points in ``done``, which may have others."""
        return self.num_points - sum(len(turn.points) for turn in self.turns(done))

    def seed_of(self, point: PointKey) -> int:
        """Return the seed of a point's requests, equal for all deployments and different between
        points, so that no prefix cache is warm from another one."""
        return Random(f"{self.seed}/{point.round}/{point.load}/{point.rate:g}").getrandbits(32)
