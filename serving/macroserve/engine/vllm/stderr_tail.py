"""The tail of stderr, which shows why an engine's process ended; vLLM only reports that it did."""

import os
import re
import threading
from collections import deque

MAX_LINES = 200
_EXCEPTION = re.compile(r"(?:^|\s)((?:[\w.]+\.)?\w*(?:Error|Exception|Exit)(?:: .+)?)$")
_EXIT_CODE = re.compile(r"'EngineCore\w*': (-?\d+)")


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

    def cause(self, error: Exception) -> str:
        """Return why the engine's process ended, by vLLM's error; call it after ``close``."""
        self._thread.join(1)  # the thread ends with the last writing process
        code = _EXIT_CODE.search(str(error))
        if code and int(code[1]) < 0:
            return f"the engine's process was killed (signal {-int(code[1])})"
        found = [match[1] for line in self._lines if (match := _EXCEPTION.search(line))]
        return found[-1] if found else str(error)

    def _pass_on(self, reader: int) -> None:
        line = b""
        with os.fdopen(reader, "rb", buffering=0) as pipe:
            while data := pipe.read(1 << 16):
                os.write(self._stderr, data)
                *whole, line = (line + data).split(b"\n")
                self._lines.extend(text.decode(errors="replace").rstrip() for text in whole)
