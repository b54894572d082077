"""Reads all memory of all processes of a container but its own. Text has to be as in its files.

Prints how many pages were read, and how many of them compared.
"""
import os

PAGE = 4096
# A mapping that is larger than this is looked at to here.
MOST = 16 << 20


def walk(pid):
    read = compared = 0
    with open(f"/proc/{pid}/maps") as rows, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for row in rows:
            span, rights, offset, _, inode, *path = row.split(maxsplit=5)
            begin, end = (int(part, 16) for part in span.split("-"))
            # The vDSO's pages are the kernel's.
            if rights[0] != "r" or (path and path[0].startswith("[v")):
                continue
            try:
                found = os.pread(memory.fileno(), min(end - begin, MOST), begin)
            except OSError as why:
                with open(f"/proc/{pid}/maps") as now:
                    assert row not in now.readlines(), f"{row.strip()} of process {pid}: {why}"
                # It went meanwhile.
                continue
            read += len(found) // PAGE
            if int(inode) and rights == "r-xp" and os.path.isfile(path[0].strip()):
                with open(path[0].strip(), "rb") as file:
                    file.seek(int(offset, 16))
                    text = file.read(len(found))
                assert found[:len(text)] == text, f"{row.strip()} of process {pid} is not as in the file"
                compared += len(text) // PAGE
    return read, compared


counts = []
for entry in os.listdir("/proc"):
    if entry.isdigit() and int(entry) != os.getpid():
        try:
            counts.append(walk(entry))
        except (FileNotFoundError, ProcessLookupError):
            # It has ended.
            continue
print(*(sum(column) for column in zip(*counts)))
