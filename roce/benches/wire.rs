//! CPU time with hot caches: parse, ICRC and build of packets with small and large payloads.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use roce::id::{Gid, Mac, PKey, Qpn, RKey};
use roce::mem::Memory;
use roce::psn::Psn;
use roce::wire::{HeaderSpec, HeaderTemplate, Opcode, Packet, PacketSpec, PrecedingReads, Reth, icrc};
use std::hint::black_box;
use std::net::{Ipv4Addr, Ipv6Addr};

const PAYLOADS: [usize; 4] = [8, 64, 1024, 4096];

fn template(is_ipv6: bool) -> HeaderTemplate {
    let v4 = |last| Gid::from(Ipv4Addr::new(192, 0, 2, last));
    let v6 = |last| Gid::from(Ipv6Addr::new(0x2001, 0xDB8, 0, 0, 0, 0, 0, last));
    let [src, dst] = if is_ipv6 { [v6(1), v6(2)] } else { [v4(1), v4(2)] };
    HeaderTemplate::new(&HeaderSpec {
        src_mac: Mac([2, 0, 0, 0, 0, 1]),
        dst_mac: Mac([2, 0, 0, 0, 0, 2]),
        vlan: None,
        src,
        dst,
        tclass: 0,
        ttl: 64,
        flow_label: 0x12345,
        udp_source_port: 0xC123,
        pkey: PKey::DEFAULT,
        dest_qp: Qpn::new(17),
    })
    .expect("one family")
}

fn spec(opcode: Opcode, payload_len: usize) -> PacketSpec {
    PacketSpec {
        opcode,
        solicited: false,
        ack_req: true,
        preceding_reads: PrecedingReads::NONE,
        fecn: false,
        becn: false,
        psn: Psn::new(0x123),
        ip_id: 7,
        payload_len,
    }
}

/// Builds a frame with a copy of `payload` and a correct ICRC.
fn build(template: &HeaderTemplate, frame: &mut [u8], opcode: Opcode, payload: &Memory) {
    let mut parts =
        template.write(frame, &spec(opcode, payload.len_bytes())).expect("a frame of the right length");
    payload.read(0, parts.payload).expect("as long as the payload");
    if opcode == Opcode::RC_RDMA_WRITE_ONLY {
        let reth = Reth { va: 0x1000, rkey: RKey(5), len_bytes: 64 };
        parts.set_reth(reth).expect("the opcode has a RETH");
    }
    template.seal(frame).expect("a written frame");
}

fn bench(c: &mut Criterion) {
    for (family, is_ipv6) in [("v4", false), ("v6", true)] {
        let template = template(is_ipv6);
        for len in PAYLOADS {
            let payload = Memory::alloc(len);
            payload.write(0, &vec![0x5A; len]).expect("it fits");
            for (name, opcode) in [("send", Opcode::RC_SEND_ONLY), ("write", Opcode::RC_RDMA_WRITE_ONLY)] {
                let ext_len = opcode.info().expect("in the table").ext_len_bytes;
                let mut frame = vec![0; template.frame_len(ext_len, len)];
                build(&template, &mut frame, opcode, &payload);
                let mut group = c.benchmark_group(format!("{family}/{name}/{len}"));
                group.throughput(Throughput::Bytes(len as u64));
                group.bench_function("parse", |b| b.iter(|| Packet::parse(black_box(&frame)).is_ok()));
                group.bench_function("icrc", |b| {
                    let packet = Packet::parse(&frame).expect("a good frame");
                    b.iter(|| icrc::compute(black_box(packet.l3())));
                });
                group.bench_function("write", |b| {
                    b.iter(|| template.write(black_box(&mut frame), black_box(&spec(opcode, len))).is_some());
                });
                group.bench_function("build", |b| {
                    b.iter(|| {
                        build(&template, black_box(&mut frame), black_box(opcode), black_box(&payload))
                    });
                });
                group.bench_function("check_and_copy", |b| {
                    let memory = black_box(Memory::alloc(len));
                    b.iter(|| {
                        let packet = Packet::parse(black_box(&frame)).expect("a good frame");
                        if packet.icrc_ok() {
                            memory.write(0, packet.payload).expect("it fits");
                        }
                    });
                });
                group.finish();
            }
        }
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
