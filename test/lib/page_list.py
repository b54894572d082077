"""Recorded lists of a snapshot's pages."""
from pathlib import Path


def pages_in(file: Path) -> set[int]:
    """The numbers of pages in a recorded list: a head of 16 bytes, numbers of 4, a seal of 32."""
    content = file.read_bytes()
    count = int.from_bytes(content[12:16], "little")
    return {int.from_bytes(content[16 + 4 * at:20 + 4 * at], "little") & ~(1 << 31) for at in range(count)}
