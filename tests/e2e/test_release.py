"""The chart's values name the images that a given cluster can pull."""

import pytest
from world.release import image_values


@pytest.mark.parametrize(
    ("images", "repository", "tag"),
    [
        ("registry.example.com/team:1.2", "registry.example.com/team/engine", "1.2"),
        ("localhost:5000/macroserve:e2e", "localhost:5000/macroserve/engine", "e2e"),
    ],
)
def test_images_with_prefix_and_tag_become_values(images: str, repository: str, tag: str) -> None:
    values = image_values(images)
    assert values["engine"] == {"image": {"repository": repository, "tag": tag}}
    assert values.keys() == {"engine", "operator"}


@pytest.mark.parametrize("images", ["", "macroserve", "localhost:5000/macroserve"])
def test_images_without_tag_are_refused(images: str) -> None:
    with pytest.raises(ValueError, match="PREFIX:TAG"):
        image_values(images)
