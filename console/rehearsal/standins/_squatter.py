"""Someone else's server on a port of the practice network: `_squatter.py PORT`. Answers 404 to all, says when it listens."""

import json
import os
import socket
import sys


def main(port: int) -> None:
    net = os.path.realpath(os.environ["RELAUNCH_PRACTICE_ROOT"] + "/net")
    os.makedirs(net, exist_ok=True)
    path = f"{net}/{port}.sock"
    if os.path.exists(path):
        os.unlink(path)
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen(8)
    with open(f"{net}/{port}.json", "w") as file:
        json.dump({"pid": os.getpid(), "started": started()}, file)
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    while True:
        peer, _ = server.accept()
        with peer:
            peer.settimeout(5)
            try:
                peer.recv(65536)
                peer.sendall(
                    b"HTTP/1.1 404 Not Found\r\nServer: something-else\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                )
            except OSError:
                continue


def started() -> int | None:
    try:
        with open("/proc/self/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except OSError:
        return None


main(int(sys.argv[1]))
