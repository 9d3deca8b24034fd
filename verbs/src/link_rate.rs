//! The rate of a link, as the number of its lanes and the signalling rate of a lane (IBA 14.2.5.6, PortInfo).

use std::fmt;

/// Lanes and signalling rate of a link (`active_width` and `active_speed` of `ibv_port_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkRate {
    lanes: u8,
    lane: LaneRate,
}

/// Signalling rate of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneRate {
    Sdr,
    Ddr,
    Fdr10,
    Edr,
    Hdr,
    Ndr,
}

impl LaneRate {
    /// Returns name, code in `active_speed`, and rate in units of 100 Mbit/s.
    fn parts(self) -> (&'static str, u8, u32) {
        match self {
            LaneRate::Sdr => ("SDR", 1, 25),
            LaneRate::Ddr => ("DDR", 2, 50),
            LaneRate::Fdr10 => ("FDR10", 8, 100),
            LaneRate::Edr => ("EDR", 32, 250),
            LaneRate::Hdr => ("HDR", 64, 500),
            LaneRate::Ndr => ("NDR", 128, 1000),
        }
    }
}

/// For each row: an upper bound of the speed of an Ethernet link, in Mbit/s, and the lanes and signalling rate that
/// Linux reports for a speed above the bound of the previous row and up to this bound (`ib_get_eth_speed`).
const RATES: [(u32, u8, LaneRate); 10] = [
    (1_000, 1, LaneRate::Sdr),
    (10_000, 1, LaneRate::Fdr10),
    (20_000, 4, LaneRate::Ddr),
    (25_000, 1, LaneRate::Edr),
    (40_000, 4, LaneRate::Fdr10),
    (50_000, 2, LaneRate::Edr),
    (100_000, 4, LaneRate::Edr),
    (200_000, 4, LaneRate::Hdr),
    (400_000, 4, LaneRate::Ndr),
    (u32::MAX, 8, LaneRate::Ndr),
];

/// Speed, in Mbit/s, assumed for a link whose speed is unknown (for example of a memif, vhost or virtio-user port).
const UNKNOWN_MBPS: u32 = 100_000;

impl LinkRate {
    /// Returns the rate of an Ethernet link of `speed_mbps` Mbit/s; if the speed is unknown, 100 Gbit/s.
    pub fn of_ethernet(speed_mbps: Option<u32>) -> Self {
        let speed_mbps = speed_mbps.unwrap_or(UNKNOWN_MBPS);
        let (_, lanes, lane) = RATES[RATES.partition_point(|(up_to, ..)| *up_to < speed_mbps)];
        LinkRate { lanes, lane }
    }

    /// Returns the code of the number of lanes (`active_width`).
    pub fn width_code(self) -> u8 {
        match self.lanes {
            1 => 1,
            2 => 16,
            4 => 2,
            _ => 4,
        }
    }

    /// Returns the code of the signalling rate (`active_speed`).
    pub fn speed_code(self) -> u8 {
        self.lane.parts().1
    }

    /// Returns the rate in units of 100 Mbit/s (`ibv_query_port_speed`).
    pub fn hundred_mbps(self) -> u32 {
        self.lane.parts().2 * u32::from(self.lanes)
    }
}

impl fmt::Display for LinkRate {
    /// Formats the rate like the content of the file `rate` of a port in /sys/class/infiniband.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (lane, rate) = (self.lane.parts().0, self.hundred_mbps());
        let tenths = if rate % 10 == 0 { "" } else { ".5" };
        write!(f, "{}{tenths} Gb/sec ({}X {lane})", rate / 10, self.lanes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_speed_is_the_rate_that_linux_reports() {
        for (speed_mbps, width, speed, text) in [
            (Some(10), 1, 1, "2.5 Gb/sec (1X SDR)"),
            (Some(1_000), 1, 1, "2.5 Gb/sec (1X SDR)"),
            (Some(1_001), 1, 8, "10 Gb/sec (1X FDR10)"),
            (Some(10_000), 1, 8, "10 Gb/sec (1X FDR10)"),
            (Some(20_000), 2, 2, "20 Gb/sec (4X DDR)"),
            (Some(25_000), 1, 32, "25 Gb/sec (1X EDR)"),
            (Some(40_000), 2, 8, "40 Gb/sec (4X FDR10)"),
            (Some(50_000), 16, 32, "50 Gb/sec (2X EDR)"),
            (Some(100_000), 2, 32, "100 Gb/sec (4X EDR)"),
            (None, 2, 32, "100 Gb/sec (4X EDR)"),
            (Some(200_000), 2, 64, "200 Gb/sec (4X HDR)"),
            (Some(400_000), 2, 128, "400 Gb/sec (4X NDR)"),
            (Some(u32::MAX), 4, 128, "800 Gb/sec (8X NDR)"),
        ] {
            let rate = LinkRate::of_ethernet(speed_mbps);
            assert_eq!((rate.width_code(), rate.speed_code()), (width, speed), "{speed_mbps:?}");
            assert_eq!(rate.to_string(), text);
        }
    }
}
