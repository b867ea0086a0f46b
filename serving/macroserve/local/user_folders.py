"""Folders for files of Macroserve's user (XDG Base Directory Specification)."""

import os
from pathlib import Path

APPLICATION = "macroserve"


def cache_folder() -> Path:
    """Return the folder for reproducible files.

    Raises FileNotFoundError for a user without a home folder.
    """
    return _base("XDG_CACHE_HOME", ".cache") / APPLICATION


def state_folder() -> Path:
    """Return the folder for the state of running deployments. Raises as ``cache_folder``."""
    return _base("XDG_STATE_HOME", ".local/state") / APPLICATION


def _base(variable: str, under_home: str) -> Path:
    if given := os.environ.get(variable):
        return Path(given)
    try:
        return Path.home() / under_home
    except RuntimeError:
        raise FileNotFoundError(f"no home folder found: set HOME or {variable}") from None
