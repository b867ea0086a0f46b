"""The order of a sweep and the seeds of its points."""

from macroserve_lab.bench.peers.journal import PointKey
from macroserve_lab.bench.peers.sweep import Sweep


def sweep(seed: int = 0, rounds: int = 6) -> Sweep:
    return Sweep(rounds, ("ours", "a", "b"), {"x": (1.0, 2.0), "y": (3.0,)}, seed)


def test_sweep_has_each_point_once_and_whole_deployments_in_turns() -> None:
    turns = list(sweep().turns())
    points = [point for turn in turns for point in turn.points]
    assert len(points) == len(set(points)) == sweep().num_points == 6 * 3 * 3
    assert [turn.round for turn in turns] == sorted(turn.round for turn in turns)
    for turn in turns:
        assert {(p.round, p.deployment) for p in turn.points} == {(turn.round, turn.deployment)}


def test_sweep_orders_differ_between_rounds_and_not_between_runs() -> None:
    turns = list(sweep().turns())
    assert turns == list(sweep().turns())
    assert turns != list(sweep(seed=1).turns())
    orders = {tuple(t.deployment for t in turns if t.round == round_) for round_ in range(6)}
    assert len(orders) > 1
    assert len({tuple((p.load, p.rate) for p in turn.points) for turn in turns}) > 1


def test_sweep_without_the_done_points_keeps_the_order_of_the_others() -> None:
    turns = list(sweep().turns())
    done = {*turns[0].points, turns[1].points[0]}
    rest = list(sweep().turns(done))
    assert rest[0].points == turns[1].points[1:]
    assert rest[1:] == turns[2:]
    assert list(sweep().turns({p for turn in turns for p in turn.points})) == []


def test_points_of_other_sweeps_are_not_counted_as_done() -> None:
    first = next(sweep().turns()).points[0]
    other = first._replace(rate=9.0)
    assert sweep().num_done({first, other}) == 1


def test_seeds_are_equal_for_all_deployments_and_differ_between_points() -> None:
    points = [point for turn in sweep().turns() for point in turn.points]
    by_deployment = {
        name: {p[0:1] + p[2:]: sweep().seed_of(p) for p in points if p.deployment == name}
        for name in ("ours", "a", "b")
    }
    assert by_deployment["ours"] == by_deployment["a"] == by_deployment["b"]
    assert len(set(by_deployment["a"].values())) == len(by_deployment["a"])
    point = PointKey(0, "a", "x", 1.0)
    assert sweep(seed=1).seed_of(point) != sweep(seed=0).seed_of(point)
