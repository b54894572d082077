"""A writer of ROWS rows is killed midway; what it committed must be whole, and be a prefix.

usage: sqlite_kill.py [ROWS] [JOURNAL_MODE]
"""
import hashlib, os, signal, sqlite3, subprocess, sys, tempfile, time

BATCH = 1000


def text(i):
    return hashlib.md5(str(i).encode()).hexdigest()


def write(path, rows, mode, stop):
    """Inserts the missing rows, telling after each commit how many there are. The transaction that would reach `stop`
    rows stays open: a writer that is to be killed is still there, however late that comes."""
    database = sqlite3.connect(path, isolation_level=None)
    database.execute(f"pragma journal_mode={mode}").fetchone()
    database.execute("create table if not exists t (id integer primary key, body text)")
    done = database.execute("select count(*) from t").fetchone()[0]
    while done < rows:
        database.execute("begin")
        upto = min(rows, done + BATCH)
        database.executemany("insert into t values (?, ?)", ((i, text(i)) for i in range(done, upto)))
        while upto >= stop:
            signal.pause()
        database.execute("commit")
        done = upto
        print(done, flush=True)


def check(path):
    database = sqlite3.connect(path)
    assert database.execute("pragma integrity_check").fetchone() == ("ok",)
    rows = database.execute("select id, body from t order by id").fetchall()
    assert all(i == n and body == text(n) for n, (i, body) in enumerate(rows)), "not a prefix"
    assert len(rows) % BATCH == 0 or len(rows) == ROWS, "a torn transaction"
    return len(rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        write(sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
        sys.exit()
    ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else 100000
    MODE = sys.argv[2] if len(sys.argv) > 2 else "delete"
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "database")
        command = [sys.executable, __file__, "--write", path, str(ROWS), MODE]
        for kill_after in (ROWS // 4, ROWS // 2):
            stop = kill_after + ROWS // 2
            writer = subprocess.Popen([*command, str(stop)], stdout=subprocess.PIPE, text=True)
            told = 0
            while told < kill_after:
                told = int(writer.stdout.readline())
            time.sleep(0.003)  # somewhere inside the next transaction
            writer.send_signal(signal.SIGKILL)
            assert writer.wait() == -signal.SIGKILL
            # Commits may have been told of before the kill and not been read yet, so the count is a lower bound.
            assert check(path) >= told, "a committed row is lost"
            print("killed: whole, a prefix, nothing committed lost")
        subprocess.run([*command, str(ROWS + 1)], stdout=subprocess.DEVNULL, check=True)
        assert check(path) == ROWS
        database = sqlite3.connect(path)
        print(ROWS, "rows", hashlib.sha256("".join(r[0] for r in database.execute(
            "select body from t order by id")).encode()).hexdigest()[:16])
        print(database.execute("select count(*) from t where body like '00%'").fetchone()[0])
        database.close()
