"""Plan of a fleet: decisions and the next actions from current to desired instances.

``plan_actions`` is level-triggered: it compares the current with the desired fleet and keeps no
state between reconciles. Actions are small and idempotent, and the next reconcile continues from
whatever they left, so an executor may die between any two. ``macroserve up`` applies them to local
processes, the operator to pods.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from macroserve.core.scaling.decisions import Cell, Decision, Remove, apply, in_order
from macroserve.core.scaling.mitosis import Bounds, plan
from macroserve.core.status import Pool


@dataclass(frozen=True, slots=True)
class DesiredFleet:
    desired_instances: int
    bounds: Bounds
    high_priority_ratio: float
    """Share of each cell in the HP pool, 0 for strategies without pools."""


class MemberState(StrEnum):
    STARTING = "starting"
    """Has not generated its first token, or is unreachable for cells at the moment."""
    SERVING = "serving"
    """Has generated a token; a cell may adopt it."""
    FAILED = "failed"
    """Has ended or cannot start where it is; must be replaced."""
    LEAVING = "leaving"
    """Is being stopped, with its name still in use."""


@dataclass(frozen=True, slots=True)
class Member:
    """One instance of the fleet."""

    name: str
    state: MemberState
    pool: Pool
    cell: str
    """Cell that holds its handle (``joined``), else the cell it is assigned to."""
    joined: bool = False
    """Whether a cell holds its handle."""
    draining: bool = False
    drained: bool = False
    """Whether no request is left on it, or its drain budget is used up."""
    outdated: bool = False
    """Whether it was built from an earlier revision of the manifest."""
    started: bool = False
    """Whether its process has generated a token, even if it is unreachable at the moment."""
    remaining_tokens: int = 0
    """Predicted output tokens of its unfinished requests."""
    failure: str = "It has failed."
    """Reason for FAILED, a sentence."""

    @property
    def serves(self) -> bool:
        """Return whether it may have requests, like a joined member that does not answer."""
        return self.state is MemberState.SERVING or (
            self.state is MemberState.STARTING and self.joined
        )

    @property
    def stays(self) -> bool:
        """Return whether it counts towards the desired number. An outdated one does once started,
        even if no cell holds it, as after a restart of the head."""
        is_obsolete = self.outdated and not (self.serves or self.started)
        return self.state in (MemberState.STARTING, MemberState.SERVING) and not (
            self.draining or is_obsolete
        )


@dataclass(frozen=True, slots=True)
class Fleet:
    """The observed state that a plan starts from."""

    members: tuple[Member, ...] = ()
    cells: frozenset[str] | None = frozenset()
    """Cells whose schedulers run; None while not all of them can be asked."""
    outdated_ingresses: bool = False
    """Whether ingresses of an earlier revision run, which may reach outdated instances only, for
    example while TLS is being switched on."""


@dataclass(frozen=True, slots=True)
class DeployCell:
    """Start a cell's scheduler and wait until it answers."""

    cell: str


@dataclass(frozen=True, slots=True)
class Start:
    """Start an instance that joins the cell once it serves."""

    instance: str
    cell: str
    pool: Pool


@dataclass(frozen=True, slots=True)
class Relabel:
    """Record another cell or pool for an instance that has joined none yet."""

    instance: str
    cell: str
    pool: Pool


@dataclass(frozen=True, slots=True)
class Attach:
    """Hand an instance's handle to a cell."""

    instance: str
    cell: str


@dataclass(frozen=True, slots=True)
class Migrate:
    """Release an instance's handle, reissue it with a role, and have a cell (possibly the same)
    adopt it. The instance's streams continue."""

    instance: str
    to_cell: str
    as_pool: Pool


