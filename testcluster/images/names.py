"""The names of the images and the places of their Dockerfiles."""

from pathlib import Path

from images.packages import ROOT

_REPOSITORY = "registry.local/macroserve"
"""No registry: clusters get the images from this machine."""


def image_name(component: str, later: bool = False) -> str:
    """Return an image's full name; `later` is the one whose messages are of a later version."""
    return f"{_REPOSITORY}/{component}:{'later' if later else 'e2e'}"


def dockerfile_of(component: str) -> Path:
    return ROOT / "images" / component / "Dockerfile"
