//! A port decorator that captures every frame in pcap format with nanosecond timestamps.

use std::io;
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, PcapError, TsResolution};

use super::staging::Staging;
use super::{Payload, Port, PortCaps};
use crate::time::Instant;

/// Snapshot length of the capture in bytes; tcpdump's default.
const SNAPLEN_BYTES: u32 = 262_144;

/// Reason why a capture did not start, or ended early.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// Writing to the output failed.
    #[error("cannot write the capture: {0}; check that its disk has room and its reader still reads")]
    Write(#[from] io::Error),
    /// The pcap format cannot represent the frame or its timestamp.
    #[error("a frame does not fit the pcap format: {0}")]
    Format(String),
}

impl From<PcapError> for CaptureError {
    fn from(error: PcapError) -> Self {
        match error {
            PcapError::IoError(error) => CaptureError::Write(error),
            other => CaptureError::Format(other.to_string()),
        }
    }
}

struct Recorder<W: io::Write> {
    writer: PcapWriter<W>,
    origin_nanos: u64,
    now: Instant,
    recorded: u64,
    missed: u64,
    error: Option<CaptureError>,
}

impl<W: io::Write> Recorder<W> {
    fn record(&mut self, frame: &[u8]) {
        if self.error.is_some() {
            self.missed += 1;
            return;
        }
        match self.write(frame) {
            Ok(()) => self.recorded += 1,
            Err(error) => {
                self.missed += 1;
                self.error = Some(error);
            }
        }
    }

    fn write(&mut self, frame: &[u8]) -> Result<(), CaptureError> {
        let timestamp = Duration::from_nanos(self.origin_nanos.saturating_add(self.now.as_nanos()));
        let len_bytes =
            u32::try_from(frame.len()).map_err(|error| CaptureError::Format(error.to_string()))?;
        self.writer.write_packet(&PcapPacket::new(timestamp, len_bytes, frame))?;
        Ok(())
    }
}

/// A port that records the frames of both directions: received frames when `rx_burst` returns them, sent frames when
/// the inner port accepts them.
///
/// After the first error, frames are still sent and received, but no longer recorded ([`Pcap::error`]).
pub struct Pcap<P: Port, W: io::Write> {
    port: P,
    recorder: Recorder<W>,
    outgoing: Staging,
}

impl<P: Port, W: io::Write> Pcap<P, W> {
    /// Writes the pcap header to `writer`, and creates a port that records the frames of `port`. `writer` should be
    /// buffered, because each frame needs two writes. `origin_nanos`: Unix time of [`Instant::ZERO`] in nanoseconds.
    pub fn new(port: P, writer: W, origin_nanos: u64) -> Result<Self, CaptureError> {
        let header = PcapHeader {
            snaplen: SNAPLEN_BYTES,
            datalink: DataLink::ETHERNET,
            ts_resolution: TsResolution::NanoSecond,
            ..PcapHeader::default()
        };
        let recorder = Recorder {
            writer: PcapWriter::with_header(writer, header)?,
            origin_nanos,
            now: Instant::ZERO,
            recorded: 0,
            missed: 0,
            error: None,
        };
        Ok(Pcap { port, recorder, outgoing: Staging::default() })
    }

    /// Returns the number of frames written to the capture.
    pub fn recorded(&self) -> u64 {
        self.recorder.recorded
    }

    /// Returns the number of frames not captured: the first frame whose capture failed, and all later frames.
    pub fn missed(&self) -> u64 {
        self.recorder.missed
    }

    /// Returns the error that ended the recording; `None` while frames are recorded.
    pub fn error(&self) -> Option<&CaptureError> {
        self.recorder.error.as_ref()
    }

    /// Returns the inner port.
    pub fn inner(&self) -> &P {
        &self.port
    }

    /// Returns the inner port, mutably.
    pub fn inner_mut(&mut self) -> &mut P {
        &mut self.port
    }

    /// Ends the recording, calls `flush` of the writer, and returns the inner port and the writer.
    ///
    /// # Errors
    /// The error that ended the recording, or the error of `flush`.
    pub fn finish(self) -> Result<(P, W), CaptureError> {
        if let Some(error) = self.recorder.error {
            return Err(error);
        }
        let mut writer = self.recorder.writer.into_writer();
        writer.flush()?;
        Ok((self.port, writer))
    }
}

impl<P: Port, W: io::Write> Port for Pcap<P, W> {
    type Frame = P::Frame;

    fn caps(&self) -> PortCaps {
        self.port.caps()
    }

    #[inline]
    fn payload(&self) -> Payload {
        self.port.payload()
    }

    fn rx_burst(&mut self, frames: &mut Vec<P::Frame>, max: usize) -> usize {
        let before = frames.len();
        let count = self.port.rx_burst(frames, max);
        for frame in frames.iter().skip(before) {
            self.recorder.record(frame.as_ref());
        }
        count
    }

    fn tx_reserve(&mut self, len_bytes: usize) -> Option<&mut [u8]> {
        self.outgoing.reserve(len_bytes)
    }

