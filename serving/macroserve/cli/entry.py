"""Start of the command, which handles SIGTERM before any other import.

The first process of a container ignores SIGTERM by default, and Kubernetes would wait for the whole
grace period.
"""

import signal
import sys
from typing import NoReturn

ENDED_BY_SIGTERM = 128 + signal.SIGTERM


def main() -> None:
    signal.signal(signal.SIGTERM, _end)
    from macroserve.cli.app import main

    main()


def _end(number: int, frame: object) -> NoReturn:
    sys.exit(ENDED_BY_SIGTERM)
