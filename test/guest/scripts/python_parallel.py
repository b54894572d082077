"""Threads, subprocesses, multiprocessing and asyncio with subprocesses.  usage: python_parallel.py [SCALE_PERCENT]"""
import asyncio, concurrent.futures, multiprocessing, os, queue, shutil, signal, subprocess, sys, tempfile, threading

SCALE = int(sys.argv[1]) if len(sys.argv) > 1 else 100


def scaled(count):
    return max(1, count * SCALE // 100)


def square(n):
    return n * n


def worker(inbox, outbox):
    while (item := inbox.get()) is not None:
        outbox.put(item * 2)


def threads():
    total, lock, inbox, outbox = 0, threading.Lock(), queue.Queue(), queue.Queue()

    def add():
        nonlocal total
        for _ in range(1000):
            with lock:
                total += 1

    group = [threading.Thread(target=add) for _ in range(8)]
    for thread in group:
        thread.start()
    for thread in group:
        thread.join()
    print("threads", total)
    group = [threading.Thread(target=worker, args=(inbox, outbox)) for _ in range(4)]
    for thread in group:
        thread.start()
    for i in range(2000):
        inbox.put(i)
    for _ in group:
        inbox.put(None)
    for thread in group:
        thread.join()
    print("queue", sum(outbox.get() for _ in range(2000)))
    barrier, event = threading.Barrier(4), threading.Event()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        results = [pool.submit(lambda: (barrier.wait(30) >= 0, event.wait(30))[1]) for _ in range(4)]
        event.set()
        print("executor", all(result.result() for result in results))
    print("timeout", threading.Event().wait(0.01))


def subprocesses():
    print("run", subprocess.run(["echo", "hi"], capture_output=True, text=True).stdout.strip())
    cat = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    print("cat", len(cat.communicate(b"y" * 1000000)[0]))
    shell = subprocess.run("exit 5", shell=True)
    print("exit", shell.returncode, subprocess.run(["sh", "-c", "kill -9 $$"]).returncode)
    try:
        subprocess.run(["sleep", "50"], timeout=0.1)
    except subprocess.TimeoutExpired:
        print("timed out")
    try:
        subprocess.run(["/no/such/program"])
    except FileNotFoundError as error:
        print("missing", error.errno)
    sleeper = subprocess.Popen(["sleep", "50"], start_new_session=True)
    os.killpg(sleeper.pid, signal.SIGTERM)
    print("killed", sleeper.wait())
    many = [subprocess.Popen(["sh", "-c", f"exit {i % 50}"]) for i in range(scaled(40))]
    print("many", [p.wait() for p in many] == [i % 50 for i in range(len(many))])
    first = subprocess.Popen(["seq", "1", "1000"], stdout=subprocess.PIPE)
    second = subprocess.run(["wc", "-l"], stdin=first.stdout, capture_output=True, text=True)
    first.stdout.close()
    print("pipeline", second.stdout.strip(), first.wait())


def processes():
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        with context.Pool(3) as pool:
            print(method, sum(pool.map(square, range(200))))
    inbox, outbox = multiprocessing.Queue(), multiprocessing.Queue()
    group = [multiprocessing.Process(target=worker, args=(inbox, outbox)) for _ in range(3)]
    for process in group:
        process.start()
    for i in range(scaled(300)):
        inbox.put(i)
    for _ in group:
        inbox.put(None)
    print("queue", sum(outbox.get() for _ in range(scaled(300))) == sum(i * 2 for i in range(scaled(300))))
    for process in group:
        process.join()
    value, lock = multiprocessing.Value("i", 0), multiprocessing.Lock()
    group = [multiprocessing.Process(target=bump, args=(value, lock)) for _ in range(4)]
    for process in group:
        process.start()
    for process in group:
        process.join()
    print("shared", value.value, [process.exitcode for process in group])
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        print("executor", list(pool.map(square, range(5))))


def bump(value, lock):
    for _ in range(250):
        with lock:
            value.value += 1


async def child(i):
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", f"read x; echo $((x * {i}))", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate(b"7\n")
    return int(output), process.returncode


async def echo(reader, writer):
    while data := await reader.read(1000):
        writer.write(data.upper())
        await writer.drain()
    writer.close()


async def asynchronous():
    print("children", await asyncio.gather(*(child(i) for i in range(8))))
    path = os.path.join(tempfile.mkdtemp(), "socket")
    server = await asyncio.start_unix_server(echo, path)

    async def client(i):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(f"message {i}".encode())
        writer.write_eof()
        text = await reader.read()
        writer.close()
        return text.decode()

    print("sockets", await asyncio.gather(*(client(i) for i in range(5))))
    server.close()
    shutil.rmtree(os.path.dirname(path))
    try:
        await asyncio.wait_for(asyncio.sleep(50), 0.05)
    except asyncio.TimeoutError:
        print("timeout")
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, done.set)
    os.kill(os.getpid(), signal.SIGUSR1)
    await asyncio.wait_for(done.wait(), 30)
    print("thread", await asyncio.to_thread(square, 12))


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)
    threads()
    subprocesses()
    processes()
    asyncio.run(asynchronous())
