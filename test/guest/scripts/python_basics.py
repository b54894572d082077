"""Language, library, files and mmap: prints what is the same on every machine."""
import decimal, hashlib, json, mmap, os, pickle, random, re, signal, socket, struct, tempfile, time, zlib

print(sum(i * i for i in range(100000)), 2**200 % 1000007, decimal.Decimal(1) / 7)
print(hashlib.sha256(b"dormouse" * 1000).hexdigest()[:16], zlib.crc32(bytes(range(256)) * 100))
random.seed(42)
print([random.randint(0, 999) for _ in range(5)], sorted(random.sample(range(1000), 5)))
print(json.dumps({"b": [1, 2.5, None], "a": "\u00e4"}, sort_keys=True), re.findall(r"\d+", "a1b22c333"))
assert pickle.loads(pickle.dumps({i: str(i) for i in range(10000)}))[9999] == "9999"
with tempfile.TemporaryDirectory() as directory:
    path = os.path.join(directory, "file")
    with open(path, "wb") as file:
        file.write(bytes(1 << 20))
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        view[1000:1005] = b"hello"
        view[-1:] = b"!"
        view.flush()
        file.seek(1000)
        print(file.read(5), view.find(b"hello"), view.rfind(b"!"), len(view))
        view.resize(2 << 20)
        print(len(view), view[1 << 20])
    with mmap.mmap(-1, 1 << 20) as shared:
        if os.fork() == 0:
            shared[0:8] = struct.pack("<Q", 123456789)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.wait()[1]), struct.unpack("<Q", shared[0:8])[0])
    for i in range(200):
        os.mkdir(os.path.join(directory, str(i)))
    print(len(os.listdir(directory)), sum(e.is_dir() for e in os.scandir(directory)))
start = time.monotonic()
time.sleep(0.05)
print(time.monotonic() - start >= 0.05, time.time() > 1.7e9)
seen = []
signal.signal(signal.SIGALRM, lambda number, frame: seen.append(number))
signal.setitimer(signal.ITIMER_REAL, 0.01)
while not seen:
    time.sleep(0.01)
print(seen[0] == signal.SIGALRM)
server = socket.socket(socket.AF_UNIX)
with tempfile.TemporaryDirectory() as directory:
    server.bind(os.path.join(directory, "s"))
    server.listen()
    client = socket.socket(socket.AF_UNIX)
    client.connect(os.path.join(directory, "s"))
    connection, _ = server.accept()
    client.sendall(b"x" * 100000)
    client.close()
    received = 0
    while data := connection.recv(8192):
        received += len(data)
    print(received)
data = [bytes(1 << 20) for _ in range(64)]
print(sum(map(len, data)))