@dataclass(frozen=True, slots=True)
class Drain:
    """Take an instance out of its cell's rotation; the instance finishes its requests."""

    instance: str
    cell: str
    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Take an instance out of its cell, if any, and end it."""

    instance: str
    reason: str


@dataclass(frozen=True, slots=True)
class DeleteCell:
    """End the scheduler of a cell that has no members."""

    cell: str


Action = DeployCell | Start | Relabel | Attach | Migrate | Drain | Stop | DeleteCell


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """Decisions with their reasons, and the actions to apply now, in order."""

    decisions: tuple[Decision, ...]
    actions: tuple[Action, ...]


def plan_actions(fleet: Fleet, desired: DesiredFleet) -> FleetPlan:
    """Return the plan, without actions if the fleet is as desired or the next step must wait.

    While the cells cannot be asked, serving instances are left alone. Raises ValueError like
    ``mitosis.plan``.
    """
    staying = [member for member in fleet.members if member.stays]
    before = _cells(staying)
    decisions = plan(
        before,
        desired.desired_instances + _surge(staying, desired),
        desired.bounds,
        desired.high_priority_ratio,
        {m.name: m.remaining_tokens for m in staying if m.serves},
        [member.name for member in fleet.members if not member.stays],
    )
    after = before
    turns: dict[str, int] = {}
    for turn, decision in enumerate(decisions):
        was = _places(after)
        after = apply(after, decision)
        for name, _ in _places(after).items() - was.items():
            turns.setdefault(name, turn)
    removed = {c.instance: c.reason for c in decisions if isinstance(c, Remove)}
    actions = _Actions(fleet, after, turns, removed)
    rollout = () if decisions else _rollout(fleet)
    return FleetPlan(decisions, (*actions, *rollout))


def _cells(members: list[Member]) -> tuple[Cell, ...]:
    cells: dict[str, Cell] = {}
    for member in members:
        cell = cells.get(member.cell, Cell(member.cell))
        cell = replace(cell, instances=(*cell.instances, member.name))
        cells[member.cell] = cell.with_pool(member.name, member.pool)
    return in_order(cells.values())


def _places(cells: tuple[Cell, ...]) -> dict[str, tuple[str, Pool]]:
    return {
        name: (cell.name, Pool.HP if name in cell.high_priority else Pool.LP)
        for cell in cells
        for name in cell.instances
    }


def _surge(staying: list[Member], desired: DesiredFleet) -> int:
    """Return 1 extra instance while a single outdated one is replaced, else 0: among several, one
    may be missing, so that a rollout needs no spare device."""
    return int(desired.desired_instances == 1 and any(member.outdated for member in staying))


def _rollout(fleet: Fleet) -> Iterator[Action]:
    """Yield the action that replaces the next outdated instance: one at a time, while all others
    serve.

    Unreachable ones go first, without waiting for each other, as they may never answer again. An
    instance finishes its requests before it ends. The last outdated one stays as long as outdated
    ingresses, which may have no other.
    """
    outdated = [m for m in fleet.members if m.stays and m.outdated]
    if fleet.cells is None or len(outdated) <= fleet.outdated_ingresses:
        return
    victim = min(outdated, key=lambda m: (m.state is MemberState.SERVING, m.remaining_tokens))
    others = [member for member in fleet.members if member is not victim]
    if victim.state is MemberState.STARTING:
        others = [m for m in others if not (m in outdated and m.state is MemberState.STARTING)]
    if not all(m.stays and m.joined and m.state is MemberState.SERVING for m in others):
        return
    reason = "An instance of the current revision replaces it."
    if victim.joined:
        yield Drain(victim.name, victim.cell, reason)
    elif victim.state is MemberState.STARTING:
        yield Stop(victim.name, reason)


@dataclass(frozen=True, slots=True)
class _Actions:
    """The actions from a fleet to the cells ``after``.

    Cells split and merge by size, so after any prefix of the actions the next plan must continue
    without going back: first comes the desired number of instances, then the cell and pool of each
    in the order of the decisions.
    """

    fleet: Fleet
    after: tuple[Cell, ...]
    turns: dict[str, int]
    """Index of the first decision that changes an instance's cell or pool, by instance."""
    removed: dict[str, str]
    """Reason for a removal, by instance."""

    def __iter__(self) -> Iterator[Action]:
        yield from self._start()
        yield from self._remove()
        yield from self._begin_cells()
        yield from self._place()
        yield from self._end_cells()

    def _start(self) -> Iterator[Action]:
        there = {member.name for member in self.fleet.members}
        for name, (cell, pool) in _places(self.after).items():
            if name not in there:
                yield Start(name, cell, pool)

    def _remove(self) -> Iterator[Action]:
        for member in self.fleet.members:
            if member.state is MemberState.FAILED:
                yield Stop(member.name, member.failure)
            elif member.state is MemberState.STARTING and not (member.joined or member.stays):
                yield Stop(member.name, "It does not serve yet and is no longer needed.")
            elif member.draining and member.drained and member.serves:
                yield Stop(member.name, "It has drained.")
            elif member.name not in self.removed or self._is_out_of_reach(member):
                continue
            elif member.joined:
                yield Drain(member.name, member.cell, self.removed[member.name])
            else:
                yield Stop(member.name, self.removed[member.name])

    def _begin_cells(self) -> Iterator[Action]:
        running = self.fleet.cells
        for cell in self.after:
            if running is not None and cell.name not in running:
                yield DeployCell(cell.name)

    def _place(self) -> Iterator[Action]:
        places = _places(self.after)
        for member in sorted(self.fleet.members, key=lambda m: self.turns.get(m.name, -1)):
            if member.name not in places or self._is_out_of_reach(member):
                continue
            cell, pool = places[member.name]
            if not member.joined and (member.cell, member.pool) != (cell, pool):
                yield Relabel(member.name, cell, pool)
            if member.serves and not member.joined:
                yield Attach(member.name, cell)
            if member.joined and (member.cell, member.pool) != (cell, pool):
                yield Migrate(member.name, cell, pool)

    def _end_cells(self) -> Iterator[Action]:
        places = _places(self.after)
        remaining = {cell.name for cell in self.after}
        # A scheduler stays until its members without a new place, such as draining ones, are gone.
        occupied = {m.cell for m in self.fleet.members if m.joined and m.name not in places}
        for name in sorted((self.fleet.cells or frozenset()) - remaining - occupied):
            yield DeleteCell(name)

    def _is_out_of_reach(self, member: Member) -> bool:
        """Return whether the member serves while its cell is unknown."""
        return self.fleet.cells is None and member.serves


MIN_BUDGET_S = 30.0
MAX_BUDGET_S = 15 * 60.0
GENEROSITY = 4.0
"""Factor on the mean remaining time: lengths are predictions, and the longest exceeds the mean."""


def drain_budget_s(remaining_tokens: int, num_running: int, tpot_s: float) -> float:
    """Return the seconds from the start of a drain until remaining requests move to other
    instances.

    remaining_tokens: predicted output tokens of the ``num_running`` requests, each of which gets
        one token every ``tpot_s``, the latency target.
    """
    mean_s = remaining_tokens / max(1, num_running) * tpot_s
    return min(MAX_BUDGET_S, MIN_BUDGET_S + GENEROSITY * mean_s)
