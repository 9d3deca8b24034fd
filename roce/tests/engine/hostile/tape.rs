//! Decodes bytes to steps of a hostile peer, the network and the application. Every byte string is a script. Most
//! packets have few wrong fields, otherwise the first checks would drop them.

use roce::congestion::CongestionScheme;
use roce::mem::Access;
use roce::qp::{ConnAttr, PathMtu, Placement, QpState, ServiceType};
use roce::recovery::RecoveryScheme;

const STEPS_MAX: usize = 400;
/// Window under selective repeat, in packets: so small that scripts exceed the window.
const SELECTIVE_WINDOW_PKTS: u32 = 64;

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub is_ipv6: bool,
    /// The completion queue has only four entries, so that it overflows.
    pub tiny_cq: bool,
    pub service: ServiceType,
    /// Receives are posted to a shared receive queue.
    pub has_srq: bool,
    pub first_psn: u32,
    /// The access rights of the queue pair may lack remote WRITE, remote READ or both.
    pub conn: ConnAttr,
}

/// The region to which an R_Key refers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A region that permits remote WRITE and READ.
    Shared,
    /// A region that permits remote READ only.
    ReadOnly,
    /// A region that permits no remote access.
    Private,
    /// A region of a protection domain that is not the queue pair's.
    Foreign,
    /// No region: the R_Key of `Shared` with one bit inverted.
    NoRegion,
}

/// A PSN: relative to a PSN of the engine, or absolute.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PsnPlan {
    /// Offset from the engine's expected PSN.
    Expected(i32),
    /// Offset from the PSN of the request that the engine sent `back` requests before its last request.
    Request {
        back: u8,
        offset: i32,
    },
    Any(u32),
}

/// Address and length of a RETH, mostly near region bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RethPlan {
    pub target: Target,
    /// Offset in bytes from the region's start. If `from_end`, number of bytes before the last address at which
    /// `len_bytes` bytes fit into the region.
    pub offset: i64,
    pub from_end: bool,
    pub len_bytes: u32,
}

/// Fault of a packet, in addition to wrong values in the fields of [`PacketPlan`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Damage {
    None,
    UnknownQp(u32),
    /// The packet is addressed to a queue pair that is connected to a different peer.
    OtherQp,
    /// The packet is addressed to a queue pair in INIT.
    IdleQp,
    PKey(u16),
    WrongSource,
    WrongDestination,
    /// Replaces the pad count; the ICRC is correct.
    Pad(u8),
    /// Changes a byte of the packet; the ICRC is correct.
    Byte {
        at: u16,
        xor: u8,
    },
    /// Changes a byte of the frame; the ICRC is not recomputed.
    Corrupt {
        at: u16,
        xor: u8,
    },
    Truncate(u16),
    Extend(u8),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketPlan {
    pub opcode: u8,
    pub psn: PsnPlan,
    pub payload_len: usize,
    pub reth: RethPlan,
    pub syndrome: u8,
    /// Bits 0 to 3: solicited event, AckReq, FECN, BECN. If bits 4 and 5 are both 1: CE mark.
    pub flags: u8,
    pub damage: Damage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    SendWithImm,
    Write,
    WriteWithImm,
    Read,
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// The peer sends one packet.
    Packet(PacketPlan),
    /// The peer sends a message. Packet n is lost if bit n mod 32 of `lost` is set.
    Message {
        kind: Kind,
        reth: RethPlan,
        lost: u32,
    },
    /// The peer responds to all unanswered requests. Response n is lost if bit n mod 32 of `lost` is set.
    Answer {
        lost: u32,
    },
    /// The peer sends bytes that need not be a packet.
    Raw(Vec<u8>),
    /// The application posts a send work request.
    Send {
        kind: Kind,
        len_bytes: u32,
        sges: u8,
        inline: bool,
        fence: bool,
        bad_key: bool,
    },
    /// The application posts a receive.
    Recv {
        len_bytes: u32,
        sges: u8,
        bad_key: bool,
    },
    /// The clock advances by `nanos`. Then the engine is polled, and may send at most `room` frames.
    Poll {
        nanos: u64,
        room: usize,
    },
    /// The engine is polled at its next deadline.
    Sleep,
    /// The application deregisters the shared region. `Register` registers the region again.
    Deregister,
    Register,
    Modify(QpState),
}

/// Bytes decoded to choices. After the last byte, each read returns 0.
pub(crate) struct Tape<'a>(pub(crate) &'a [u8]);

impl Tape<'_> {
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    pub(crate) fn word(&mut self) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    pub(crate) fn below(&mut self, end: u8) -> u8 {
        self.byte() % end
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()]
    }

    /// Reads a byte; returns true with probability 1 / `out_of`.
    pub(crate) fn once_in(&mut self, out_of: u8) -> bool {
        self.byte() % out_of == 1
    }
}

