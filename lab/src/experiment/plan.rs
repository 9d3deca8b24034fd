//! From a document to the list of points to run.
//!
//! The tables of a [`Setup`] in a document apply to all points. `[[variant]]` tables and the values of
//! `[[sweep]]` override them key by key, so any key of a setup can vary. For a quick run the `[quick]` table
//! overrides the whole document in the same way.

use roce::port::probability::Probability;
use serde::Deserialize;
use toml::{Table, Value};

use super::figures::{FIGURES, figure};
use super::spec::Setup;

/// Reason why a document cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The document is not TOML, or has an unknown key.
    #[error("{0}")]
    Document(#[from] toml::de::Error),
    /// A point whose setup is invalid.
    #[error("{place}: {what}")]
    Point {
        /// The point's variant and values.
        place: String,
        /// The error, and the valid values.
        what: String,
    },
    /// The document as a whole is invalid.
    #[error("{0}")]
    Whole(String),
}

/// An experiment as described by its document.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// The text of the document.
    pub text: String,
    /// Name on the command line.
    pub name: String,
    /// Title of the report.
    pub title: String,
    /// Description for the report: purpose, what to look at, duration. Paragraphs are separated by empty lines.
    pub description: String,
    /// Published results to compare with.
    pub paper: Option<Paper>,
    /// Number of seeds of a default run.
    pub seeds: u32,
    /// The names of the variants, in order.
    pub variants: Vec<String>,
    /// The sweeps, in order.
    pub sweeps: Vec<Sweep>,
    /// Pairs of variants to compare in the report.
    pub comparisons: Vec<Comparison>,
    /// Whether the `[quick]` table was applied.
    pub is_quick: bool,
    base: Table,
    overlays: Vec<Table>,
}

/// A key of the setup, and the values that the key takes in turn.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// The key, such as `loss.chance`.
    pub key: String,
    /// Label in the report.
    pub label: String,
    /// The values, in order.
    pub values: Vec<Value>,
}

/// A publication to compare with.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// Authors, title, venue.
    pub citation: String,
    /// Results of the publication, with numbers.
    pub finding: String,
}

/// Two variants to compare.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// The variant of interest.
    pub variant: String,
    /// The variant to compare with.
    pub against: String,
    /// Names of the figures to compare.
    pub figures: Vec<String>,
    /// The paper's result for this comparison.
    #[serde(default)]
    pub paper: String,
}

/// One run: a setup and a seed.
#[derive(Clone, Debug)]
pub struct Point {
    /// Index of the variant in [`Experiment::variants`].
    pub variant: usize,
    /// Index of the value of each sweep.
    pub values: Vec<usize>,
    /// The seed.
    pub seed: u64,
    /// The setup with variant and values applied.
    pub setup: Setup,
}

/// The keys of a document besides the tables of a setup.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    name: String,
    title: String,
    description: String,
    paper: Option<Paper>,
    #[serde(default = "one")]
    seeds: u32,
    #[serde(default)]
    variant: Vec<Table>,
    #[serde(default)]
    sweep: Vec<Sweep>,
    #[serde(default)]
    compare: Vec<Comparison>,
}

fn one() -> u32 {
    1
}

/// The tables of a setup.
const SETUP_KEYS: [&str; 6] = ["fabric", "link", "switch", "loss", "transport", "workload"];
/// Name of the only variant, if a document has no `[[variant]]`.
const ONLY_VARIANT: &str = "all";
/// Longest document in bytes.
pub const DOCUMENT_BYTES_MAX: usize = 1 << 16;
/// Largest number of points of one experiment.
const POINTS_MAX: usize = 10_000;
/// Largest number of `[[sweep]]` tables of one document.
const SWEEPS_MAX: usize = 8;
/// Largest number of `[[compare]]` tables of one document.
const COMPARISONS_MAX: usize = 64;
/// Largest number of names in the key of a sweep: the depth of the setup's tables.
const KEY_NAMES_MAX: usize = 3;

