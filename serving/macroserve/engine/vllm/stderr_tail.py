"""The tail of stderr, which shows why a worker's process ended; vLLM only reports that it did."""

import os
import re
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

MAX_LINES = 200
_EXCEPTION = re.compile(r"(?:^|\s)((?:[\w.]+\.)?\w*(?:Error|Exception|Exit)(?:: .+)?)$")
_FAILED = "WorkerProc initialization failed"


@contextmanager
def naming_worker_errors() -> Iterator[None]:
    """Convert vLLM's error for a worker that failed at the start to RuntimeError with the cause."""
    tail = StderrTail()
    try:
        yield
    except Exception as error:
        tail.close()
        if not str(error).startswith(_FAILED):
            raise
        raise RuntimeError(tail.cause or str(error)) from error
    finally:
        tail.close()


class StderrTail:
    """The last lines of this process's and its children's stderr, which is also forwarded.

    Collection ends with ``close``; later output of children is still forwarded.
    """

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self._stderr = os.dup(2)
        reader, writer = os.pipe()
        os.dup2(writer, 2)
        os.close(writer)
        self._thread = threading.Thread(target=self._pass_on, args=(reader,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        os.dup2(self._stderr, 2)

    @property
    def cause(self) -> str | None:
        """Return the last exception; call it after ``close``."""
        self._thread.join(1)  # the thread ends with the last writing process
        found = [match[1] for line in self._lines if (match := _EXCEPTION.search(line))]
        return found[-1] if found else None

    def _pass_on(self, reader: int) -> None:
        line = b""
        with os.fdopen(reader, "rb", buffering=0) as pipe:
            while data := pipe.read(1 << 16):
                os.write(self._stderr, data)
                *whole, line = (line + data).split(b"\n")
                self._lines.extend(text.decode(errors="replace").rstrip() for text in whole)
