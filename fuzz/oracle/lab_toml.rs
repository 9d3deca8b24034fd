//! Invariants of the parser of experiments for any text. Shared by the fuzz target and the test that replays the
//! corpus.

use lab::experiment::Experiment;

/// Largest memory of one document in bytes: all points of the largest experiment with setups, and the TOML.
const BYTES_MAX: u64 = 64 << 20;

/// Parses `text` and computes the experiment's points, as `roce lab run` does with and without `--quick`. Returns the
/// larger number of points; `None` if `text` is refused.
///
/// Panics if more than [`BYTES_MAX`] bytes are in use at a time.
pub(crate) fn check(text: &str) -> Option<usize> {
    let mut points = None;
    let info = allocation_counter::measure(|| {
        points = [false, true].into_iter().filter_map(|quick| expand(text, quick)).max();
    });
    assert!(info.bytes_max <= BYTES_MAX, "{} bytes for a document of {}", info.bytes_max, text.len());
    points
}

fn expand(text: &str, quick: bool) -> Option<usize> {
    let experiment = match Experiment::parse(text, quick) {
        Ok(experiment) => experiment,
        Err(error) => {
            assert!(!error.to_string().is_empty(), "a refusal says what is wrong");
            return None;
        }
    };
    let points = experiment.points(experiment.seeds).ok()?;
    for point in &points {
        assert!(point.setup.fabric.hosts() >= 2, "{:?}", point.setup.fabric);
        assert!(!experiment.place(point.variant, &point.values).is_empty());
    }
    Some(points.len())
}
