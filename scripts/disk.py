"""What the disk itself does, past the page cache."""

import json
import mmap
import os
import random
import time

from lib.command import run

# As the VMM writes and reads (swap/src/home.rs): two threads, each a call at a time.
BLOCKS, DEPTH = {"write": "4m", "read": "512k"}, 3
PAGE_BYTES = 4096


def fio(direction, file, size):
    """Bytes a second that `fio` moves with the VMM's block size and depth."""
    text = run("fio", "--name=disk", f"--filename={file}", f"--rw={direction}", f"--size={size}", f"--bs={BLOCKS[direction]}",
               f"--iodepth={DEPTH}", "--ioengine=libaio", "--direct=1", "--fallocate=none", "--output-format=json")
    return json.loads(text[text.index("{"):])["jobs"][0][direction]["bw_bytes"]


def read_pages(file, count):
    """Reads pages of a file at random places, one at a time; result: nanoseconds each."""
    pages = os.stat(file).st_size // PAGE_BYTES
    # Of a page's alignment, as O_DIRECT wants it.
    room, took = mmap.mmap(-1, PAGE_BYTES), []
    descriptor = os.open(file, os.O_RDONLY | os.O_DIRECT)
    try:
        for page in random.sample(range(pages), count):
            begin = time.perf_counter_ns()
            os.preadv(descriptor, [room], page * PAGE_BYTES)
            took.append(time.perf_counter_ns() - begin)
    finally:
        os.close(descriptor)
        room.close()
    return took
