"""An attack on the ports of a run on Spark: what another user of the machine can send, and what comes back.

    python spark_attack.py BLOCK PORT...

Becomes the user ``nobody`` if it is started as root, speaks the protocol of Spark's network layer by hand, without any
secret, and prints JSON: for each port ``block``, ``refused`` or ``silent``, and what was sent back. Not a test itself.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys

_NOBODY = 65_534
_CHUNK, _REQUEST = 0, 3  # types of messages
_CHUNK_DATA, _ANSWER = 1, 4


def become_nobody() -> None:
    """Give up the rights of root."""
    "localhost".encode("idna")  # loaded while this user can still read it
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)


def attacked(port: int, block: str) -> tuple[str, bytes]:
    """Request a block from a port; return the outcome and the last answer."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=3) as line:
            line.sendall(message(_REQUEST, struct.pack(">qi", 1, len(opening(block))) + opening(block)))
            kind, body = answer(line)
            if kind != _ANSWER or len(body) < 17:
                return "refused", body
            stream = body[13:21]
            line.sendall(message(_CHUNK, stream + struct.pack(">i", 0)))
            kind, body = answer(line)
            return ("block" if kind == _CHUNK_DATA else "refused"), body
    except (OSError, struct.error) as error:
        return "silent", repr(error).encode()


def opening(block: str) -> bytes:
    texts = [struct.pack(">i", len(text)) + text for text in (b"app", b"driver", block.encode())]
    return b"\0" + texts[0] + texts[1] + struct.pack(">i", 1) + texts[2]


def message(kind: int, rest: bytes) -> bytes:
    return struct.pack(">qb", 9 + len(rest), kind) + rest


def answer(line: socket.socket) -> tuple[int, bytes]:
    length, kind = struct.unpack(">qb", exactly(line, 9))
    return kind, exactly(line, min(length - 9, 10_000_000))


def exactly(line: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = line.recv(count - len(data))
        if not part:
            raise ConnectionResetError
        data += part
    return data


if __name__ == "__main__":
    become_nobody()
    answers = {port: attacked(int(port), sys.argv[1]) for port in sys.argv[2:]}
    json.dump({port: (kind, body.decode("latin-1")) for port, (kind, body) in answers.items()}, sys.stdout)