impl Experiment {
    /// Parses a document; with `quick`, applies its `[quick]` table.
    ///
    /// # Errors
    /// [`PlanError`] if the document is invalid, with or without its `[quick]` table.
    pub fn parse(text: &str, quick: bool) -> Result<Experiment, PlanError> {
        if text.len() > DOCUMENT_BYTES_MAX {
            let what = format!("{} bytes: needed a document of at most {DOCUMENT_BYTES_MAX}", text.len());
            return Err(PlanError::Whole(what));
        }
        let mut document: Table = text.parse()?;
        let overlay = match document.remove("quick") {
            Some(Value::Table(overlay)) => overlay,
            None if quick => {
                return Err(PlanError::Whole("there is no [quick] table: run it without --quick".into()));
            }
            None => Table::new(),
            Some(_) => return Err(PlanError::Whole("quick: needed a table, [quick]".into())),
        };
        // The document is checked with and without its `[quick]` table, so that an error in an unused `[quick]` table
        // is found.
        let mut quick_document = document.clone();
        merge(&mut quick_document, overlay);
        let [normal, short] = [(document, false), (quick_document, true)].map(|(document, is_quick)| {
            let experiment = Experiment::from_document(text, document, is_quick)?;
            experiment.count(experiment.seeds)?;
            experiment.points(1)?;
            Ok::<_, PlanError>(experiment)
        });
        let (normal, short) = (normal?, short?);
        Ok(if quick { short } else { normal })
    }

    fn from_document(text: &str, document: Table, is_quick: bool) -> Result<Experiment, PlanError> {
        let (base, head): (Table, Table) =
            document.into_iter().partition(|(key, _)| SETUP_KEYS.contains(&key.as_str()));
        let head = Head::deserialize(head)?;
        check_sizes(&head)?;
        let (mut variants, mut overlays) = (Vec::new(), Vec::new());
        for mut overlay in head.variant {
            let Some(Value::String(name)) = overlay.remove("name") else {
                return Err(PlanError::Whole("[[variant]]: needed name = \"...\"".into()));
            };
            variants.push(name);
            overlays.push(overlay);
        }
        if variants.is_empty() {
            variants.push(ONLY_VARIANT.to_owned());
            overlays.push(Table::new());
        }
        for comparison in &head.compare {
            for name in [&comparison.variant, &comparison.against] {
                if !variants.contains(name) {
                    let what = format!("[[compare]]: no variant is called `{name}`; there are {variants:?}");
                    return Err(PlanError::Whole(what));
                }
            }
            if let Some(name) = comparison.figures.iter().find(|name| figure(name).is_none()) {
                let names: Vec<&str> = FIGURES.iter().map(|figure| figure.name).collect();
                let what =
                    format!("[[compare]]: no figure is called `{name}`; there are {}", names.join(", "));
                return Err(PlanError::Whole(what));
            }
        }
        Ok(Experiment {
            text: text.to_owned(),
            name: head.name,
            title: head.title,
            description: head.description,
            paper: head.paper,
            seeds: head.seeds,
            variants,
            sweeps: head.sweep,
            comparisons: head.compare,
            is_quick,
            base,
            overlays,
        })
    }

    /// All points: each variant with each combination of values and seeds 1 to `seeds`.
    pub fn points(&self, seeds: u32) -> Result<Vec<Point>, PlanError> {
        let mut points = Vec::with_capacity(self.count(seeds)?);
        let combinations = self.combinations();
        for (variant, overlay) in self.overlays.iter().enumerate() {
            for values in &combinations {
                let setup = self
                    .setup(overlay, values)
                    .map_err(|what| PlanError::Point { place: self.place(variant, values), what })?;
                points.extend((1..=u64::from(seeds)).map(|seed| Point {
                    variant,
                    values: values.clone(),
                    seed,
                    setup: setup.clone(),
                }));
            }
        }
        Ok(points)
    }