pub(crate) fn script(bytes: &[u8]) -> (Setup, Vec<Step>) {
    let mut tape = Tape(bytes);
    let setup = setup(&mut tape);
    let mut steps = Vec::new();
    while !tape.0.is_empty() && steps.len() < STEPS_MAX {
        steps.push(step(&mut tape, setup.conn.path_mtu.bytes()));
    }
    (setup, steps)
}

/// Returns attributes with path MTU 256, and with timeouts so short that they expire during scripts.
pub(crate) fn conn() -> ConnAttr {
    ConnAttr {
        path_mtu: PathMtu::Mtu256,
        access: Access::REMOTE_WRITE | Access::REMOTE_READ,
        timeout: 4,
        min_rnr_timer: 1,
        congestion: Some(CongestionScheme::default()),
        ..ConnAttr::default()
    }
}

pub(crate) fn setup(tape: &mut Tape<'_>) -> Setup {
    let flags = tape.byte();
    let mtu = tape.byte();
    let mtus = [PathMtu::Mtu256, PathMtu::Mtu256, PathMtu::Mtu1024, PathMtu::Mtu4096];
    let refuses = if flags & 0x30 == 0x30 { flags >> 6 } else { 0 };
    let granted = |bit, right| if refuses & bit == 0 { right } else { Access::NONE };
    let services = tape.byte();
    let rd_atomic = [1, 2, 4, 0][usize::from(services & 3)];
    let conn = ConnAttr {
        path_mtu: mtus[usize::from(mtu % 4)],
        access: granted(1, Access::REMOTE_WRITE) | granted(2, Access::REMOTE_READ),
        max_rd_atomic: rd_atomic,
        max_dest_rd_atomic: rd_atomic,
        retry_count: tape.below(8),
        rnr_retry: tape.below(8),
        recovery: match mtu & 0x60 {
            0 => RecoveryScheme::GoBackN,
            0x20 => RecoveryScheme::ImprovedGoBackN,
            _ => RecoveryScheme::SelectiveRepeat { window_pkts: SELECTIVE_WINDOW_PKTS },
        },
        placement: if mtu & 0x80 == 0 { Placement::InOrder } else { Placement::Relaxed },
        congestion: Some(match mtu & 0x1C {
            0x04 => CongestionScheme::None,
            0x08 => parsed("dcqcn:rpg_min_rate=1000"),
            0x0C => parsed("dcqcn:rpg_min_rate=1000,rate_to_set_on_first_cnp=2000,window_pkts=3"),
            0x10 => parsed("swift:base_target_nanos=1000,min_window_milli=100"),
            0x14 => parsed("timely:t_low_nanos=100,t_high_nanos=2000,min_rate_mbps=1000"),
            _ => CongestionScheme::default(),
        }),
        ..conn()
    };
    let first_psn = tape.pick(&[0, 0xFF_FFF0, 0x7F_FFF8, 1]);
    Setup {
        is_ipv6: flags & 1 != 0,
        tiny_cq: flags & 0x0E == 0x0E,
        service: if services & 0xC0 == 0xC0 { ServiceType::Uc } else { ServiceType::Rc },
        has_srq: services & 0x30 == 0x30,
        first_psn,
        conn,
    }
}

fn parsed(name: &str) -> CongestionScheme {
    name.parse().expect("it is the name of a scheme")
}

fn step(tape: &mut Tape<'_>, mtu: u32) -> Step {
    match tape.below(32) {
        0..=9 => Step::Packet(packet(tape, mtu)),
        10..=12 => {
            let kind = kind(tape);
            Step::Message { kind, reth: honest_reth(tape, mtu), lost: losses(tape) }
        }
        13..=15 => Step::Answer { lost: losses(tape) },
        16 => {
            let len = usize::from(tape.below(96));
            Step::Raw((0..len).map(|_| tape.byte()).collect())
        }
        17..=19 => Step::Send {
            kind: kind(tape),
            len_bytes: length(tape, mtu),
            sges: tape.below(4),
            inline: tape.once_in(4),
            fence: tape.once_in(6),
            bad_key: tape.once_in(40),
        },
        20..=22 => {
            Step::Recv { len_bytes: length(tape, mtu), sges: tape.below(4), bad_key: tape.once_in(40) }
        }
        23 => Step::Sleep,
        24 if tape.once_in(4) => Step::Deregister,
        25 if tape.once_in(2) => Step::Register,
        26 => Step::Modify(tape.pick(&[
            QpState::Rts,
            QpState::Rts,
            QpState::Rts,
            QpState::Sqd,
            QpState::Sqd,
            QpState::Reset,
            QpState::Err,
        ])),
        _ => Step::Poll {
            nanos: tape.pick(&[0, 1, 1000, 20_000, 4096 << 4, 1_000_000, 700_000_000]),
            room: tape.pick(&[usize::MAX, usize::MAX, usize::MAX, 0, 1, 2, 7]),
        },
    }
}

