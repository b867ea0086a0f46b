"""Built once, again when the recipe changes, and never half."""

from pathlib import Path

import pytest
from cluster import ClusterError, binaries, places
from cluster.steps import Steps

QUIET = Steps(quiet=True)


class Recipes:
    """Stand in for the real recipes, which take minutes."""

    KUBERNETES = "v1.20.2"

    def __init__(self, folder: Path) -> None:
        self.builds = 0
        self.fails = False
        self.PAUSE = folder / "pause.go"
        self.PAUSE.touch()
        self.__file__ = str(folder / "recipes.py")
        self.write("first")

    def write(self, text: str) -> None:
        Path(self.__file__).write_text(text)

    def unpack_debian(self, _: object, target: Path) -> None:
        self.builds += 1
        (target / "etcd").touch()

    def build_kubernetes(self, _: object, folder: Path, target: Path) -> None:
        folder.mkdir()
        if self.fails:
            raise KeyboardInterrupt

    def build_pause(self, *_: object) -> None:
        pass

    def build_crd_server(self, *_: object) -> str:
        return "v1.36.0"


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipes:
    recipes = Recipes(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(binaries, "recipes", recipes)
    monkeypatch.setattr(binaries, "Suite", lambda *_: None)
    return recipes


def test_binaries_that_are_built_are_not_built_again(recipes: Recipes) -> None:
    assert binaries.build(QUIET) == binaries.build(QUIET) == binaries.find() == places.binaries()
    assert recipes.builds == 1
    assert (places.binaries() / "etcd").exists()


def test_binaries_whose_recipe_changed_are_built_again(recipes: Recipes) -> None:
    binaries.build(QUIET)
    recipes.write("second")
    with pytest.raises(ClusterError, match="make cluster-build"):
        binaries.find()
    binaries.build(QUIET)
    assert recipes.builds == 2
    assert binaries.find() == places.binaries()


def test_binaries_that_are_not_built_raise_with_the_command(recipes: Recipes) -> None:
    with pytest.raises(ClusterError, match="make cluster-build"):
        binaries.find()


def test_interrupted_build_leaves_no_file(recipes: Recipes) -> None:
    recipes.fails = True
    with pytest.raises(KeyboardInterrupt):
        binaries.build(QUIET)
    assert [path.name for path in places.cache().iterdir()] == ["build.lock"]


def test_interrupted_build_keeps_the_former_binaries(recipes: Recipes) -> None:
    binaries.build(QUIET)
    recipes.write("second")
    recipes.fails = True
    with pytest.raises(KeyboardInterrupt):
        binaries.build(QUIET)
    recipes.write("first")
    assert binaries.find() == places.binaries()
