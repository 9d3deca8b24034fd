//! Tables of frames that are sent as one datagram, and of datagrams that are divided.

use super::*;

/// Changes one frame of a group.
type Change = fn(&mut Vec<u8>);
/// Changes the UDP datagram of one frame of a group.
type UdpChange = fn(&mut [u8]);

/// Returns frame number `index` of a flow, with `payload_bytes` bytes of payload that differ from frame to frame behind
/// the destination QPN.
fn frame(layout: Layout, index: u16, payload_bytes: usize) -> Vec<u8> {
    let mut frame = vec![0; layout.headers_bytes()];
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    let udp_bytes = (UDP_BYTES + payload_bytes) as u16;
    let ip = match layout {
        Layout::V4 => {
            vec![8, 0, 0x45, 0x12, 0, 0, 0xFF, 0xFE, 0x40, 0, 64, 17, 0, 0, 10, 9, 8, 1, 10, 9, 8, 2]
        }
        Layout::V6 => {
            [vec![0x86, 0xDD, 0x61, 2, 3, 4, 0, 0, 17, 64], vec![0xFD; 16], vec![0xFC; 16]].concat()
        }
    };
    frame[12..12 + ip.len()].copy_from_slice(&ip);
    let at = layout.udp_at();
    frame[at..at + 4].copy_from_slice(&[0xC1, 0x23, 0x12, 0xB7]);
    set_lengths(&mut frame, layout, udp_bytes, index);
    frame.extend((0..payload_bytes).map(|at| if at < 8 { at as u8 } else { (at * 31) as u8 ^ index as u8 }));
    frame
}

/// Recomputes the IPv4 checksum.
fn mend(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let checksum = !sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
}

fn lens(layout: Layout, lens: &[usize]) -> usize {
    let frames: Vec<Vec<u8>> =
        lens.iter().enumerate().map(|(index, len)| frame(layout, index as u16, *len)).collect();
    group(frames.iter().map(Vec::as_slice), usize::from(u16::MAX))
}

#[test]
fn payloads_of_one_length_and_a_shorter_last_one_are_one_datagram() {
    for layout in [Layout::V4, Layout::V6] {
        let cases: [(&[usize], usize); 12] = [
            (&[], 0),
            (&[100], 1),
            (&[100; 2], 2),
            (&[100; 64], 64),
            (&[100; 65], 64),
            (&[100, 100, 99], 3),
            (&[100, 99, 99], 2),
            (&[100, 99, 100], 2),
            (&[99, 100], 1),
            (&[100, 8], 2),
            (&[100, 0], 1),
            (&[0, 0], 1),
        ];
        for (payloads, count) in cases {
            assert_eq!(lens(layout, payloads), count, "{layout:?} {payloads:?}");
        }
    }
}

#[test]
fn a_datagram_has_a_largest_length() {
    // IPv4: 20 + 8 + n; IPv6: 40 + 8 + n.
    for (layout, headers) in [(Layout::V4, 28), (Layout::V6, 48)] {
        let payload = (DATAGRAM_BYTES_MAX - headers) / 3;
        let rest = DATAGRAM_BYTES_MAX - headers - 3 * payload;
        assert_eq!(lens(layout, &[payload; 3]), 3, "{layout:?}");
        assert_eq!(lens(layout, &[payload + 1, payload + 1, payload - 2 + rest]), 3, "{layout:?}");
        assert_eq!(lens(layout, &[payload + 1, payload + 1, payload - 1 + rest]), 2, "{layout:?}");
    }
}

#[test]
fn frames_that_the_kernel_would_change_are_sent_by_themselves() {
    let any: [(&str, Change); 9] = [
        ("destination MAC", |frame| frame[0] ^= 2),
        ("source MAC", |frame| frame[11] ^= 1),
        ("EtherType", |frame| frame[12] ^= 1),
        ("VLAN tag", |frame| drop(frame.splice(12..12, [0x81, 0, 0, 5]))),
        ("a byte behind the packet", |frame| frame.push(0)),
        ("a byte less", |frame| frame.truncate(frame.len() - 1)),
        ("protocol", |frame| {
            let at = if frame[12] == 8 { 23 } else { 20 };
            frame[at] = 6;
        }),
        ("too short for headers", |frame| frame.truncate(40)),
        ("empty", Vec::clear),
    ];
    let v4: [(&str, Change); 9] = [
        ("TOS", |frame| frame[15] ^= 1),
        ("identification", |frame| frame[19] ^= 1),
        ("wrong checksum", |frame| frame[25] ^= 1),
        ("fragment", |frame| frame[20] |= 0x20),
        ("fragment offset", |frame| frame[21] = 1),
        ("TTL", |frame| frame[22] = 63),
        ("address", |frame| frame[33] ^= 1),
        ("IP header with options", |frame| frame[14] = 0x46),
        ("total length", |frame| frame[17] ^= 1),
    ];
    let v6: [(&str, Change); 4] = [
        ("traffic class", |frame| frame[14] ^= 1),
        ("hop limit", |frame| frame[21] = 63),
        ("address", |frame| frame[53] ^= 1),
        ("payload length", |frame| frame[19] ^= 1),
    ];
    let udp: [(&str, UdpChange); 5] = [
        ("source port", |udp| udp[1] ^= 1),
        ("destination port", |udp| udp[3] ^= 1),
        ("UDP length", |udp| udp[5] ^= 1),
        ("UDP checksum", |udp| udp[7] = 1),
        ("destination QPN", |udp| udp[8 + 7] ^= 1),
    ];
    let check = |layout, what: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let mut frames = [0, 1, 2].map(|index| frame(layout, index, 100));
        assert_eq!(group(frames.iter().map(Vec::as_slice), usize::from(u16::MAX)), 3);
        change(&mut frames[1]);
        if layout == Layout::V4 && frames[1].len() > 34 && !["wrong checksum"].contains(&what) {
            mend(&mut frames[1]);
        }
        assert_eq!(group(frames.iter().map(Vec::as_slice), usize::from(u16::MAX)), 1, "{layout:?}: {what}");
    };
    for layout in [Layout::V4, Layout::V6] {
        any.iter().for_each(|(what, change)| check(layout, what, change));
        let own: &[(&str, Change)] = if layout == Layout::V4 { &v4 } else { &v6 };
        own.iter().for_each(|(what, change)| check(layout, what, change));
        for (what, change) in udp {
            check(layout, what, &|frame| change(&mut frame[layout.udp_at()..]));
        }
    }
}

