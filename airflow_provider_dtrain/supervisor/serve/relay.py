"""Program that connects its standard input and output with the socket of a job on this machine."""

from __future__ import annotations

import binascii
import os
import signal
import socket
import sys
import threading

#: Line before the bytes of the connection: a login script may have printed something.
MARK = b"\nDTRAIN-RELAY\n"
#: Bytes of one line of output. Slurm passes output on line by line, in messages of 1 KiB.
LINE_BYTES = 720


def _to_socket(sock: socket.socket) -> None:
    try:
        while True:
            data = os.read(0, 65536)
            if not data:
                break
            sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
    except OSError:
        return


def main(name: str) -> None:
    """Carry bytes until the job closes the connection."""
    # At its end, Slurm sends it to the relay too, and the checkpoint is still to come.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect("\0" + name)
    except OSError as error:
        sys.exit(f"no process of the job listens on this machine: {error}")
    os.write(1, MARK)
    thread = threading.Thread(target=_to_socket, args=(sock,))
    thread.daemon = True
    thread.start()
    while True:
        data = sock.recv(65536)
        if not data:
            break
        lines = b"".join(
            binascii.b2a_base64(data[start : start + LINE_BYTES]) for start in range(0, len(data), LINE_BYTES)
        )
        while lines:
            lines = lines[os.write(1, lines) :]
    os._exit(0)
