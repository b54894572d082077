"""A program that is to go on in a restored container: it holds what its topic is about, and answers lines at a port.

A request is a list in JSON, a method of the topic and its arguments. The answer has a nonce that was made at the start, and how many
requests there were.
"""
import importlib
import json
import socket
import sys
import traceback
import uuid


def topic_of(name):
    for module in ("topics_tasks", "topics_files", "topics_ipc", "topics_sockets", "topics_pairs", "topics_host", "topics_odd"):
        found = getattr(importlib.import_module(module), name, None)
        if found:
            return found
    raise SystemExit(f"no topic is called {name}")


def main():
    topic, nonce, asked = topic_of(sys.argv[2])(), uuid.uuid4().hex, 0
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    while True:
        client, _ = listener.accept()
        with client:
            line = client.makefile().readline()
            if not line:
                continue
            verb, *words = json.loads(line)
            answer = {"nonce": nonce, "asked": asked}
            try:
                answer["result"] = getattr(topic, verb)(*words)
            except Exception:
                answer["wrong"] = " ".join("".join(traceback.format_exc(limit=-2)).split())
            asked += 1
            client.sendall(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main()
