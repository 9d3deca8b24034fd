//! Distributions of flow sizes.

use std::fmt;

use super::tables;
use crate::rng::SplitMix;

/// A cumulative distribution of flow sizes, linear between its points.
#[derive(Clone, Debug, PartialEq)]
pub struct Cdf {
    /// Size in bytes, and share (0 to 1) of flows that are no larger; neither value decreases from point to point.
    points: Vec<(f64, f64)>,
}

/// Reason why points are no distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CdfError {
    /// Fewer than two points.
    TooFew,
    /// The first share is not 0 or the last is not 1.
    Ends,
    /// The size or share of the point with this index is below that of the point before it.
    Falls(usize),
}

impl fmt::Display for CdfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CdfError::TooFew => write!(f, "a distribution needs at least two points"),
            CdfError::Ends => write!(f, "the shares of a distribution go from 0 to 1"),
            CdfError::Falls(at) => {
                write!(f, "point {at} of a distribution is below the one before it; sort them")
            }
        }
    }
}

impl std::error::Error for CdfError {}

impl Cdf {
    /// Creates a distribution from sizes in bytes, each with the share of flows (0 to 1) that are no larger.
    ///
    /// # Errors
    /// [`CdfError`] if there are fewer than two points, a value decreases, or the shares do not go from 0 to 1.
    pub fn new(points: &[(f64, f64)]) -> Result<Cdf, CdfError> {
        let ([(_, first), ..], [.., (_, last)]) = (points, points) else { return Err(CdfError::TooFew) };
        if points.len() < 2 {
            return Err(CdfError::TooFew);
        }
        if *first != 0.0 || *last != 1.0 {
            return Err(CdfError::Ends);
        }
        let rises = |pair: &[(f64, f64)]| pair[0].0 <= pair[1].0 && pair[0].1 <= pair[1].1;
        if let Some(at) = points.windows(2).position(|pair| !rises(pair)) {
            return Err(CdfError::Falls(at + 1));
        }
        Ok(Cdf { points: points.to_vec() })
    }

    /// The distribution in which all flows have the size `bytes`.
    pub fn fixed(bytes: u32) -> Cdf {
        Cdf { points: vec![(f64::from(bytes), 0.0), (f64::from(bytes), 1.0)] }
    }

    /// Facebook's Hadoop cluster (Roy et al., SIGCOMM 2015); mean 120 KB.
    pub fn hadoop() -> Cdf {
        Cdf::of_percents(tables::HADOOP)
    }

    /// Alibaba's storage cluster (HPCC, SIGCOMM 2019); mean 41 KB.
    pub fn ali_storage() -> Cdf {
        Cdf::of_percents(tables::ALI_STORAGE)
    }

    /// Web search (DCTCP, SIGCOMM 2010); mean 1.7 MB.
    pub fn web_search() -> Cdf {
        Cdf::of_percents(tables::WEB_SEARCH)
    }

    /// The heavy-tailed mix of IRN's evaluation (SIGCOMM 2018); mean 275 KB.
    pub fn irn() -> Cdf {
        Cdf::of_percents(tables::IRN)
    }

    /// Returns the distribution `hadoop`, `ali-storage`, `web-search` or `irn`; `None` for any other name.
    pub fn by_name(name: &str) -> Option<Cdf> {
        Some(match name {
            "hadoop" => Cdf::hadoop(),
            "ali-storage" => Cdf::ali_storage(),
            "web-search" => Cdf::web_search(),
            "irn" => Cdf::irn(),
            _ => return None,
        })
    }

    fn of_percents(points: &[(f64, f64)]) -> Cdf {
        Cdf { points: points.iter().map(|(bytes, percent)| (*bytes, percent / 100.0)).collect() }
    }

    /// The points: sizes in bytes and shares, 0 to 1.
    pub fn points(&self) -> &[(f64, f64)] {
        &self.points
    }

