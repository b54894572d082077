#!/usr/bin/env python3
"""Writes the memory of real processes that it starts, one file each: pages of the private writable mappings that are
resident, without those that hold one word again and again.

    scripts/process_pages.py DIRECTORY [--limit MIB]
"""
import argparse
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time

PYTHON = """
import collections, json, re, sqlite3, sys, html.parser, http.server, decimal, zlib
words = open(json.__file__).read().split() + open(re.__file__).read().split()
count = collections.Counter(words)
rows = [{"id": n, "name": words[n % len(words)], "price": n * 3.25, "tags": words[n % 90:n % 90 + 5]} for n in range(9000)]
text = json.dumps(rows)
back = json.loads(text)
base = sqlite3.connect(":memory:")
base.execute("create table item (id integer primary key, name text, price real)")
base.executemany("insert into item values (?, ?, ?)", [(row["id"], row["name"], row["price"]) for row in rows])
base.execute("create index names on item (name)")
numbers = [decimal.Decimal(n) / 7 for n in range(5000)]
print("ready", flush=True)
sys.stdin.read()
"""

NODE = """
const words = require('fs').readFileSync(process.argv[1] || process.execPath).subarray(0, 1 << 20).toString('latin1').split(/\\W+/);
const rows = [];
for (let n = 0; n < 20000; n++) rows.push({id: n, name: words[n % words.length], price: n * 3.25, tags: ['a' + n, 'b']});
global.kept = [rows, new Map(rows.map(row => [row.name, row])), JSON.parse(JSON.stringify(rows))];
console.log('ready');
process.stdin.resume();
"""

JAVA = """
import java.util.*;
public class Pages {
    public static void main(String[] args) throws Exception {
        Map<String, List<Integer>> index = new HashMap<>();
        StringBuilder text = new StringBuilder();
        for (int n = 0; n < 60000; n++) {
            String word = "key" + Integer.toHexString(n * 7919 % 5003);
            index.computeIfAbsent(word, any -> new ArrayList<>()).add(n);
            text.append(word).append(',').append(n).append('\\n');
        }
        System.out.println("ready");
        while (System.in.read() >= 0) { }
        System.out.println(index.size() + text.length());
    }
}
"""


def page_runs(pid):
    """Resident pages of private writable mappings, as (address, pages)."""
    with open(f"/proc/{pid}/pagemap", "rb") as pagemap:
        for line in open(f"/proc/{pid}/maps"):
            fields = line.split()
            if not fields[1].startswith("rw") or fields[1][3] != "p" or (len(fields) > 5 and fields[5].startswith("[v")):
                continue
            start, end = (int(part, 16) for part in fields[0].split("-"))
            at = start
            while at < end:
                count = min((end - at) // 4096, 4096)
                pagemap.seek(at // 4096 * 8)
                present = [entry >> 63 for entry in struct.unpack(f"{count}Q", pagemap.read(count * 8))]
                begin = 0
                while begin < count:
                    stop = begin
                    while stop < count and present[stop]:
                        stop += 1
                    if stop > begin:
                        yield at + begin * 4096, stop - begin
                    begin = stop + 1
                at += count * 4096


def write_pages(pid, path, limit):
    written = left_out = 0
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory, open(path, "wb") as out:
        for address, count in page_runs(pid):
            memory.seek(address)
            data = memory.read(count * 4096)
            for at in range(0, len(data), 4096):
                page = data[at:at + 4096]
                if page == page[:8] * 512:
                    left_out += 1
                elif written * 4096 < limit:
                    out.write(page)
                    written += 1
    print(f"{path.name}: {written} pages, {left_out} of one word left out", file=sys.stderr)


def speaking(command, **options):
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)
    if not process.stdout.readline().startswith(b"ready"):
        raise SystemExit(f"cannot start {command[0]}: it does not say that it is ready")
    return process


def redis(directory):
    path = f"{directory}/redis.sock"
    process = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--dir", directory],
                               stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    client = socket.socket(socket.AF_UNIX)
    for _ in range(200):
        try:
            client.connect(path)
            break
        except OSError:
            time.sleep(0.05)
    orders = []
    for n in range(40000):
        orders.append(f"SET session:{n} user={n * 31 % 9973};name=name{n % 700};seen={1700000000 + n * 17}\r\n")
        orders.append(f"HSET item:{n % 5000} field{n % 7} {n * 3}\r\n")
    orders.append("PING\r\n")
    client.sendall("".join(orders).encode())
    seen = b""
    while b"+PONG" not in seen:
        seen = seen[-64:] + client.recv(1 << 16)
    return process


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("directory", type=pathlib.Path)
    options.add_argument("--limit", type=int, default=32, metavar="MIB", help="of each process at most (default 32)")
    arguments = options.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        pathlib.Path(scratch, "Pages.java").write_text(JAVA)
        makers = {
            "python": lambda: speaking([os.path.realpath(sys.executable), "-c", PYTHON]),
            "node": lambda: speaking(["node", "-e", NODE]),
            "java": lambda: speaking(["java", "-Xmx96m", "-XX:+UseSerialGC", "Pages.java"], cwd=scratch),
            "redis": lambda: redis(scratch),
        }
        for name, start in makers.items():
            program = {"python": sys.executable, "redis": "redis-server"}.get(name, name)
            if shutil.which(program) is None:
                print(f"{name}: left out, {program} is not installed", file=sys.stderr)
                continue
            process = start()
            try:
                write_pages(process.pid, arguments.directory / name, arguments.limit << 20)
            finally:
                process.kill()
                process.wait()


if __name__ == "__main__":
    main()
