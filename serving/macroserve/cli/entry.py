"""Where the command begins. It listens to SIGTERM before it imports anything else: as the first
process of a container it would be deaf until then, and Kubernetes would wait for its whole grace.
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
