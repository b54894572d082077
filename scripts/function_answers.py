"""What the functions of test/functions must answer, found in other ways than theirs."""

import bisect
import hashlib
import hmac
import itertools
import json
import subprocess
import zlib
from collections import Counter


def numbers(seed):
    """The numbers that the functions draw their input from (test/functions/python/serve.py)."""
    state = seed & 0x7FFFFFFF
    while True:
        state = (state * 1103515245 + 12345) % (1 << 31)
        yield state >> 16


def draw(seed, count):
    return list(itertools.islice(numbers(seed), count))


def fibonacci(seed):
    def pair(n):
        """The Fibonacci numbers of n and n + 1, by doubling."""
        if n == 0:
            return 0, 1
        low, high = pair(n // 2)
        even, odd = low * (2 * high - low), low * low + high * high
        return (odd, even + odd) if n % 2 else (even, odd)
    found = pair(500 + seed % 1500)[0]
    return {"digits": len(str(found)), "rest": found % 1_000_000_007}


def sparse_list(seed):
    length, every = 3_000_000, 48
    stride = every * (1 + seed % 2)
    return {"sum": sum(range(0, length, stride)) if seed % every == 0 else 0, "length": length}


def python_json(seed):
    drawn, sums = draw(seed, 2 * (400 + seed % 7 * 200)), Counter()
    for shop, price in zip(drawn[::2], drawn[1::2]):
        sums[f"shop-{shop % 20}"] += price
    return dict(sums)


def template(seed):
    drawn = draw(seed, 2 * (100 + seed % 9 * 40))
    page = "<table>"
    for at in range(len(drawn) // 2):
        kind = "even" if at % 2 else "odd"
        page += (f'\n<tr class="{kind}"><td>{at + 1}</td><td>{drawn[2 * at]}</td>'
                 f"<td>&lt;{drawn[2 * at + 1]}&amp;&gt;</td></tr>")
    page += "\n</table>"
    return {"length": len(page), "digest": hashlib.sha256(page.encode()).hexdigest()}


def python_image(seed):
    width, height = 320 + seed % 5 * 64, 240 + seed % 3 * 48
    # A quarter of a turn to the left and mirrored: (x, y) shows what was at (width - 1 - y, height - 1 - x).
    spots = [(n * 37 % height, n * 53 % width) for n in range(32)]
    levels = [((width - 1 - y) * 3 + (height - 1 - x) * 5 + seed) % 256 for x, y in spots]
    return {"size": [height, width], "spots": levels, "longest": 100}


def compress(seed):
    text = " ".join(f"word{number % 500}" for number in draw(seed, 4000 + seed % 8 * 2000)).encode()
    digest = hashlib.sha256(text).hexdigest()
    return {"length": len(text), "crc": zlib.crc32(text), "gzip": digest, "bz2": digest, "lzma": digest}


def matmul(seed):
    size = 64 + seed % 7 * 32
    drawn = draw(seed, 2 * size * size)
    left, right = drawn[:size * size], drawn[size * size:]
    # The sum of all is that of (column of the left) times (row of the right).
    total = sum(sum(left[at::size]) * sum(right[at * size:(at + 1) * size]) for at in range(size))
    trace = sum(left[at * size + k] * right[k * size + at] for at in range(size) for k in range(size))
    return {"size": size, "sum": total, "trace": trace}


def video(seed):
    def gray(x, y, at):
        red, green, blue = ((x * (at + 1) + y * channel + seed) % 256 for channel in (1, 2, 3))
        return (77 * red + 150 * green + 29 * blue) // 256
    frames = [[gray(x, y, at) for y in range(120) for x in range(160)] for at in range(4 + seed % 5)]
    changed = [sum(abs(a - b) > 16 for a, b in zip(before, after)) for before, after in itertools.pairwise(frames)]
    return {"frames": len(frames), "changed": changed, "light": sum(map(sum, frames))}


def train(seed):
    return {"rule": [number % 100 - 50 for number in draw(seed, 8)]}


def predict(seed):
    return {"clusters": [number % 50 for number in draw(seed, 20 + seed % 10 * 20)]}


def path(seed):
    width, height, step = 150, 100, 7919
    back = pow(step, -1, width * height)
    start, goal = (seed * by * back % (width * height) for by in (31, 1009))
    across, down = abs(start % width - goal % width), abs(start // width - goal // width)
    return {"steps": min(across, width - across) + min(down, height - down)}


def dna(seed):
    sequence = [number >> 7 & 3 for number in draw(seed, 3000 + seed % 9 * 3000)]
    # In halves: A goes up and down, C down twice, G down and up, T up twice.
    halves = [half for base in sequence for half in ((1, -1), (-1, -1), (-1, 1), (1, 1))[base]]
    heights = list(itertools.accumulate(halves))
    return {"points": len(halves), "end": [len(halves) / 2, heights[-1] / 2], "lowest": min(heights) / 2,
            "highest": max(heights) / 2}


def weblog(seed):
    drawn = draw(seed, 4 * (500 + seed % 10 * 250))
    of_remainder = Counter(number % 7 for number in drawn[2::4])
    counts = {"200": sum(of_remainder[at] for at in (0, 1, 2))}
    counts |= {status: of_remainder[at] for at, status in ((3, "204"), (4, "301"), (5, "404"), (6, "500"))}
    return {"statuses": {status: count for status, count in counts.items() if count}, "bytes": sum(drawn[3::4])}


def aes(seed):
    length = 1024 + seed % 6 * 512
    drawn = bytes(number % 256 for number in draw(seed, 32 + length))
    words = ["openssl", "enc", "-aes-128-ctr", "-K", drawn[:16].hex(), "-iv", drawn[16:32].hex()]
    done = subprocess.run(words, input=drawn[32:], capture_output=True, check=True)
    return {"length": length, "digest": hashlib.sha256(done.stdout).hexdigest()}


def node_json(seed):
    drawn, sums = draw(seed, 2 * (600 + seed % 7 * 300)), Counter()
    for customer, price in zip(drawn[::2], drawn[1::2]):
        sums[f"c{customer % 30}"] += price
    return dict(sums)


def markdown(seed):
    count = 60 + seed % 8 * 40
    drawn, html = iter(draw(seed, 6 * count)), []
    for at in range(count):
        level, part = 1 + at % 3, next(drawn)
        html.append(f"<h{level}>Part {part}</h{level}>")
        html.append(f"<p>Some <em>text</em> of <strong>{next(drawn)}</strong> words &amp; <code>code&lt;{next(drawn)}&gt;"
                    "</code>.</p>")
        items = [f'<li>see <a href="/page/{item}">page {next(drawn)}</a></li>' for item in range(3)]
        html.append("<ul>" + "".join(items) + "</ul>")
    page = "\n".join(html)
    return {"length": len(page), "digest": hashlib.sha256(page.encode()).hexdigest()}


def crypto(seed):
    text = bytes(number % 256 for number in draw(seed, 4096 + seed % 6 * 4096))
    key = hashlib.pbkdf2_hmac("sha256", b"password%d" % seed, b"salt", 100 + seed % 5 * 50, 32)
    return {"same": True, "key": key.hex(), "digest": hashlib.sha512(text).hexdigest(),
            "code": hmac.new(key, text, "sha256").hexdigest()}


def node_image(seed):
    width, height = 256 + seed % 5 * 64, 192 + seed % 3 * 64

    def level(x, y):
        return (x * 3 + y * 7 + seed) % 256

    def mean(x, y):
        return sum(level(2 * x + right, 2 * y + down) for right in (0, 1) for down in (0, 1)) // 4
    small = [[mean(x, y) for x in range(width // 2)] for y in range(height // 2)]
    # A quarter of a turn to the right: rows are the columns, from the bottom.
    data = [one for column in zip(*reversed(small)) for one in column]
    histogram = [0] * 16
    for one in data:
        histogram[one // 16] += 1
    return {"size": [height // 2, width // 2], "histogram": histogram, "spots": [data[n % len(data)] for n in draw(seed, 16)]}


def java_json(seed):
    drawn, sums = draw(seed, 3 * (400 + seed % 7 * 200)), Counter()
    for shop, one, other in zip(drawn[::3], drawn[1::3], drawn[2::3]):
        sums[f"s{shop % 20}"] += one + other
    return dict(sums)


def primes(limit):
    found = []
    for number in range(2, limit):
        if all(number % prime for prime in found[:bisect.bisect_right(found, int(number ** 0.5))]):
            found.append(number)
    return found


PRIMES = []


def sort(seed):
    count, limit = 5000 + seed % 8 * 5000, 10000 + seed % 9 * 5000
    drawn = draw(seed, 2 * count)
    numbers_found = sorted(high * 32768 + low for high, low in zip(drawn[::2], drawn[1::2]))
    if not PRIMES:
        PRIMES.extend(primes(50_001))
    return {"least": numbers_found[0], "middle": numbers_found[count // 2], "most": numbers_found[-1],
            "primes": bisect.bisect_left(PRIMES, limit)}


def words(seed):
    counts = Counter(f"word{number % 700}" for number in draw(seed, 3000 + seed % 8 * 1500))
    most = max(counts.values())
    return {"words": len(counts), "most": most, "first": min(word for word, count in counts.items() if count == most)}


def is_right(expected, body):
    """Whether the body of an answer says what is expected."""
    try:
        return json.loads(body) == expected
    except ValueError:
        return False