    /// The mean size in bytes.
    pub fn mean_bytes(&self) -> f64 {
        let part = |pair: &[(f64, f64)]| (pair[1].1 - pair[0].1) * (pair[0].0 + pair[1].0) / 2.0;
        self.points.windows(2).map(part).sum()
    }

    /// The quantile of `share` (0 to 1): the size in bytes that this share of flows does not exceed.
    pub fn quantile_bytes(&self, share: f64) -> f64 {
        let above = self.points.partition_point(|point| point.1 <= share).clamp(1, self.points.len() - 1);
        let ((low, low_share), (high, high_share)) = (self.points[above - 1], self.points[above]);
        if high_share <= low_share {
            return high;
        }
        low + (high - low) * ((share - low_share) / (high_share - low_share)).clamp(0.0, 1.0)
    }

    /// Draws a size in bytes, at least 1.
    pub fn sample(&self, rng: &mut SplitMix) -> u32 {
        (self.quantile_bytes(rng.unit()).round() as u32).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables() -> [(&'static str, Cdf); 4] {
        ["hadoop", "ali-storage", "web-search", "irn"].map(|name| (name, Cdf::by_name(name).unwrap()))
    }

    #[test]
    fn the_tables_are_distributions() {
        for (name, cdf) in tables() {
            assert_eq!(Cdf::new(cdf.points()), Ok(cdf.clone()), "{name}");
        }
        assert_eq!(Cdf::by_name("hadop"), None);
        assert_eq!(Cdf::new(&[(1.0, 0.0)]), Err(CdfError::TooFew));
        assert_eq!(Cdf::new(&[(1.0, 0.0), (2.0, 0.5)]), Err(CdfError::Ends));
        assert_eq!(Cdf::new(&[(1.0, 0.0), (3.0, 0.5), (2.0, 1.0)]), Err(CdfError::Falls(2)));
    }

    #[test]
    fn means_and_quantiles_are_those_of_the_tables() {
        // Means computed by hand: the sum over the pieces of share times midpoint.
        let means = [
            ("hadoop", 120_420.75),
            ("ali-storage", 40_869.8),
            ("web-search", 1_711_250.0),
            ("irn", 275_433.0),
        ];
        for (name, mean) in means {
            let of_table = Cdf::by_name(name).unwrap().mean_bytes();
            assert!((of_table - mean).abs() < 0.01, "{name}: {of_table}");
        }
        assert_eq!(Cdf::web_search().quantile_bytes(0.53), 80_000.0);
        assert!((Cdf::hadoop().quantile_bytes(0.55) - 850.0).abs() < 1e-9);
        assert_eq!(Cdf::ali_storage().quantile_bytes(1.0), 2_000_000.0);
        assert_eq!(Cdf::irn().quantile_bytes(0.5), 1_000.0);
        assert_eq!([0.0, 0.5, 1.0].map(|share| Cdf::fixed(7).quantile_bytes(share)), [7.0; 3]);
    }

    #[test]
    fn samples_follow_the_table() {
        const SAMPLES: usize = 200_000;
        for (name, cdf) in tables() {
            let mut rng = SplitMix::new(17);
            let mut sizes: Vec<u32> = (0..SAMPLES).map(|_| cdf.sample(&mut rng)).collect();
            sizes.sort_unstable();
            let mean = sizes.iter().map(|size| f64::from(*size)).sum::<f64>() / SAMPLES as f64;
            assert!((mean / cdf.mean_bytes() - 1.0).abs() < 0.03, "{name}: {mean}");
            // Kolmogorov's distance exceeds 2 / sqrt(n) with probability 1 / 1500.
            for (bytes, share) in cdf.points() {
                let below = sizes.partition_point(|size| f64::from(*size) <= *bytes);
                let distance = (below as f64 / SAMPLES as f64 - share).abs();
                assert!(distance < 2.0 / (SAMPLES as f64).sqrt(), "{name} at {bytes}: {distance}");
            }
        }
        assert_eq!(Cdf::fixed(0).sample(&mut SplitMix::new(1)), 1);
    }
}
