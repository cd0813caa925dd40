"""Load on a server, run on the node by its own Python: returns when every stream flows, and goes on in the background.

    load.py PORT MODEL

Eight streams of long completions, and one client that began a request and never ends it. That one makes certain what load
alone does in some tries only: told to stop, the server waits for its clients and never ends.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys
import threading

STREAMS = 8


def stream(port: int, model: str, flows: threading.Semaphore) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    body = {"model": model, "prompt": "request", "max_tokens": 3500, "stream": True, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.readline()
    flows.release()
    try:
        while answer.readline():
            pass
    except OSError:
        pass  # the server went away, as it should


def main(port: int, model: str) -> None:
    flows = threading.Semaphore(0)
    stalled = socket.create_connection(("127.0.0.1", port))
    stalled.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: node\r\nContent-Type: application/json\r\n")
    stalled.sendall(b"Content-Length: 500\r\n\r\n{")
    reading, writing = os.pipe()
    if os.fork():
        os.read(reading, 1)
        os._exit(0)
    for _ in range(STREAMS):
        threading.Thread(target=stream, args=(port, model, flows)).start()
    for _ in range(STREAMS):
        flows.acquire()
    os.write(writing, b"1")
    stalled.recv(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
