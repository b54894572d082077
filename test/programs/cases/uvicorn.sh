# needs: python3 curl /made/py/fastapi /made/py/uvicorn
. /programs/common.sh
export PYTHONPATH=/made/py
cat >app.py <<'P'
import asyncio, fastapi
from pydantic import BaseModel
app = fastapi.FastAPI()
class Item(BaseModel):
    name: str
    price: float
@app.post('/items')
async def make(item: Item): return {'name': item.name.upper(), 'twice': item.price * 2}
@app.get('/slow')
async def slow():
    await asyncio.sleep(0.2)
    return 'slept'
@app.get('/thread')
def thread(): return sum(range(10000))
P
python3 -m uvicorn --host 127.0.0.1 --port 28091 --workers 2 app:app >log 2>&1 & server=$!
until_served 28091
post() { get -H 'Content-Type: application/json' -d "$1" localhost:28091/items; echo; }
post '{"name": "a", "price": 1.5}'
post '{"name": "a", "price": "x"}' | cut -c 1-60
at_once 60 'get localhost:28091/$([ $((i % 2)) = 0 ] && echo slow || echo thread)'
midst
get -w '\n' localhost:28091/thread
get localhost:28091/openapi.json | sha256sum
ends uvicorn $server