pub(crate) fn kind(tape: &mut Tape<'_>) -> Kind {
    tape.pick(&[Kind::Send, Kind::SendWithImm, Kind::Write, Kind::WriteWithImm, Kind::Read, Kind::Write])
}

pub(crate) fn losses(tape: &mut Tape<'_>) -> u32 {
    if tape.once_in(3) { tape.word() & tape.word() } else { 0 }
}

fn length(tape: &mut Tape<'_>, mtu: u32) -> u32 {
    let packets = u32::from(tape.below(4)) * mtu;
    let near = i32::from(tape.pick(&[0i8, 0, 1, -1, 3, 7, 64]));
    packets.saturating_add_signed(near)
}

pub(crate) fn honest_reth(tape: &mut Tape<'_>, mtu: u32) -> RethPlan {
    RethPlan {
        target: if tape.once_in(24) { target(tape) } else { Target::Shared },
        offset: i64::from(tape.byte()) * 4,
        from_end: tape.once_in(3),
        len_bytes: length(tape, mtu),
    }
}

fn target(tape: &mut Tape<'_>) -> Target {
    use Target::*;
    tape.pick(&[Shared, ReadOnly, Private, Foreign, NoRegion])
}

pub(crate) fn packet(tape: &mut Tape<'_>, mtu: u32) -> PacketPlan {
    let opcode = match tape.below(16) {
        0..=9 => tape.below(0x18),
        10..=13 => 0x0D + tape.below(5),
        14 => tape.pick(&[0x06, 0x0A, 0x0C, 0x11, 0xC0, 0x81, 0xE0, 0xE1, 0xE2, 0xE4]),
        _ => tape.byte(),
    };
    let offset = i32::from(tape.pick(&[0i8, 0, 0, 0, 0, 1, -1, 2, -2, 7, -9, 100]));
    let psn = match tape.below(16) {
        0..=6 => PsnPlan::Expected(offset),
        7..=13 => PsnPlan::Request { back: tape.below(6), offset },
        14 => PsnPlan::Expected(tape.pick(&[1 << 23, (1 << 23) - 1, -(1 << 23) + 1, 128])),
        _ => PsnPlan::Any(tape.word()),
    };
    let payload_len = match tape.below(8) {
        0..=2 => mtu as usize,
        3..=5 => length(tape, mtu) as usize,
        6 => usize::from(tape.byte()),
        _ => 0,
    };
    PacketPlan {
        opcode,
        psn,
        payload_len,
        reth: wild_reth(tape, mtu),
        syndrome: match tape.below(4) {
            0..=1 => 0x1F,
            2 => tape.pick(&[0x60, 0x60, 0x21, 0x61, 0x62, 0x63, 0x64, 0x20]),
            _ => tape.byte(),
        },
        flags: tape.byte(),
        damage: damage(tape),
    }
}

fn wild_reth(tape: &mut Tape<'_>, mtu: u32) -> RethPlan {
    if tape.byte() < 128 {
        return honest_reth(tape, mtu);
    }
    RethPlan {
        target: target(tape),
        offset: tape.pick(&[0, 1, -1, 4, -4, 4096, -4096, 8192, i64::MAX, i64::MIN]),
        from_end: tape.once_in(2),
        len_bytes: match tape.below(4) {
            0..=1 => length(tape, mtu),
            2 => tape.pick(&[1 << 31, (1 << 31) + 1, u32::MAX, 8192, 8193, 1 << 24]),
            _ => tape.word(),
        },
    }
}

fn damage(tape: &mut Tape<'_>) -> Damage {
    match tape.below(48) {
        0 => Damage::UnknownQp(tape.word()),
        1 => Damage::OtherQp,
        2 => Damage::IdleQp,
        3 => Damage::PKey(tape.pick(&[0x7FFF, 0, 0x8000, 0xFFFE])),
        4 => Damage::WrongSource,
        5 => Damage::WrongDestination,
        6 => Damage::Pad(tape.below(4)),
        7 | 8 => Damage::Byte { at: u16::from(tape.byte()), xor: tape.byte() },
        9 => Damage::Corrupt { at: tape.word() as u16, xor: tape.byte() },
        10 => Damage::Truncate(tape.word() as u16),
        11 => Damage::Extend(tape.byte()),
        _ => Damage::None,
    }
}
