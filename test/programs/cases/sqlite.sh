# needs: python3
# quick: yes
. /programs/common.sh
cat >t.py <<'P'
import multiprocessing as mp, sqlite3, sys, threading
def connect():
    db = sqlite3.connect('db', timeout=60, isolation_level=None); db.execute('pragma journal_mode=wal'); db.execute('pragma synchronous=normal'); return db
def write(k):
    db = connect()
    for i in range(150):
        db.execute('begin immediate'); db.execute('insert into t values (?, ?, ?)', (k, i, 'x' * (i % 50))); db.execute('update n set v = v + 1'); db.execute('commit')
def read(k):
    db = connect()
    for _ in range(150):
        db.execute('begin'); a, = db.execute('select v from n').fetchone(); b, = db.execute('select count(*) from t').fetchone(); db.execute('commit')
        assert a == b, (a, b)
if __name__ == '__main__':
    db = connect(); db.execute('create table t (k, i, s)'); db.execute('create index x on t (k, i)'); db.execute('create table n (v)'); db.execute('insert into n values (0)')
    all = [mp.Process(target=write, args=(k,)) for k in range(4)] + [mp.Process(target=read, args=(k,)) for k in range(3)]
    [p.start() for p in all]
    print('midst', flush=True); sys.stdin.readline()
    [p.join() for p in all]
    print([p.exitcode for p in all], db.execute('select v from n').fetchone(), db.execute('select count(*), sum(length(s)) from t').fetchone(), db.execute('pragma integrity_check').fetchone(), db.execute('pragma wal_checkpoint(truncate)').fetchone())
P
python3 t.py