#[test]
fn frames_longer_than_the_mtu_are_sent_by_themselves() {
    for (layout, headers) in [(Layout::V4, 28), (Layout::V6, 48)] {
        let frames = [0, 1].map(|index| frame(layout, index, 100));
        for (mtu_bytes, count) in [(headers + 100, 2), (headers + 99, 1), (0, 1)] {
            assert_eq!(group(frames.iter().map(Vec::as_slice), mtu_bytes), count, "{layout:?} {mtu_bytes}");
        }
    }
}

/// Returns the datagram of `frames`, as it is sent.
fn datagram(layout: Layout, frames: &[Vec<u8>]) -> Vec<u8> {
    let payload: Vec<u8> =
        frames.iter().flat_map(|frame| &frame[layout.headers_bytes()..]).copied().collect();
    let mut headers = [0; HEADERS_BYTES_MAX];
    write_headers(&frames[0], layout, payload.len(), &mut headers);
    [&headers[..layout.headers_bytes()], &payload].concat()
}

#[test]
fn a_datagram_is_divided_into_the_frames_that_it_was_made_of() {
    for layout in [Layout::V4, Layout::V6] {
        for (count, payload_bytes, last_bytes) in
            [(1, 50, 50), (2, 1, 1), (2, 100, 99), (15, 4124, 16), (64, 28, 28)]
        {
            let len = |index| if index + 1 == count { last_bytes } else { payload_bytes };
            let frames: Vec<_> = (0..count).map(|index| frame(layout, index, len(index))).collect();
            let whole = datagram(layout, &frames);
            let what = format!("{layout:?} {count} x {payload_bytes}, {last_bytes}");
            for (index, frame) in frames.iter().enumerate() {
                let part = segment(&whole, payload_bytes, index).unwrap_or_else(|| panic!("{what}: {index}"));
                assert_eq!([part.headers(), part.payload].concat(), *frame, "{what}: {index}");
                assert_eq!(part.is_last, index + 1 == frames.len(), "{what}: {index}");
            }
            assert!(segment(&whole, payload_bytes, frames.len()).is_none(), "{what}");
        }
    }
}

/// RFC 768: the checksum over pseudo header and datagram is complete if the kernel adds the sum of the datagram.
#[test]
fn the_udp_checksum_is_that_of_the_pseudo_header() {
    for layout in [Layout::V4, Layout::V6] {
        let frames = [0, 1].map(|index| frame(layout, index, 100));
        let whole = datagram(layout, &frames);
        let udp = &whole[layout.udp_at()..];
        let pseudo = [&whole[layout.addresses()], &[0, PROTOCOL_UDP], &udp[4..6]].concat();
        assert_eq!(u16_at(udp, 6), Some(sum(&pseudo)), "{layout:?}");
        if layout == Layout::V4 {
            assert_eq!(sum(&whole[14..34]), 0xFFFF, "the IPv4 checksum");
        }
    }
}

#[test]
fn a_datagram_of_other_headers_has_no_frames() {
    let whole = datagram(Layout::V4, &[0, 1].map(|index| frame(Layout::V4, index, 100)));
    assert!(segment(&whole, 100, 0).is_some());
    for (what, at, value) in [("EtherType", 12, 9), ("IP options", 14, 0x46), ("TCP", 23, 6)] {
        let mut other = whole.clone();
        other[at] = value;
        assert!(segment(&other, 100, 0).is_none(), "{what}");
    }
    assert!(segment(&whole[..41], 100, 0).is_none(), "no whole UDP header");
    assert!(segment(&whole[..42], 100, 0).is_none(), "no payload");
    assert!(segment(&whole, 0, 0).is_none(), "200 frames, because a length of 0 counts as 1");
    assert_eq!(segment(&whole[..42 + 128], 0, 127).map(|part| part.is_last), Some(true));
    assert!(segment(&whole[..42 + 129], 0, 0).is_none(), "129 frames");
    assert!(segment(&[&whole[..42], &[0; 65_508]].concat(), 65_508, 0).is_none(), "longer than an IP packet");
    assert!(segment(&[&whole[..42], &[0; 65_507]].concat(), 65_507, 0).is_some());
}
