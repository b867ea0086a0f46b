"""OpenAI streams use this part of server-sent events."""


class SseParser:
    """The parser splits a byte stream into the ``data`` payloads of its events.

    Fields other than ``data`` and comments (keep-alives) are dropped; lines end in LF or CRLF.
    Source: WHATWG HTML, section 9.2.6.
    """

    def __init__(self) -> None:
        self._line = b""
        """The beginning of a line whose end has not come yet."""
        self._data: list[bytes] = []
        """The ``data`` lines of an event whose end has not come yet."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the payloads of the events that end in ``chunk``, wherever the stream was cut."""
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
