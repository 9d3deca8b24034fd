#!/usr/bin/env python3
"""Moves memory between two processes with Mooncake's transfer engine over RDMA, and compares the contents.

    roce run --port PORT -- python3 mooncake_move.py receive 127.0.0.1
    roce run --port PORT -- python3 mooncake_move.py send 127.0.0.1

The sender writes --mib MiB of random bytes into the receiver's memory and reads them back. Both compare the contents.
The address is that of the receiver, by which the sender also reaches Mooncake's handshake. docs/user/mooncake.md
explains the example.
"""

import argparse
import ctypes
import hashlib
import json
import mmap
import os
import socket
import sys
import time

try:
    from mooncake.engine import TransferEngine
except ImportError as error:
    sys.exit(f"{error}\nInstall the transfer engine: pip install mooncake-transfer-engine-non-cuda")

MIB = 1 << 20
# Bytes of one transfer of the engine, which divides them further.
TRANSFER = 64 * MIB


def address_of(memory):
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def digest(memory):
    return hashlib.blake2b(memory).hexdigest()


def start(host, device):
    """Starts an engine that is reached at `host`; returns the engine and its name for peers."""
    engine = TransferEngine()
    if engine.initialize(host, "P2PHANDSHAKE", "rdma", device) != 0:
        sys.exit(f"the transfer engine cannot use the device {device!r}")
    return engine, f"{host}:{engine.get_rpc_port()}"


def register(engine, length):
    memory = mmap.mmap(-1, length)
    if engine.register_memory(address_of(memory), length) != 0:
        sys.exit(f"{length} bytes cannot be registered")
    return memory


def receive(options):
    engine, name = start(options.host, options.device)
    with socket.create_server((options.host, options.port)) as server:
        sender, _ = server.accept()
    with sender, sender.makefile("rw") as lines:
        length = json.loads(lines.readline())
        memory = register(engine, length)
        print(json.dumps([name, address_of(memory)]), file=lines, flush=True)
        wanted = json.loads(lines.readline())
        equal = digest(memory) == wanted
        print(json.dumps(equal), file=lines, flush=True)
        # The sender reads the memory until it closes the connection.
        lines.readline()
    engine.unregister_memory(address_of(memory))
    print(f"received {length // MIB} MiB, {'equal' if equal else 'DIFFERENT'}")
    return equal


def move(transfer, name, local, remote, length, verb):
    """Calls `transfer` for each part of the memory, and prints the goodput."""
    before = time.monotonic()
    for offset in range(0, length, TRANSFER):
        part = min(TRANSFER, length - offset)
        if transfer(name, local + offset, remote + offset, part) != 0:
            sys.exit(f"the {verb} of {part} bytes at offset {offset} failed")
    seconds = time.monotonic() - before
    print(f"{verb} {length // MIB} MiB in {seconds:.2f} s, {length * 8 / seconds / 1e9:.1f} Gbit/s")


def send(options):
    engine, _ = start(options.own_host or options.host, options.device)
    length = options.mib * MIB
    source, back = register(engine, length), register(engine, length)
    for offset in range(0, length, MIB):
        source[offset : offset + MIB] = os.urandom(MIB)
    with socket.create_connection((options.host, options.port)) as receiver, receiver.makefile("rw") as lines:
        print(json.dumps(length), file=lines, flush=True)
        name, remote = json.loads(lines.readline())
        move(engine.transfer_sync_write, name, address_of(source), remote, length, "write")
        print(json.dumps(digest(source)), file=lines, flush=True)
        received = json.loads(lines.readline())
        move(engine.transfer_sync_read, name, address_of(back), remote, length, "read")
        equal = received and digest(back) == digest(source)
        print("equal" if equal else "DIFFERENT")
    return equal


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=["receive", "send"])
    parser.add_argument("host", help="address of the receiver")
    parser.add_argument("--own-host", help="address of the sender, if it is another host")
    parser.add_argument("--port", type=int, default=18650, help="TCP port of the receiver (default: %(default)s)")
    parser.add_argument("--device", default="roce0", help="RDMA device (default: %(default)s)")
    parser.add_argument("--mib", type=int, default=1024, help="MiB to move (default: %(default)s)")
    options = parser.parse_args()
    sys.exit(0 if {"receive": receive, "send": send}[options.role](options) else 1)


main()
