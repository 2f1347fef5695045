from __future__ import annotations

import socket

import pytest

from opencqrs_py.engines.spark.signals import SignalLine


def read_line(reader: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        data += reader.recv(1_000)
    return data


def test_lines_sent_before_the_reader_came_wait_for_it():
    line = SignalLine()
    line.send(["early", "ä"])
    with socket.create_connection(("127.0.0.1", line.port), timeout=10) as reader:
        assert read_line(reader).decode() == "early\nä\n"
        line.send(["late"])
        assert read_line(reader) == b"late\n"
    line.close()


def test_a_line_that_nobody_read_can_be_closed():
    line = SignalLine()
    port = line.port
    line.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=10)
