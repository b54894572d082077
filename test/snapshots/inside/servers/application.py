"""An application for uvicorn that says a nonce and how often it was asked, and counts in a task meanwhile."""
import asyncio
import uuid

nonce, asked, ticks, ticking = uuid.uuid4().hex, 0, 0, None


async def tick():
    global ticks
    while True:
        await asyncio.sleep(0.01)
        ticks += 1


async def application(scope, receive, send):
    global asked, ticking
    asked += 1
    ticking = ticking or asyncio.create_task(tick())
    before = ticks
    while ticks == before:
        await asyncio.sleep(0.005)
    body = f"{nonce} {asked}\n".encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})
