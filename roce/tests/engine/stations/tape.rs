//! Decodes bytes to the steps of a script.

use super::{OWN_MAC, address, frames};
use roce::id::Mac;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const STEPS_MAX: usize = 400;
const MILLISECOND_NANOS: u64 = 1_000_000;

pub(crate) enum Step {
    Frame(Vec<u8>),
    Wait(u64),
    /// The application resolves a neighbour.
    Resolve {
        is_ipv6: bool,
        last: u8,
    },
    /// A station stops answering queries, or answers queries again.
    Leave(usize),
    /// A station changes its MAC and sends a claim.
    Move(usize, Mac),
    /// The application posts a WRITE to a station.
    Send(usize),
}

struct Tape<'a>(&'a [u8]);

impl Tape<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()]
    }

    fn mac(&mut self) -> Mac {
        let last = self.pick(&[9, 9, 9, 2, 3, 8]);
        match self.byte() {
            0..=220 => Mac([2, 0, 0, 0, 0, last]),
            221..=235 => OWN_MAC,
            236..=245 => Mac::default(),
            246..=250 => Mac::BROADCAST,
            _ => Mac([0x33, 0x33, 0, 0, 0, 1]),
        }
    }

    fn destination(&mut self) -> Mac {
        let solicited = Mac([0x33, 0x33, 0xFF, 0, 0, 1]);
        let all_nodes = Mac([0x33, 0x33, 0, 0, 0, 1]);
        self.pick(&[OWN_MAC, OWN_MAC, OWN_MAC, Mac::BROADCAST, all_nodes, solicited, Mac([2, 0, 0, 0, 0, 2])])
    }

    fn ip(&mut self, is_ipv6: bool) -> IpAddr {
        let last = self.pick(&[2, 3, 2, 3, 1, 4]);
        match (self.byte(), is_ipv6) {
            (0..=230, _) => address(is_ipv6, last),
            (231..=238, true) => Ipv6Addr::UNSPECIFIED.into(),
            (231..=238, false) => Ipv4Addr::UNSPECIFIED.into(),
            (_, true) => Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 1, 0xFF00, u16::from(last)).into(),
            (_, false) => Ipv4Addr::new(224, 0, 0, last).into(),
        }
    }

    fn ipv6(&mut self) -> Ipv6Addr {
        match self.ip(true) {
            IpAddr::V6(ip) => ip,
            IpAddr::V4(_) => Ipv6Addr::UNSPECIFIED,
        }
    }
}

pub(crate) fn script(bytes: &[u8]) -> Vec<Step> {
    let mut tape = Tape(bytes);
    let mut steps = Vec::new();
    while !tape.0.is_empty() && steps.len() < STEPS_MAX {
        steps.push(step(&mut tape));
    }
    steps
}

fn step(tape: &mut Tape<'_>) -> Step {
    match tape.byte() % 24 {
        0..=14 => Step::Frame(frame(tape)),
        15..=18 => Step::Wait(tape.pick(&[1, 10, 60, 150, 400, 1100, 3000, 31_000]) * MILLISECOND_NANOS),
        19 => Step::Resolve { is_ipv6: tape.byte() % 2 == 1, last: tape.pick(&[2, 3, 4]) },
        20 if tape.byte() < 40 => Step::Leave(usize::from(tape.byte() % 2)),
        21 if tape.byte() < 40 => Step::Move(usize::from(tape.byte() % 2), Mac([2, 0, 0, 0, 1, tape.byte()])),
        _ => Step::Send(usize::from(tape.byte() % 2)),
    }
}

fn frame(tape: &mut Tape<'_>) -> Vec<u8> {
    let (kind, source, destination) = (tape.byte() % 16, tape.mac(), tape.destination());
    let mut frame = match kind {
        0..=5 => {
            let operation = tape.pick(&[1, 2, 2, 2, 3]);
            let (sender, target) = ((tape.mac(), tape.ip(false)), (tape.mac(), tape.ip(false)));
            let target = if tape.byte() < 200 { (OWN_MAC, address(false, 1)) } else { target };
            frames::arp(source, destination, operation, sender, target)
        }
        6..=10 => {
            let (flags, target) = (tape.byte(), tape.ipv6());
            let mac = Some(tape.mac()).filter(|_| tape.byte() < 230);
            let to = if tape.byte() < 200 { Ipv6Addr::from(own_v6()) } else { tape.ipv6() };
            frames::advertisement(source, destination, to, flags, target, mac)
        }
        11..=12 => {
            let (ips, target) = ([tape.ipv6(), tape.ipv6()], tape.ipv6());
            let mac = Some(tape.mac()).filter(|_| tape.byte() < 230);
            frames::solicitation(source, destination, ips, target, mac)
        }
        13..=14 => {
            let is_ipv6 = tape.byte() % 2 == 1;
            let ips = [tape.ip(is_ipv6), address(is_ipv6, 1)];
            let payload = vec![0x77; usize::from(tape.byte()) * 8];
            frames::echo(source, destination, ips, &payload)
        }
        _ => (0..tape.byte() % 96).map(|_| tape.byte()).collect(),
    };
    match tape.byte() {
        0..=200 => {}
        201..=225 if frame.len() > 12 => {
            let tci = tape.pick(&[7, 0, 0x6000, 1]);
            return frames::tagged(&frame, tci);
        }
        226..=240 => frame.truncate(usize::from(tape.byte())),
        _ => {
            let (at, xor) = (usize::from(tape.byte()), tape.byte());
            if let Some(byte) = frame.get_mut(at) {
                *byte ^= xor;
            }
        }
    }
    frame
}

fn own_v6() -> [u16; 8] {
    [0xFD00, 0, 0, 0, 0, 0, 0, 1]
}
