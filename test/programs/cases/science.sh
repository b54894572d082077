# needs: python3 /made/py/sklearn /made/py/pandas /made/py/cv2 /made/py/PIL
# timeout: 240
# options: --memory 3G
. /programs/common.sh
export PYTHONPATH=/made/py OPENBLAS_NUM_THREADS=2 OMP_NUM_THREADS=2
cat >t.py <<'P'
import hashlib, io, sys
import numpy as np, pandas as pd
r = np.random.default_rng(1)
a = r.standard_normal((300, 300))
print(round(float(np.linalg.det(a / 10)), 6), np.linalg.matrix_rank(a), round(float(np.abs(np.fft.ifft(np.fft.fft(a)) - a).max()), 9))
m = np.memmap('map', dtype='f8', mode='w+', shape=(1000, 100)); m[:] = 3; m.flush(); print(np.load, m.sum()) if False else print(m.sum())
d = pd.DataFrame({'k': r.integers(0, 10, 10000), 'v': r.standard_normal(10000)})
d.to_csv('d.csv', index=False); e = pd.read_csv('d.csv'); print(e.groupby('k').v.mean().round(6).tolist()); d.to_pickle('p'); print(len(pd.read_pickle('p')))
import sqlite3; d.to_sql('t', sqlite3.connect('db')); print(pd.read_sql('select count(*) c from t', sqlite3.connect('db')).c[0])
print('midst', flush=True); sys.stdin.readline()
from sklearn.ensemble import RandomForestClassifier
from sklearn.datasets import make_classification
from sklearn.model_selection import cross_val_score
x, y = make_classification(800, 12, random_state=0)
print(cross_val_score(RandomForestClassifier(40, random_state=0, n_jobs=2), x, y, n_jobs=2).round(4).tolist())
import cv2
i = np.zeros((480, 640, 3), np.uint8); cv2.circle(i, (320, 240), 100, (10, 200, 30), -1); cv2.putText(i, 'dormouse', (50, 50), cv2.FONT_HERSHEY_SIMPLEX, 1, (255,) * 3, 2)
ok, png = cv2.imencode('.png', cv2.GaussianBlur(i, (7, 7), 2)); print(ok, hashlib.sha256(png).hexdigest()); print(len(cv2.findContours(cv2.Canny(i, 50, 150), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)[0]))
w = cv2.VideoWriter('v.avi', cv2.VideoWriter_fourcc(*'MJPG'), 10, (640, 480)); [w.write(i) for _ in range(20)]; w.release(); c = cv2.VideoCapture('v.avi'); print(int(c.get(cv2.CAP_PROP_FRAME_COUNT)))
from PIL import Image, ImageFilter
p = Image.fromarray(i).rotate(30).filter(ImageFilter.GaussianBlur(3)).resize((100, 100)); b = io.BytesIO(); p.save(b, 'JPEG'); p.save(b, 'WEBP'); print(hashlib.sha256(p.tobytes()).hexdigest())
P
python3 t.py
