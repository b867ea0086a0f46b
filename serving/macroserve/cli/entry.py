"""Start the command, and listen to SIGTERM before any other import.

As the first process of a container the command would ignore SIGTERM until then, and Kubernetes
would wait for its whole grace period.
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
