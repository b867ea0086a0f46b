"""Decisions that change cells, and their effect as ``apply`` defines it.

Plans look ahead with ``apply``; the operator and the simulator carry out the same effects.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import assert_never

from macroserve.core.status import CellView, Pool, by_number


@dataclass(frozen=True, slots=True)
class Cell:
    """Members of a cell."""

    name: str
    instances: tuple[str, ...] = ()
    high_priority: tuple[str, ...] = ()
    """Names among ``instances`` in the HP pool."""

    def __post_init__(self) -> None:
        assert len(set(self.instances)) == len(self.instances), self
        assert set(self.high_priority) <= set(self.instances), self

    @staticmethod
    def of(view: CellView) -> "Cell":
        return Cell(view.name, view.instances, view.high_priority)

    @property
    def size(self) -> int:
        return len(self.instances)

    @property
    def low_priority(self) -> tuple[str, ...]:
        return tuple(name for name in self.instances if name not in self.high_priority)

    def with_pool(self, instance: str, pool: Pool) -> "Cell":
        others = tuple(name for name in self.high_priority if name != instance)
        return replace(self, high_priority=(*others, instance) if pool is Pool.HP else others)

    def without(self, instances: Iterable[str]) -> "Cell":
        gone = set(instances)
        return Cell(
            self.name,
            tuple(name for name in self.instances if name not in gone),
            tuple(name for name in self.high_priority if name not in gone),
        )

    def joined_by(self, other: "Cell") -> "Cell":
        return Cell(
            self.name,
            (*self.instances, *other.instances),
            (*self.high_priority, *other.high_priority),
        )


@dataclass(frozen=True, slots=True)
class Add:
    """Start a named instance in a cell, which is created if it does not exist."""

    cell: str
    instance: str
    pool: Pool
    reason: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Take an instance out of its cell's rotation, drain it, stop it."""

    cell: str
    instance: str
    reason: str


@dataclass(frozen=True, slots=True)
class Split:
    """Migrate running instances of a cell to another, which is created if it does not exist."""

    cell: str
    new_cell: str
    instances: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Merge:
    """Migrate all running instances of ``source`` to ``into`` and delete ``source``."""

    source: str
    into: str
    reason: str


@dataclass(frozen=True, slots=True)
class SetPool:
    instance: str
    pool: Pool
    reason: str


Decision = Add | Remove | Split | Merge | SetPool


def apply(cells: Iterable[Cell], decision: Decision) -> tuple[Cell, ...]:
    """Return the cells after a decision, sorted by name; assert that the decision fits them."""
    by_name = {cell.name: cell for cell in cells}
    match decision:
        case Add():
            cell = by_name.get(decision.cell) or Cell(decision.cell)
            cell = replace(cell, instances=(*cell.instances, decision.instance))
            by_name[cell.name] = cell.with_pool(decision.instance, decision.pool)
        case Remove():
            cell = by_name[decision.cell]
            assert decision.instance in cell.instances, decision
            by_name[cell.name] = cell.without([decision.instance])
        case Split():
            cell = by_name[decision.cell]
            moved = set(decision.instances)
            assert moved < set(cell.instances) and decision.new_cell != cell.name, decision
            stays = cell.without(moved)
            other = by_name.get(decision.new_cell) or Cell(decision.new_cell)
            by_name[cell.name] = stays
            by_name[other.name] = other.joined_by(cell.without(stays.instances))
        case Merge():
            source = by_name.pop(decision.source)
            by_name[decision.into] = by_name[decision.into].joined_by(source)
        case SetPool():
            cell = next(cell for cell in by_name.values() if decision.instance in cell.instances)
            by_name[cell.name] = cell.with_pool(decision.instance, decision.pool)
        case _:
            assert_never(decision)
    return in_order(by_name.values())


def describe(decision: Decision) -> str:
    """Return a description such as ``Merge cell-1 into cell-0``, without a full stop."""
    match decision:
        case Add(cell=cell, instance=name, pool=pool):
            return f"Add {name} ({pool.label}) to {cell}"
        case Remove(cell=cell, instance=name):
            return f"Remove {name} from {cell}"
        case Split(cell=cell, new_cell=new_cell, instances=instances):
            return f"Split {cell}: {', '.join(instances)} to {new_cell}"
        case Merge(source=source, into=into):
            return f"Merge {source} into {into}"
        case SetPool(instance=name, pool=pool):
            return f"Move {name} to the {pool.label} pool"


def in_order(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """Return the cells sorted by name, ``cell-2`` before ``cell-10``."""
    return tuple(sorted(cells, key=lambda cell: by_number(cell.name)))
