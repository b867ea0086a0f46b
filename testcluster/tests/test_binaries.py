"""Parts of the binaries are built once and when their recipe changes, never partially."""

from pathlib import Path

import pytest
from cluster import ClusterError, binaries, places
from cluster.recipes import Recipe
from cluster.steps import Steps

QUIET = Steps(quiet=True)


class Part:
    """A recipe for one file; real ones take minutes."""

    def __init__(self, folder: Path, name: str) -> None:
        self.builds = 0
        self.fails = False
        self._source = folder / f"{name}.py"
        self._name = name
        self.write("first")
        self.recipe = Recipe(name, name, self._make, (self._source,))

    def write(self, text: str) -> None:
        self._source.write_text(text)

    def _make(self, _: Path, target: Path) -> dict[str, str]:
        self.builds += 1
        (target / self._name).write_text(self._source.read_text())
        if self.fails:
            raise KeyboardInterrupt
        return {self._name: "v1"}


@pytest.fixture
def etcd(tmp_path: Path) -> Part:
    return Part(tmp_path, "etcd")


@pytest.fixture
def kubectl(tmp_path: Path) -> Part:
    return Part(tmp_path, "kubectl")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, etcd: Part, kubectl: Part) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(binaries.recipes, "RECIPES", (etcd.recipe, kubectl.recipe))


def test_binaries_that_are_built_are_not_built_again(etcd: Part) -> None:
    assert binaries.build(QUIET) == binaries.build(QUIET) == binaries.find() == places.binaries()
    assert etcd.builds == 1
    assert (places.binaries() / "etcd").exists()
    assert binaries.versions() == {"etcd": "v1", "kubectl": "v1"}


def test_part_whose_recipe_changed_is_built_again_alone(etcd: Part, kubectl: Part) -> None:
    binaries.build(QUIET)
    etcd.write("second")
    with pytest.raises(ClusterError, match="make cluster-build"):
        binaries.find()
    binaries.build(QUIET)
    assert (etcd.builds, kubectl.builds) == (2, 1)
    assert (binaries.find() / "etcd").read_text() == "second"
    assert (binaries.find() / "kubectl").read_text() == "first"
    assert len(list(places.parts().iterdir())) == 2


def test_binaries_that_are_not_built_raise_with_the_command() -> None:
    with pytest.raises(ClusterError, match="make cluster-build"):
        binaries.find()


def test_interrupted_build_leaves_the_parts_that_were_ready(etcd: Part, kubectl: Part) -> None:
    kubectl.fails = True
    with pytest.raises(KeyboardInterrupt):
        binaries.build(QUIET)
    assert sorted(path.name for path in places.cache().iterdir()) == ["build.lock", "parts"]
    kubectl.fails = False
    binaries.build(QUIET)
    assert (etcd.builds, kubectl.builds) == (1, 2)


def test_interrupted_build_keeps_the_former_binaries(etcd: Part) -> None:
    binaries.build(QUIET)
    etcd.write("second")
    etcd.fails = True
    with pytest.raises(KeyboardInterrupt):
        binaries.build(QUIET)
    etcd.write("first")
    assert binaries.find() == places.binaries()
