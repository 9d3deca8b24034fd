//! Statistics of figures.

/// Returns the median: of an even number of figures, the mean of the middle two; of no figures, `None`.
pub(crate) fn median(figures: &[f64]) -> Option<f64> {
    let sorted = sorted(figures);
    let above = sorted.get(sorted.len() / 2)?;
    let below = sorted.get((sorted.len() - 1) / 2)?;
    Some(f64::midpoint(*below, *above))
}

/// Returns the figures in ascending order.
pub(crate) fn sorted(figures: &[f64]) -> Vec<f64> {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        for (figures, expected) in [
            (&[][..], None),
            (&[7.0], Some(7.0)),
            (&[3.0, 1.0], Some(2.0)),
            (&[9.0, 1.0, 5.0], Some(5.0)),
            (&[10.0, -1.0, 2.0, 3.0], Some(2.5)),
            (&[1e-9, 1e9, 1.0, 1.0, 1.0], Some(1.0)),
        ] {
            assert_eq!(median(figures), expected, "{figures:?}");
        }
    }
}
