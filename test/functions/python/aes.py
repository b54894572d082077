"""AES-128 in counter mode (FIPS 197, SP 800-38A), in Python alone."""

import hashlib

from serve import numbers, serve


def make_box():
    """The substitution box: inverses in GF(2^8), turned and added."""
    box, p, q = [0] * 256, 1, 1
    while True:
        p ^= (p << 1) ^ (0x11B if p & 0x80 else 0)
        p &= 0xFF
        for shift in (1, 2, 4):
            q ^= q << shift
        q &= 0xFF
        q ^= 0x09 if q & 0x80 else 0
        turned = q
        for by in range(1, 5):
            turned ^= (q << by | q >> (8 - by)) & 0xFF
        box[p] = turned ^ 0x63
        if p == 1:
            break
    box[0] = 0x63
    return box


BOX = make_box()
DOUBLE = [(byte << 1) ^ (0x11B if byte & 0x80 else 0) for byte in range(256)]
# Byte `at` of the state comes from there when the rows are shifted.
SHIFTED = [(at + 4 * (at % 4)) % 16 for at in range(16)]


def round_keys(key):
    words, constant = [list(key[at:at + 4]) for at in range(0, 16, 4)], 1
    for at in range(4, 44):
        word = words[-1]
        if at % 4 == 0:
            word = [BOX[byte] for byte in word[1:] + word[:1]]
            word[0] ^= constant
            constant = DOUBLE[constant]
        words.append([a ^ b for a, b in zip(words[at - 4], word)])
    return [[byte for word in words[at:at + 4] for byte in word] for at in range(0, 44, 4)]


def mixed(column):
    every = column[0] ^ column[1] ^ column[2] ^ column[3]
    return [column[at] ^ every ^ DOUBLE[column[at] ^ column[(at + 1) % 4]] for at in range(4)]


def encrypted(block, keys):
    state = [a ^ b for a, b in zip(block, keys[0])]
    for number, key in enumerate(keys[1:], 1):
        state = [BOX[state[at]] for at in SHIFTED]
        if number < 10:
            state = [byte for at in range(0, 16, 4) for byte in mixed(state[at:at + 4])]
        state = [a ^ b for a, b in zip(state, key)]
    return bytes(state)


def answer(seed):
    drawn = numbers(seed)
    key, counter = (bytes(next(drawn) & 255 for _ in range(16)) for _ in range(2))
    text = bytes(next(drawn) & 255 for _ in range(1024 + seed % 6 * 512))
    keys, first = round_keys(key), int.from_bytes(counter, "big")
    stream = b"".join(encrypted(((first + at) % (1 << 128)).to_bytes(16, "big"), keys) for at in range(len(text) // 16 + 1))
    return {"length": len(text), "digest": hashlib.sha256(bytes(a ^ b for a, b in zip(text, stream))).hexdigest()}


serve(answer)
