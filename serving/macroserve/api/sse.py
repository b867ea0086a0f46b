"""Server-sent events, as far as OpenAI streams use them."""


class SseParser:
    """A splitter of a byte stream into the ``data`` payloads of its events.

    Fields other than ``data`` and comments (keep-alives) are dropped; lines end in LF or CRLF.
    Source: WHATWG HTML, section 9.2.6.
    """

    def __init__(self) -> None:
        self._line = b""
        """Incomplete last line."""
        self._data: list[bytes] = []
        """``data`` lines of the incomplete last event."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the payloads of the events that end in ``chunk``, however the stream is cut."""
        *lines, self._line = (self._line + chunk).split(b"\n")
        payloads = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                payloads.append(b"\n".join(self._data))
                self._data.clear()
        return payloads