    /// The number of points; an error if it is 0 or above `POINTS_MAX`.
    fn count(&self, seeds: u32) -> Result<usize, PlanError> {
        let values = self.sweeps.iter().map(|sweep| sweep.values.len());
        let count = values.chain([self.variants.len(), seeds as usize]).fold(1, usize::saturating_mul);
        if (1..=POINTS_MAX).contains(&count) {
            return Ok(count);
        }
        let what = format!("{count} points: needed 1 to {POINTS_MAX} variants x values x seeds");
        Err(PlanError::Whole(what))
    }

    /// All combinations of the sweeps' values, by index; the last sweep varies fastest.
    pub fn combinations(&self) -> Vec<Vec<usize>> {
        self.sweeps.iter().fold(vec![Vec::new()], |before, sweep| {
            let extended = |places: &Vec<usize>| {
                (0..sweep.values.len()).map(|place| [&places[..], &[place]].concat()).collect::<Vec<_>>()
            };
            before.iter().flat_map(extended).collect()
        })
    }

    fn setup(&self, overlay: &Table, values: &[usize]) -> Result<Setup, String> {
        let mut table = self.base.clone();
        merge(&mut table, overlay.clone());
        for (sweep, place) in self.sweeps.iter().zip(values) {
            set(&mut table, &sweep.key, sweep.values[*place].clone())?;
        }
        let setup =
            Setup::deserialize(table).map_err(|error| error.to_string().trim().replace('\n', ", "))?;
        setup.check()?;
        Ok(setup)
    }

    /// The name of a point's variant and values, for messages.
    pub fn place(&self, variant: usize, values: &[usize]) -> String {
        let at = self
            .sweeps
            .iter()
            .zip(values)
            .map(|(sweep, place)| format!(", {} = {}", sweep.key, sweep.value_name(*place)));
        format!("variant `{}`{}", self.variants[variant], at.collect::<String>())
    }
}

impl Sweep {
    /// Returns whether all values of the sweep are numbers.
    pub fn is_numeric(&self) -> bool {
        self.values.iter().all(|value| match value {
            Value::String(text) => text.parse::<Probability>().is_ok() || text.parse::<f64>().is_ok(),
            value => value.is_integer() || value.is_float(),
        })
    }

    /// Returns value number `place` as text, for tables and axes.
    pub fn value_name(&self, place: usize) -> String {
        match &self.values[place] {
            Value::String(text) => text.clone(),
            value => value.to_string(),
        }
    }
}

fn check_sizes(head: &Head) -> Result<(), PlanError> {
    for (name, count, max) in
        [("sweep", head.sweep.len(), SWEEPS_MAX), ("compare", head.compare.len(), COMPARISONS_MAX)]
    {
        if count > max {
            return Err(PlanError::Whole(format!("{count} [[{name}]] tables: needed at most {max}")));
        }
    }
    for Sweep { key, .. } in &head.sweep {
        let names = key.split('.').count();
        if names > KEY_NAMES_MAX {
            let what = format!(
                "[[sweep]]: `{key}` has {names} names: needed at most {KEY_NAMES_MAX}, as `switch.ecn.pmax`"
            );
            return Err(PlanError::Whole(what));
        }
    }
    Ok(())
}

/// Overrides `base` with `over`: tables key by key, other values as a whole.
fn merge(base: &mut Table, over: Table) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(Value::Table(below)), Value::Table(above)) => merge(below, above),
            (_, value) => {
                base.insert(key, value);
            }
        }
    }
}

/// Sets the value of a dotted key such as `loss.chance`.
fn set(table: &mut Table, key: &str, value: Value) -> Result<(), String> {
    match key.split_once('.') {
        None => {
            table.insert(key.to_owned(), value);
            Ok(())
        }
        Some((first, rest)) => match table.entry(first).or_insert_with(|| Table::new().into()) {
            Value::Table(inner) => set(inner, rest, value),
            _ => Err(format!("sweep over `{key}`: `{first}` is no table")),
        },
    }
}
