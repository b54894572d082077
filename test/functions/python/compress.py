"""Packs text with gzip, bzip2 and LZMA, and unpacks it."""

import bz2
import gzip
import hashlib
import lzma
import zlib

from serve import numbers, serve


def answer(seed):
    drawn = numbers(seed)
    text = " ".join(f"word{next(drawn) % 500}" for _ in range(4000 + seed % 8 * 2000)).encode()
    found = {"length": len(text), "crc": zlib.crc32(text)}
    for codec in (gzip, bz2, lzma):
        packed = codec.compress(text)
        digest = hashlib.sha256(codec.decompress(packed)).hexdigest()
        found[codec.__name__] = digest if len(packed) < len(text) else "not packed"
    return found


serve(answer)
