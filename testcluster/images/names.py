"""The names of the images and the paths of their Dockerfiles."""

from pathlib import Path

from images.packages import ROOT

_REPOSITORY = "registry.local/macroserve"
"""Not a real registry: clusters get the images from this machine."""


def image_name(component: str, later: bool = False) -> str:
    """Return an image's full name; `later` means the one with messages of a future version."""
    return f"{_REPOSITORY}/{component}:{'later' if later else 'e2e'}"


def dockerfile_of(component: str) -> Path:
    return ROOT / "images" / component / "Dockerfile"
