"""A host that sends whatever it is given and says what it saw.

    attacker.py INTERFACE

Commands are lines on stdin, each is answered by a line on stdout:

    send TIMES HEX...    sends the frames in order, TIMES times over; answered by how many
    seen                 the frames of others that have come in since the last call, in hexadecimal
    quiet                waits until no frame of others has come in for 300 ms; answered by how many did
"""

import collections
import socket
import sys
import threading
import time

ETH_P_ALL = 3
SEEN_MAX = 200_000
QUIET_SECONDS = 0.3

seen = collections.deque(maxlen=SEEN_MAX)
total = 0
last = time.monotonic()


def listen(interface):
    global last, total
    sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    sniffer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
    sniffer.bind((interface, ETH_P_ALL))
    ready.set()
    while True:
        frame, (_, _, kind, _, _) = sniffer.recvfrom(65536)
        if kind != socket.PACKET_OUTGOING:
            seen.append(frame)
            total += 1
            last = time.monotonic()


def wait_quiet():
    before = total
    while time.monotonic() - last < QUIET_SECONDS:
        time.sleep(0.01)
    return total - before


interface = sys.argv[1]
ready = threading.Event()
threading.Thread(target=listen, args=(interface,), daemon=True).start()
ready.wait()
out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
out.bind((interface, 0))
print("ready", flush=True)
for line in sys.stdin:
    command, *arguments = line.split()
    if command == "send":
        times, frames = int(arguments[0]), [bytes.fromhex(text) for text in arguments[1:]]
        for _ in range(times):
            for frame in frames:
                out.send(frame)
        print(times * len(frames), flush=True)
    elif command == "quiet":
        print(wait_quiet(), flush=True)
    else:
        taken = [seen.popleft() for _ in range(len(seen))]
        print(" ".join(frame.hex() for frame in taken), flush=True)
