//! `roce lab`: experiments described in TOML, on a simulated network or on real ports.

use std::fs::File;
use std::io::Read as _;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;

use ::lab::experiment::plan::DOCUMENT_BYTES_MAX;
use ::lab::experiment::{self, Experiment, Options, SHIPPED};
use ::lab::report;
use anyhow::{Context as _, ensure};
use clap::{Args, Subcommand};

use crate::output;
use crate::progress::Progress;

/// Experiments on recovery and congestion control, with reports.
///
/// An experiment is a TOML file: hosts, links, losses, queue pairs, workload, and what is varied. It
/// runs on a simulated network, where the same file and seeds give the same figures on any machine, or
/// on real ports. Some come with the program: see `roce lab list`.
#[derive(Args)]
pub(crate) struct LabArgs {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Subcommand)]
enum LabCommand {
    /// The experiments that come with the program
    List,
    /// Print the TOML of an experiment, to be changed and run from a file
    Show {
        /// Name of the experiment
        #[arg(value_name = "NAME", value_parser = shipped_names())]
        name: String,
    },
    /// Run an experiment and write its report
    Run(RunArgs),
}

#[derive(Args, Clone, Debug)]
struct RunArgs {
    /// The name of a shipped experiment, or a file ending in .toml
    #[arg(value_name = "NAME|FILE.toml")]
    experiment: String,

    /// Run with seeds 1 to N [default: as many as the experiment says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    seeds: Option<u32>,

    /// Folder for points.csv, results.json and report.html [default: lab-NAME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Print the results as JSON
    #[arg(long)]
    json: bool,

    /// A quick look: the experiment's own shorter version
    #[arg(long)]
    quick: bool,

    /// Runs at once; the results do not depend on it [default: one a core]
    #[arg(long, value_name = "N")]
    jobs: Option<NonZero<usize>>,
}

fn shipped_names() -> clap::builder::PossibleValuesParser {
    clap::builder::PossibleValuesParser::new(SHIPPED.iter().map(|(name, _)| *name))
}

/// Runs the subcommand.
pub(crate) fn run(args: &LabArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        LabCommand::List => output::print(&list()?)?,
        LabCommand::Show { name } => {
            output::print(experiment::shipped(name).context("the name was checked before")?)?;
        }
        LabCommand::Run(args) => run_experiment(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns each experiment's name, title and duration, which the last paragraph of its description states.
fn list() -> anyhow::Result<String> {
    let mut text = String::new();
    for (name, document) in SHIPPED {
        let experiment = Experiment::parse(document, false)?;
        let takes = experiment.description.trim().rsplit("\n\n").next().unwrap_or_default();
        text += &format!("{name}\n    {}. {takes}\n", experiment.title);
    }
    Ok(text)
}

fn run_experiment(args: &RunArgs) -> anyhow::Result<()> {
    let text = document(&args.experiment)?;
    let experiment =
        Experiment::parse(&text, args.quick).with_context(|| format!("experiment {}", args.experiment))?;
    let out = args.out.clone().unwrap_or_else(|| PathBuf::from(format!("lab-{}", experiment.name)));
    let options = Options {
        seeds: args.seeds,
        jobs: args.jobs,
        program: std::env::current_exe().context("where this program is")?,
        command: command(args, &out),
    };
    // Called by every thread that runs a point; made when the number of points is known.
    let bar: Mutex<Option<Progress>> = Mutex::new(None);
    let tell = |done: usize, points: usize| {
        if let Ok(mut bar) = bar.lock() {
            let progress = bar.get_or_insert_with(|| Progress::of(points as u64, "Running"));
            progress.set(done as u64);
        }
    };
    let outcome = experiment::run(&experiment, &options, &tell);
    drop(bar);
    let outcome = outcome.with_context(|| format!("experiment {}", experiment.name))?;
    let files = report::write(&outcome, &out)?;
    if args.json {
        return output::print_json(&report::json(&outcome));
    }
    let written: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    Ok(output::print(&format!("{}\n{}\n", report::table(&outcome), written.join("\n")))?)
}

/// Returns the text of a shipped experiment, or of a file.
fn document(experiment: &str) -> anyhow::Result<String> {
    if Path::new(experiment).extension().is_some_and(|extension| extension == "toml") {
        return read(experiment).with_context(|| format!("cannot read {experiment}"));
    }
    let names: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
    experiment::shipped(experiment).map(str::to_owned).with_context(|| {
        format!("`{experiment}` is no shipped experiment ({}) and no file ending in .toml", names.join(", "))
    })
}

/// Reads a file, unless it is longer than a document may be.
fn read(path: &str) -> anyhow::Result<String> {
    let (mut bytes, max) = (Vec::new(), DOCUMENT_BYTES_MAX);
    File::open(path)?.take(max as u64 + 1).read_to_end(&mut bytes)?;
    ensure!(bytes.len() <= max, "it is longer than the {max} bytes that an experiment may have");
    Ok(String::from_utf8(bytes)?)
}

/// Returns the command that reproduces the run.
fn command(args: &RunArgs, out: &Path) -> String {
    let mut command = format!("roce lab run {}", quoted(&args.experiment));
    if let Some(seeds) = args.seeds {
        command += &format!(" --seeds {seeds}");
    }
    if args.quick {
        command += " --quick";
    }
    command + " --out " + &quoted(&out.display().to_string())
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    if !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || "/._-+=@".contains(c)) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_tells_what_each_experiment_takes() {
        let text = list().unwrap();
        for (name, _) in SHIPPED {
            let (_, after) =
                text.split_once(&format!("{name}\n")).unwrap_or_else(|| panic!("{name}: {text}"));
            assert!(after.lines().next().is_some_and(|line| line.contains("Takes ")), "{name}: {text}");
        }
    }

    #[test]
    fn an_experiment_is_a_name_or_a_file() {
        assert!(document("reactions").unwrap().contains("name = \"reactions\""));
        let error = document("reaction").unwrap_err().to_string();
        assert!(error.contains("`reaction` is no shipped experiment (goodput-vs-loss,"), "{error}");
        let error = format!("{:#}", document("/nowhere/a.toml").unwrap_err());
        assert!(error.contains("cannot read /nowhere/a.toml: No such file"), "{error}");
        let long = std::env::temp_dir().join(format!("roce-lab-long-{}.toml", std::process::id()));
        std::fs::write(&long, vec![0xFF; DOCUMENT_BYTES_MAX + 1]).unwrap();
        let error = format!("{:#}", document(long.to_str().unwrap()).unwrap_err());
        std::fs::remove_file(long).unwrap();
        assert!(error.contains("it is longer than the 65536 bytes"), "{error}");
    }

    #[test]
    fn the_command_in_the_report_does_the_same_again() {
        let args = RunArgs {
            experiment: "reactions".to_owned(),
            seeds: Some(3),
            out: None,
            json: true,
            quick: true,
            jobs: NonZero::new(7),
        };
        let again = command(&args, Path::new("a b"));
        assert_eq!(again, "roce lab run reactions --seeds 3 --quick --out 'a b'");
    }
}
