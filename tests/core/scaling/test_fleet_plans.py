"""A simulated fleet carries out any part of any plan and converges to the desired fleet."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.core.scaling.fleet import (
    Action,
    Attach,
    DeleteCell,
    DeployCell,
    DesiredFleet,
    Drain,
    Fleet,
    Member,
    MemberState,
    Migrate,
    Relabel,
    Start,
    Stop,
    plan_actions,
)
from macroserve.core.scaling.mitosis import Bounds, high_priority_count
from macroserve.core.status import Pool

LP, HP = Pool.LP, Pool.HP


class World:
    """A simulated fleet, which fails on impossible actions."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.cells: set[str] = set()

    def fleet(self, cells_answer: bool = True) -> Fleet:
        return Fleet(tuple(self.members.values()), frozenset(self.cells) if cells_answer else None)

    def change(self, name: str, **changes: object) -> None:
        self.members[name] = replace(self.members[name], **changes)

    def carry_out(self, action: Action) -> None:
        match action:
            case DeployCell(cell=cell):
                self.cells.add(cell)
            case Start(instance=name, cell=cell, pool=pool):
                assert name not in self.members, "a name is given out twice"
                self.members[name] = Member(name, MemberState.STARTING, pool, cell)
            case Relabel(instance=name, cell=cell, pool=pool):
                assert not self.members[name].joined
                self.change(name, cell=cell, pool=pool)
            case Attach(instance=name, cell=cell):
                found = self.members[name]
                assert (
                    cell in self.cells and found.state is MemberState.SERVING and not found.joined
                )
                self.change(name, cell=cell, joined=True)
            case Migrate(instance=name, to_cell=cell, as_pool=pool):
                found = self.members[name]
                assert cell in self.cells and found.joined
                assert (found.cell, found.pool) != (cell, pool), "it is there already"
                self.change(name, cell=cell, pool=pool)
            case Drain(instance=name, cell=cell):
                found = self.members[name]
                assert found.joined and found.cell == cell
                self.change(name, draining=True)
            case Stop(instance=name):
                found = self.members[name]
                has_work = found.serves and found.joined and not (found.draining and found.drained)
                assert not has_work, "something still runs there"
                self.change(name, state=MemberState.LEAVING, joined=False)
            case DeleteCell(cell=cell):
                held = [m.name for m in self.members.values() if m.joined and m.cell == cell]
                assert not held, f"{cell} still holds {held}"
                self.cells.remove(cell)

    def pass_time(self) -> None:
        """Complete all actions in progress."""
        for member in list(self.members.values()):
            match member.state:
                case MemberState.STARTING:
                    self.change(member.name, state=MemberState.SERVING)
                case MemberState.LEAVING:
                    del self.members[member.name]
                case MemberState.SERVING if member.draining:
                    self.change(member.name, drained=True)

    @property
    def is_calm(self) -> bool:
        """Return whether no action is in progress."""
        return all(
            m.joined and m.stays and m.state is MemberState.SERVING for m in self.members.values()
        )


DESIRED = st.builds(
    lambda instances, lower, room, ratio: DesiredFleet(
        instances, Bounds(lower, 2 * lower - 1 + room), ratio
    ),
    st.integers(1, 20),
    st.integers(1, 3),
    st.integers(0, 4),
    st.sampled_from([0.0, 0.33, 0.5]),
)
FATES = st.sampled_from(
    ["serves", "fails", "stumbles", "is lost", "ages", "ends", "has work", "nothing"]
)


