"""A server of asyncio that answers with a nonce, how often it was asked, and how often its timer fired."""
import asyncio
import sys
import uuid

nonce, asked, ticks = uuid.uuid4().hex, 0, 0


async def tick():
    global ticks
    while True:
        await asyncio.sleep(0.01)
        ticks += 1


async def answer(reader, writer):
    global asked
    await reader.readuntil(b"\r\n\r\n")
    asked += 1
    before = ticks
    while ticks == before:
        await asyncio.sleep(0.005)
    body = f"{nonce} {asked}".encode()
    writer.write(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    await writer.drain()
    writer.close()


async def main():
    timer = asyncio.create_task(tick())
    server = await asyncio.start_server(answer, "127.0.0.1", int(sys.argv[1]))
    async with server:
        await asyncio.gather(timer, server.serve_forever())


asyncio.run(main())