    fn tx_cancel(&mut self) {
        self.outgoing.cancel();
    }

    fn tx_flush(&mut self) {
        let recorder = &mut self.recorder;
        self.outgoing.drain_into(&mut self.port, |frame| recorder.record(frame));
        self.port.tx_flush();
    }

    fn set_now(&mut self, now: Instant) {
        self.recorder.now = now;
        self.port.set_now(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Mac;
    use crate::port::loopback::{Loopback, LoopbackPort};
    use pcap_file::pcap::PcapReader;

    const CAPS: PortCaps = PortCaps { mac: Mac([2, 0, 0, 0, 0, 1]), mtu_bytes: 9000 };
    const ORIGIN_NANOS: u64 = 1_700_000_000_000_000_000;

    fn send(port: &mut impl Port, bytes: &[u8]) {
        port.tx_reserve(bytes.len()).unwrap().copy_from_slice(bytes);
        port.tx_flush();
    }

    fn receive(port: &mut impl Port) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        port.rx_burst(&mut frames, 100);
        frames.iter().map(|f| f.as_ref().to_vec()).collect()
    }

    #[test]
    fn both_directions_read_back_with_their_times() {
        let (a, mut b) = Loopback::pair(CAPS, CAPS, 8);
        let mut a = Pcap::new(a, Vec::new(), ORIGIN_NANOS).unwrap();
        let (sent, answer) = (vec![1u8; 9014], vec![2u8; 60]);
        a.set_now(Instant::from_nanos(1));
        send(&mut a, &sent);
        assert_eq!(receive(&mut b), std::slice::from_ref(&sent));
        send(&mut b, &answer);
        a.set_now(Instant::from_nanos(2_000_000_003));
        assert_eq!(receive(&mut a), std::slice::from_ref(&answer));
        assert_eq!((a.recorded(), a.missed()), (2, 0));

        let (_, bytes) = a.finish().unwrap();
        let mut reader = PcapReader::new(bytes.as_slice()).unwrap();
        assert_eq!(reader.header().datalink, DataLink::ETHERNET);
        assert_eq!(reader.header().ts_resolution, TsResolution::NanoSecond);
        for (nanos, frame) in [(1, sent), (2_000_000_003, answer)] {
            let packet = reader.next_packet().unwrap().unwrap();
            assert_eq!(packet.timestamp, Duration::from_nanos(ORIGIN_NANOS + nanos));
            assert_eq!(packet.orig_len as usize, frame.len());
            assert_eq!(packet.data, frame);
        }
        assert!(reader.next_packet().is_none());
    }

    #[test]
    fn a_cancelled_frame_is_neither_sent_nor_recorded() {
        let (a, mut b) = Loopback::pair(CAPS, CAPS, 8);
        let mut a = Pcap::new(a, Vec::new(), 0).unwrap();
        a.tx_reserve(5).unwrap().copy_from_slice(b"first");
        a.tx_reserve(9).unwrap().copy_from_slice(b"cancelled");
        a.tx_cancel();
        send(&mut a, b"second");
        assert_eq!(receive(&mut b), [b"first".to_vec(), b"second".to_vec()]);
        assert_eq!(a.recorded(), 2);
    }

    #[test]
    fn frames_a_full_port_does_not_take_wait_and_are_recorded_once() {
        let (a, mut b) = Loopback::pair(CAPS, CAPS, 1);
        let mut a = Pcap::new(a, Vec::new(), 0).unwrap();
        send(&mut a, b"first");
        send(&mut a, b"second");
        assert_eq!(a.recorded(), 1);
        assert!(a.tx_reserve(5).is_none(), "the port beneath is full");
        assert_eq!(receive(&mut b), [b"first".to_vec()]);
        a.tx_flush();
        assert_eq!(receive(&mut b), [b"second".to_vec()]);
        assert_eq!(a.recorded(), 2);
    }

    struct SmallDisk(usize);

    impl io::Write for SmallDisk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            match self.0.checked_sub(bytes.len()) {
                Some(left) => self.0 = left,
                None => return Err(io::Error::other("no room")),
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn recording_on(disk: SmallDisk) -> Result<(Pcap<LoopbackPort, SmallDisk>, LoopbackPort), CaptureError> {
        let (a, b) = Loopback::pair(CAPS, CAPS, 8);
        Ok((Pcap::new(a, disk, 0)?, b))
    }

    #[test]
    fn a_full_disk_ends_the_recording_and_not_the_traffic() {
        assert!(matches!(recording_on(SmallDisk(3)), Err(CaptureError::Write(_))));
        let (mut a, mut b) = recording_on(SmallDisk(100)).unwrap();
        for n in 0..4u8 {
            send(&mut a, &[n; 60]);
            assert_eq!(receive(&mut b), [vec![n; 60]]);
        }
        assert_eq!((a.recorded(), a.missed()), (1, 3));
        assert!(a.error().unwrap().to_string().contains("no room"));
        assert!(a.finish().is_err());
    }
}
