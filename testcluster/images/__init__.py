"""The project's two images, built on this machine without a registry."""

from images.build import build_engine_image, build_later_engine_image, build_operator_image

__all__ = ["build_engine_image", "build_later_engine_image", "build_operator_image"]
