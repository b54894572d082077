"""Says in a line of JSON, again and again, what it knows and what the kernel tells: it has no port, so clones of it can run at once.

The argument is how many seconds lie between two lines.
"""
import hashlib
import json
import os
import sys
import time
import uuid

nonce, count = uuid.uuid4().hex, 0
held = bytearray(hashlib.shake_128(b"alone").digest(4 << 20))
while True:
    count += 1
    if os.path.exists("/tmp/secret"):
        secret = open("/tmp/secret", "rb").read().strip()
        held = bytearray((secret * (len(held) // len(secret) + 1))[:len(held)])
    words = {"nonce": nonce, "count": count, "digest": hashlib.sha256(held).hexdigest(), "getrandom": os.getrandom(32).hex()}
    for name in ("boot_id", "uuid"):
        words[name] = open(f"/proc/sys/kernel/random/{name}").read().strip()
    print(json.dumps(words), flush=True)
    time.sleep(float(sys.argv[1]))