def befall(world: World, name: str, fate: str) -> None:
    """Let an accident happen to an instance."""
    found = world.members[name]
    match fate:
        case "serves" if found.state is MemberState.STARTING:
            world.change(name, state=MemberState.SERVING)
        case "fails" if found.state in (MemberState.STARTING, MemberState.SERVING):
            world.change(name, state=MemberState.FAILED, joined=False)
        case "stumbles" if found.state is MemberState.SERVING:
            world.change(name, state=MemberState.STARTING)
        case "is lost":
            world.change(name, joined=False)
        case "ages":
            world.change(name, outdated=True)
        case "ends" if found.state is MemberState.LEAVING:
            del world.members[name]
        case "ends" if found.draining:
            world.change(name, drained=True)
        case "has work":
            world.change(name, remaining_tokens=100)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Draw a world after some reconciles with any desired fleets, each interrupted anywhere, and
    accidents."""
    world = World()
    for _ in range(draw(st.integers(0, 12))):
        for name in list(world.members):
            befall(world, name, draw(FATES))
        fleet = world.fleet(draw(st.integers(0, 4)) > 0)
        actions = plan_actions(fleet, draw(DESIRED)).actions
        for action in actions[: draw(st.integers(0, len(actions)))]:
            world.carry_out(action)
    return world


@st.composite
def scattered(draw: st.DrawFn) -> World:
    """Draw several cells of any sizes, whose members have joined or have yet to."""
    world = World()
    sizes = draw(st.lists(st.integers(1, 7), min_size=3, max_size=6))
    places = [f"cell-{number}" for number, size in enumerate(sizes) for _ in range(size)]
    for number, cell in enumerate(draw(st.permutations(places))):
        state = draw(
            st.sampled_from([MemberState.STARTING, MemberState.SERVING, MemberState.SERVING])
        )
        joined = state is MemberState.SERVING and draw(st.booleans())
        pool = draw(st.sampled_from(Pool))
        name = f"instance-{number}"
        world.members[name] = Member(name, state, pool, cell, joined)
        if joined:
            world.cells.add(cell)
    return world


def lead(world: World, desired: DesiredFleet, at_once: int) -> None:
    """Carry out only the first actions of each plan, until the end."""
    for _ in range(200):
        plan = plan_actions(world.fleet(), desired)
        if not plan.actions and not plan.decisions and world.is_calm:
            break
        for action in plan.actions[:at_once]:
            world.carry_out(action)
        world.pass_time()
    else:
        raise AssertionError(f"not as desired after 200 reconciles: {world.members}")
    members = world.members.values()
    assert len(members) == desired.desired_instances
    assert all(m.joined and m.state is MemberState.SERVING and not m.outdated for m in members)
    cells = {cell: [m for m in members if m.cell == cell] for cell in world.cells}
    for inside in cells.values():
        assert len(inside) <= desired.bounds.upper
        assert len(inside) >= min(desired.bounds.lower, desired.desired_instances)
        high = sum(m.pool is HP for m in inside)
        assert high == high_priority_count(len(inside), desired.high_priority_ratio)


@pytest.mark.parametrize(
    ("joined", "waiting", "desired"),
    [
        pytest.param(
            [3, 3, 3], [], DesiredFleet(5, Bounds(2, 5), 0), id="merge what is yet to leave"
        ),
        pytest.param(
            [1, 2, 7], [], DesiredFleet(10, Bounds(1, 5), 0), id="merge what is yet to split"
        ),
        pytest.param([7], [1, 2], DesiredFleet(10, Bounds(1, 5), 0), id="or what is yet to join"),
    ],
)
def test_fleet_plan_takes_no_action_back(
    joined: list[int], waiting: list[int], desired: DesiredFleet
) -> None:
    world = World()
    for number, size in enumerate([*joined, *waiting]):
        for _ in range(size):
            name, cell = f"instance-{len(world.members)}", f"cell-{number}"
            joins = number < len(joined)
            world.members[name] = Member(name, MemberState.SERVING, LP, cell, joined=joins)
    world.cells.update(f"cell-{number}" for number in range(len(joined)))
    lead(world, desired, at_once=1)


@given(worlds(), DESIRED, st.integers(1, 20))
def test_fleet_plan_interrupted_anywhere_leads_to_the_desired_fleet(
    world: World, desired: DesiredFleet, at_once: int
) -> None:
    lead(world, desired, at_once)


@given(scattered(), DESIRED)
def test_fleet_plan_with_one_action_per_reconcile_converges(
    world: World, desired: DesiredFleet
) -> None:
    lead(world, desired, at_once=1)


@given(worlds(), DESIRED)
def test_fleet_plan_without_reachable_cells_keeps_serving_instances(
    world: World, desired: DesiredFleet
) -> None:
    for action in plan_actions(world.fleet(cells_answer=False), desired).actions:
        if not isinstance(action, Start):
            assert isinstance(action, Relabel | Stop)
            found = world.members[action.instance]
            assert not found.serves or (found.draining and found.drained)


@given(worlds(), DESIRED)
def test_rollout_replaces_one_at_a_time_and_keeps_one_serving(
    world: World, desired: DesiredFleet
) -> None:
    for name in list(world.members):
        world.change(name, outdated=True)
    for _ in range(200):
        plan = plan_actions(world.fleet(), desired)
        replaced = [action for action in plan.actions if _replaces(action)]
        away = [m for m in world.members.values() if not m.stays or not m.joined]
        assert len(replaced) <= 1
        if replaced:
            others = set(world.members) - {replaced[0].instance}
            assert not away and others, "another one is away already"
        if not plan.actions and not plan.decisions and world.is_calm:
            return
        for action in plan.actions:
            world.carry_out(action)
        world.pass_time()
    raise AssertionError("the rollout does not end")


def _replaces(action: Action) -> bool:
    return isinstance(action, Drain) and "replaced" in action.reason
