#!/usr/bin/env python3
"""One end of a connection over libibverbs, driven by a test: peer.py DEVICE TCP-PORT.

Commands come as lines of JSON over TCP and are answered in lines of JSON; tests/src/protocol.rs says
what they mean. Every TCP connection has a process of its own, and what was created in it goes with it.
"""

import ipaddress
import json
import random
import socket
import socketserver
import struct
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

OPS = {
    "send": e.IBV_WR_SEND,
    "send_with_imm": e.IBV_WR_SEND_WITH_IMM,
    "write": e.IBV_WR_RDMA_WRITE,
    "write_with_imm": e.IBV_WR_RDMA_WRITE_WITH_IMM,
    "read": e.IBV_WR_RDMA_READ,
}


def mtu_code(mtu_bytes):
    """enum ibv_mtu."""
    return mtu_bytes.bit_length() - 8


def swap(imm):
    """An immediate between host and network order, both ways."""
    return struct.unpack("=I", struct.pack("!I", imm))[0]


class Peer:
    """The objects of one TCP connection."""

    def __init__(self, device):
        self.context = Context(name=device)
        self.pd = PD(self.context)
        self.mrs = []
        self.qps = []

    def do_mr(self, len_bytes, access):
        mr = MR(self.pd, len_bytes, access)
        mr.write(bytes(len_bytes), len_bytes)
        self.mrs.append(mr)
        return {"mr": len(self.mrs) - 1, "addr": mr.buf, "rkey": mr.rkey}

    def do_qp(self, gid_index, depth):
        cq = CQ(self.context, 2 * depth)
        cap = QPCap(max_send_wr=depth, max_recv_wr=depth, max_send_sge=4, max_recv_sge=4)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap)
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = (
            e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
        )
        qp = QP(self.pd, init, attr)
        psn = random.getrandbits(24)
        gid = str(self.context.query_gid(port_num=1, index=gid_index))
        self.qps.append((qp, cq, psn))
        gid = str(ipaddress.IPv6Address(int(gid.replace(":", ""), 16)))
        return {"qp": len(self.qps) - 1, "qpn": qp.qp_num, "psn": psn, "gid": gid}

    def do_connect(self, qp, peer, gid_index, path_mtu_bytes, timeout, retry_count, rnr_retry,
                   min_rnr_timer, rd_atomic):
        qp, _, psn = self.qps[qp]
        gid = GID(ipaddress.IPv6Address(peer["gid"]).exploded)
        route = GlobalRoute(dgid=gid, sgid_index=gid_index, hop_limit=64)
        attr = QPAttr(port_num=1)
        attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        attr.path_mtu = mtu_code(path_mtu_bytes)
        attr.dest_qp_num = peer["qpn"]
        attr.rq_psn = peer["psn"]
        attr.max_dest_rd_atomic = rd_atomic
        attr.min_rnr_timer = min_rnr_timer
        qp.to_rtr(attr)
        attr.timeout = timeout
        attr.retry_cnt = retry_count
        attr.rnr_retry = rnr_retry
        attr.sq_psn = psn
        attr.max_rd_atomic = rd_atomic
        qp.to_rts(attr)
        return {}

    def do_write(self, mr, offset, hex):
        data = bytes.fromhex(hex)
        self.mrs[mr].write(data, len(data), offset)
        return {}

    def do_read(self, mr, offset, len_bytes):
        return {"hex": self.mrs[mr].read(len_bytes, offset).hex()}

    def sges(self, pieces):
        # pyverbs wants at least one entry.
        pieces = pieces or [{"mr": 0, "offset": 0, "len_bytes": 0}]
        mrs = self.mrs
        return [
            SGE(mrs[piece["mr"]].buf + piece["offset"], piece["len_bytes"], mrs[piece["mr"]].lkey)
            for piece in pieces
        ]

    def do_post_recv(self, qp, wrs):
        for wr in wrs:
            sges = self.sges(wr["pieces"])
            self.qps[qp][0].post_recv(RecvWR(wr_id=wr["wr_id"], num_sge=len(sges), sg=sges))
        return {}

    def do_post_send(self, qp, wrs):
        for wr in wrs:
            sges = self.sges(wr["pieces"])
            send = SendWR(
                wr_id=wr["wr_id"],
                opcode=OPS[wr["op"]],
                num_sge=len(sges),
                sg=sges,
                imm_data=swap(wr["imm"]),
                send_flags=e.IBV_SEND_SIGNALED,
            )
            if "write" in wr["op"] or "read" in wr["op"]:
                send.set_wr_rdma(wr["rkey"], wr["remote_addr"])
            self.qps[qp][0].post_send(send)
        return {}

    def do_poll(self, qp, count, timeout_millis):
        cq = self.qps[qp][1]
        end = time.monotonic() + timeout_millis / 1000
        found = []
        while len(found) < count and time.monotonic() < end:
            some = cq.poll(min(count - len(found), 32))[1]
            if not some:
                # The guest's CPUs are few, and the kernel needs them.
                time.sleep(0.0002)
            found += [self.completion(wc) for wc in some]
        return {"completions": found}

    @staticmethod
    def completion(wc):
        has_imm = wc.status == e.IBV_WC_SUCCESS and wc.wc_flags & e.IBV_WC_WITH_IMM
        return {
            "wr_id": wc.wr_id,
            "status": wc.status,
            "opcode": wc.opcode,
            "len_bytes": wc.byte_len,
            "imm": swap(wc.imm_data) if has_imm else None,
        }

    def do_state(self, qp):
        attr, _ = self.qps[qp][0].query(e.IBV_QP_STATE)
        return {"state": attr.qp_state}

    def do_destroy(self, qp):
        self.qps[qp][0].close()
        return {}

    def do_counters(self):
        return {}


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = Peer(sys.argv[1])
        for line in self.rfile:
            command = json.loads(line)
            try:
                answer = {"ok": getattr(peer, "do_" + command.pop("do"))(**command)}
            except Exception as error:  # whatever it is, the test should see it
                answer = {"error": f"{type(error).__name__}: {error}"}
            self.wfile.write(json.dumps(answer).encode() + b"\n")


class Server(socketserver.ForkingTCPServer):
    allow_reuse_address = True


with Server(("", int(sys.argv[2])), Handler) as server:
    server.serve_forever()
