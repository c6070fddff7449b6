"""Server-sent events, as far as streamed completions use them: the payload of each `data:` line. Pure.

Comments and other fields are passed over: a gateway's keep-alive is no token. A line that does not end is given up.
"""

from __future__ import annotations

LONGEST_LINE_BYTES = 8 * 2**20
DONE = b"[DONE]"


class EventLines:
    """Takes bytes as they arrive, however they are cut."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """The payloads completed by these bytes, in order. Raises ValueError: a line is longer than any token list."""
        self._rest += chunk
        *lines, rest = self._rest.split(b"\n")
        if len(rest) > LONGEST_LINE_BYTES:
            raise ValueError(f"a line of more than {LONGEST_LINE_BYTES // 2**20} MiB")
        self._rest = bytearray(rest)
        return [bytes(line[5:]).strip() for line in lines if line.startswith(b"data:")]

    @property
    def is_cut(self) -> bool:
        """Whether the last line had no end."""
        return bool(self._rest.strip())
