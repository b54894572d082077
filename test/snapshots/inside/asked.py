"""Answers lines at a port: with what was made at its start, with what a clone must have of its own, and with its memory.

`fill WORD` has its memory hold that word alone, `find WORD` says whether it holds it, and `grow N` takes N MiB beside.
"""
import json
import os
import socket
import sys
import uuid

nonce, asked, held = uuid.uuid4().hex, 0, bytearray(4 << 20)
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    client, _ = listener.accept()
    with client:
        verb, _, word = client.makefile().readline().strip().partition(" ")
        asked += 1
        if verb == "fill":
            held[:] = (word.encode() * (len(held) // len(word) + 1))[:len(held)]
        elif verb == "grow":
            beside = os.urandom(int(word) << 20)
        said = {"nonce": nonce, "asked": asked, "getrandom": os.getrandom(16).hex(), "found": word.encode() in held,
                "boot_id": open("/proc/sys/kernel/random/boot_id").read().strip()}
        client.sendall(json.dumps(said).encode() + b"\n")
