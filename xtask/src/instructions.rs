//! `cargo xtask instructions`: instructions of each step of a packet and of each call of an RDMA program, compared with
//! those pinned.

use std::collections::HashMap;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::process::Stdio;

use anyhow::{Context as _, bail};
use clap::Args;
use serde::Deserialize;

use crate::process::run as run_command;
use crate::{install, workspace};

const ABOUT: &str = "\
Counts the instructions of each step of a packet under callgrind, those of the calls that an RDMA
program makes for each message (in C and in Rust), and the cache lines that a message needs of a queue
pair that no cache contains, and compares them with roce/benches/instructions.txt: counts repeat where
times on a shared machine do not

  cargo xtask instructions            fails if a count has moved
  cargo xtask instructions --bless    writes the present counts into the file; so does BLESS=1

Counts are those of the compiler that the file names, on a CPU with AVX2 (valgrind hides AVX-512).
With that compiler a count may move by 2 %, because the C library's memcpy differs between machines;
with another compiler by 9 %.";

/// Counts the instructions of each step of a packet, and compares them with those pinned
#[derive(Args)]
#[command(long_about = ABOUT)]
pub(crate) struct InstructionsArgs {
    /// Write the present counts into the file of pinned counts
    #[arg(long)]
    bless: bool,
}

const PINNED: &str = "roce/benches/instructions.txt";
/// A benchmark named `instructions`.
struct Benchmark {
    package: &'static str,
    /// Number of times that the benchmark repeats what a count is of.
    repeats: f64,
}

const BENCHMARKS: [Benchmark; 2] = [
    // BATCH_PKTS of `roce/benches/flow/mod.rs`.
    Benchmark { package: "benches", repeats: 32.0 },
    // CALLS of `preload/benches/calls/mod.rs`.
    Benchmark { package: "preload", repeats: 8.0 },
];
/// Library of the benchmark, of whose version the runner must be.
const LIBRARY: &str = "gungraun";
const RUNNER: &str = "gungraun-runner";
/// Variable with the path of the runner.
const RUNNER_VARIABLE: &str = "GUNGRAUN_RUNNER";
/// Benchmark of which the cache misses are counted, not the instructions. They depend on where the allocator puts
/// objects, so that their tolerance is the larger one.
const COLD_LINES: &str = "cold_lines";
/// First word of the names of benchmarks that complete [`PACKETS`] data packets, at both ends.
const BOTH: &str = "both_";
/// `PACKETS` of `roce/benches/flow/lossy.rs`.
const PACKETS: f64 = 6400.0;
/// Tolerance with the compiler of the pinned counts, and with another.
const SAME_COMPILER_PERCENT: f64 = 2.0;
const OTHER_COMPILER_PERCENT: f64 = 9.0;

/// Counts, and compares. An error if a count has moved.
pub(crate) fn run(args: &InstructionsArgs) -> anyhow::Result<()> {
    if !workspace::is_in_path("valgrind") {
        bail!("there is no valgrind; install it: apt-get install valgrind");
    }
    let version = run_command(&["rustc", "--version"])?;
    let compiler = version.split(' ').take(2).collect::<Vec<_>>().join(" ");
    let (runner, mut now) = (runner()?, Vec::new());
    workspace::build_library()?;
    for benchmark in &BENCHMARKS {
        let printed = count(&runner, benchmark.package)?;
        let counts = counts_of(&printed, benchmark.repeats);
        if counts.is_empty() {
            bail!("the benchmark printed no counts:\n{printed}");
        }
        now.extend(counts);
    }
    if args.bless || env::var_os("BLESS").is_some_and(|value| !value.is_empty()) {
        fs::write(PINNED, pinned_text(&now, &compiler)).context(PINNED)?;
        println!("wrote {PINNED}");
    }
    let pinned = fs::read_to_string(PINNED).context(PINNED)?;
    let mut percent = SAME_COMPILER_PERCENT;
    if !is_of_compiler(&pinned, &compiler) {
        percent = OTHER_COMPILER_PERCENT;
        println!("{PINNED} was made with another compiler than {compiler}: {percent} % are let pass");
    }
    let comparison = Comparison::new(&parse_pinned(&pinned)?, &now, percent);
    print!("{}{}{}{}", comparison.text, beyond_copy_and_icrc(&now), kept(&now), beyond_rust(&now));
    if comparison.moved > 0 {
        let moved = comparison.moved;
        println!("\n{moved} counts moved by more than {percent} %. If that is meant, renew them:");
        println!("cargo xtask instructions --bless");
        bail!("{moved} counts moved");
    }
    Ok(())
}

/// Returns the path of the runner, which is installed if it is missing.
fn runner() -> anyhow::Result<String> {
    let version = locked_version(&fs::read_to_string("Cargo.lock").context("Cargo.lock")?, LIBRARY)?;
    if let Ok(runner) = env::var(RUNNER_VARIABLE)
        && run_command(&[&runner, "--version"])
            .is_ok_and(|said| said.trim_end() == format!("{RUNNER} {version}"))
    {
        return Ok(runner);
    }
    install::tool(RUNNER, &version)
}

/// Returns the version of a package in the text of a Cargo.lock.
fn locked_version(lock: &str, name: &str) -> anyhow::Result<String> {
    #[derive(Deserialize)]
    struct Lock {
        package: Vec<Package>,
    }
    #[derive(Deserialize)]
    struct Package {
        name: String,
        version: String,
    }
    let lock: Lock = toml::from_str(lock).context("Cargo.lock")?;
    let package = lock.package.into_iter().find(|package| package.name == name);
    Ok(package.with_context(|| format!("Cargo.lock has no package {name}"))?.version)
}

/// Runs the benchmark of a package, and returns what it prints.
fn count(runner: &str, package: &str) -> anyhow::Result<String> {
    let mut command = workspace::cargo();
    command.args(["bench", "--locked", "--package", package, "--bench", "instructions"]);
    command.env("NO_COLOR", "1").env(RUNNER_VARIABLE, runner).stderr(Stdio::inherit());
    let output = command.output().context("cargo cannot be started")?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("the benchmark failed ({}):\n{printed}", output.status);
    }
    Ok(printed)
}

/// Instructions per packet or call of one case, or cache lines per message, as printed: with one digit after the point.
#[derive(Clone, Debug, PartialEq)]
struct Count {
    name: String,
    value: f64,
}

impl Count {
    fn line(&self) -> String {
        format!("{:<40} {:>8.1}", self.name, self.value)
    }
}

/// Returns the counts that a benchmark printed, divided by `repeats`:
///
/// ```text
///   instructions::wire::parse bytes_64:flow::frame(64)
///     Instructions:                        7674|7674                 (No change)
///     RAM Hits:                              12|12                   (No change)
/// ```
///
/// A count is one of instructions, except that of [`COLD_LINES`]. Counts of [`BOTH`] are divided by [`PACKETS`] instead.
fn counts_of(printed: &str, repeats: f64) -> Vec<Count> {
    let mut counts = Vec::new();
    let mut name = None;
    for line in printed.lines() {
        let mut words = line.split_whitespace();
        let (first, second) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        if line.starts_with("instructions::") {
            let function = first.rsplit("::").next().unwrap_or_default();
            let case = second.split(':').next().unwrap_or_default();
            name = Some(format!("{function} {case}"));
            continue;
        }
        let is_cold_lines = name.as_ref().is_some_and(|name| name.starts_with(COLD_LINES));
        let value = match (first, second) {
            ("Instructions:", value) if !is_cold_lines => value,
            ("RAM", "Hits:") if is_cold_lines => words.next().unwrap_or_default(),
            _ => continue,
        };
        if let Ok(total) = value.split('|').next().unwrap_or_default().parse::<f64>()
            && let Some(name) = name.take()
        {
            let repeats = if name.starts_with(BOTH) { PACKETS } else { repeats };
            let rounded = format!("{:.1}", total / repeats).parse();
            counts.extend(rounded.ok().map(|value| Count { name, value }));
        }
    }
    counts
}

/// Returns the text of a file of pinned counts.
fn pinned_text(counts: &[Count], compiler: &str) -> String {
    let lines: String = counts.iter().map(|count| count.line() + "\n").collect();
    format!(
        "# Instructions per packet or call (cold_lines: cache lines per message), {compiler}; cargo xtask instructions checks them, --bless renews them.\n{lines}"
    )
}

/// Returns whether the first line of a file of pinned counts names `compiler`.
fn is_of_compiler(pinned: &str, compiler: &str) -> bool {
    let header = pinned.lines().next().unwrap_or_default();
    header.starts_with('#') && header.contains(&format!(" {compiler};"))
}

/// Parses the text of a file of pinned counts.
fn parse_pinned(text: &str) -> anyhow::Result<Vec<Count>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let count = |line: &str| {
        let [function, case, value] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            return None;
        };
        Some(Count { name: format!("{function} {case}"), value: value.parse().ok()? })
    };
    lines.map(|line| count(line).with_context(|| format!("{PINNED}: `{line}` is no count"))).collect()
}

/// Counts beside those pinned.
#[derive(Debug, PartialEq)]
struct Comparison {
    text: String,
    /// Number of counts that moved by more than the tolerance, are not pinned, or are pinned only.
    moved: usize,
}

impl Comparison {
    fn new(pinned: &[Count], now: &[Count], percent: f64) -> Comparison {
        let (pinned_by_name, now_by_name) = (by_name(pinned), by_name(now));
        let (mut text, mut moved) = (String::new(), 0);
        for count in now {
            let was = pinned_by_name.get(&*count.name).copied().unwrap_or(0.0);
            let change = if was > 0.0 { 100.0 * (count.value / was - 1.0) } else { 100.0 };
            let is_cold_lines = count.name.starts_with(COLD_LINES);
            let has_moved = change.abs() > if is_cold_lines { OTHER_COMPILER_PERCENT } else { percent };
            moved += usize::from(has_moved);
            let mark = if has_moved { "  <-- moved" } else { "" };
            let _ = writeln!(text, "{}, pinned {was:>8.1}  {change:>+6.1} %{mark}", count.line());
        }
        for gone in pinned.iter().filter(|count| !now_by_name.contains_key(&*count.name)) {
            let _ = writeln!(text, "{} is pinned, but no longer counted", gone.name);
            moved += 1;
        }
        Comparison { text, moved }
    }
}

fn by_name(counts: &[Count]) -> HashMap<&str, f64> {
    counts.iter().map(|count| (&*count.name, count.value)).collect()
}

/// Returns the instructions of both roles per data packet, without those of the copy and the ICRC, which every stack
/// in software has.
fn beyond_copy_and_icrc(now: &[Count]) -> String {
    let now = by_name(now);
    let roles = |case: &str| {
        let least = if case == "send_64" { "bytes_64" } else { "bytes_4k" };
        let least = now.get(&*format!("copy_and_icrc {least}"))?;
        let of = |function: &str| now.get(&*format!("{function} {case}"));
        let requester = of("requester_post_to_wire")? + of("requester_completion")? - least;
        Some((requester, of("responder_wire_to_completion")? - least))
    };
    let mut text = "\nbeyond copy and ICRC, per data packet:\n".to_owned();
    for case in ["send_64", "send_4k", "write_64k", "read_64k"] {
        if let Some((requester, responder)) = roles(case) {
            let _ = writeln!(
                text,
                "{case:<12} requester {requester:>7.1}, responder {responder:>7.1} instructions"
            );
        }
    }
    text
}

/// Returns the pairs of counts of which `partner` names the second: it returns the text of the pair, and the name of the
/// second count, for the name of the first.
fn pairs<'a>(
    now: &'a [Count],
    partner: impl Fn(&'a str) -> Option<(&'a str, String)>,
) -> Vec<(&'a str, f64, f64)> {
    let by_name = by_name(now);
    let pair = |first: &'a Count| {
        let (text, second) = partner(&first.name)?;
        Some((text, first.value, *by_name.get(&*second)?))
    };
    now.iter().filter_map(pair).collect()
}

/// Returns the instructions per data packet without loss, divided by those at a loss of 2 %: of goodput, a CPU that
/// executes both ends would keep this share.
fn kept(now: &[Count]) -> String {
    let mut text = "\nkept at a loss of 2 %, by instructions per data packet of both ends:\n".to_owned();
    for (case, lossless, lossy) in pairs(now, |name| {
        let case = name.strip_prefix("both_without_loss ")?;
        Some((case, format!("both_at_2_percent {case}")))
    }) {
        let _ = writeln!(text, "{case:<12} {:.3}", lossless / lossy);
    }
    text
}

/// Returns the instructions of each call of the C interface beyond those of the Rust function in which the call ends.
fn beyond_rust(now: &[Count]) -> String {
    let mut text = "\nof the C interface beyond its Rust functions, per call:\n".to_owned();
    for (call, c, rust) in pairs(now, |name| {
        let call = name.strip_suffix(" c")?;
        Some((call, format!("{call} rust")))
    }) {
        let _ = writeln!(text, "{call:<14} {:>7.1} instructions", c - rust);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(name: &str, value: f64) -> Count {
        Count { name: name.to_owned(), value }
    }

    #[test]
    fn counts_are_read_from_the_output() {
        let printed = "\
instructions::wire::parse bytes_64:flow::frame(64)
  Instructions:                        7674|7700                 (-0.3%) [-1.0x]
  L1 Hits:                             9000|9000                 (No change)
instructions::engine::idle_poll one_qp:Flow::new(Case::Send64)
  Instructions:                       10826|N/A                  (*********)
  Instructions:                           1|N/A                  (of no case)
instructions::engine::broken one_qp:x
  Instructions:                        none

Gungraun result: Ok. 2 without regressions
";
        assert_eq!(
            counts_of(printed, 32.0),
            [count("parse bytes_64", 239.8), count("idle_poll one_qp", 338.3)]
        );
        let both = "instructions::loss::both_at_2_percent send_64:x\n  Instructions: 640000|\n";
        assert_eq!(counts_of(both, 32.0), [count("both_at_2_percent send_64", 100.0)]);
        // A quarter is rounded to the even digit, as printf rounds it.
        let quarter = "instructions::a::f c:x\nInstructions: 7656|\n";
        assert_eq!(counts_of(quarter, 32.0), [count("f c", 239.2)]);
        let lines = "instructions::cache::cold_lines x:y\n Instructions: 7656|\n L1 Hits: 900|\n RAM Hits: 1704|1700\n";
        assert_eq!(counts_of(lines, 32.0), [count("cold_lines x", 53.2)]);
    }

    #[test]
    fn pinned_counts_survive_their_file() {
        let counts = [count("parse bytes_64", 239.8), count("junk duplicate_read_limited", 945.0)];
        let text = pinned_text(&counts, "rustc 1.95.0");
        assert_eq!(text.lines().nth(1), Some("parse bytes_64                              239.8"));
        assert_eq!(parse_pinned(&text).unwrap(), counts);
        for (compiler, expected) in [("rustc 1.95.0", true), ("rustc 1.95", false), ("rustc 1.96.0", false)] {
            assert_eq!(is_of_compiler(&text, compiler), expected, "{compiler}");
        }
        for line in ["parse 1.0", "parse bytes_64 many", "parse bytes_64 1.0 2.0"] {
            assert!(parse_pinned(line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_count_may_move_within_the_tolerance() {
        let pinned = [count("f c", 100.0)];
        for (now, percent, moved) in [
            (100.0, 2.0, 0),
            (101.9, 2.0, 0),
            (98.1, 2.0, 0),
            (102.1, 2.0, 1),
            (97.9, 2.0, 1),
            (108.9, 9.0, 0),
            (109.1, 9.0, 1),
        ] {
            assert_eq!(
                Comparison::new(&pinned, &[count("f c", now)], percent).moved,
                moved,
                "{now}, {percent}"
            );
        }
    }

    #[test]
    fn the_comparison_has_a_line_for_each_count() {
        let pinned = [count("f c", 100.0), count("gone c", 5.0)];
        let now = [count("f c", 110.0), count("new c", 7.0)];
        let lines = "\
f c                                         110.0, pinned    100.0   +10.0 %  <-- moved
new c                                         7.0, pinned      0.0  +100.0 %  <-- moved
gone c is pinned, but no longer counted
";
        assert_eq!(Comparison::new(&pinned, &now, 2.0), Comparison { text: lines.to_owned(), moved: 3 });
    }

    #[test]
    fn roles_are_compared_with_copy_and_icrc() {
        let now = [
            count("copy_and_icrc bytes_64", 10.0),
            count("copy_and_icrc bytes_4k", 100.0),
            count("requester_post_to_wire send_64", 30.0),
            count("requester_completion send_64", 5.0),
            count("responder_wire_to_completion send_64", 40.0),
            count("requester_post_to_wire read_64k", 9.0),
            count("requester_completion read_64k", 101.0),
            count("responder_wire_to_completion read_64k", 120.0),
        ];
        let expected = "
beyond copy and ICRC, per data packet:
send_64      requester    25.0, responder    30.0 instructions
read_64k     requester    10.0, responder    20.0 instructions
";
        assert_eq!(beyond_copy_and_icrc(&now), expected);
    }

    #[test]
    fn calls_in_c_are_compared_with_rust() {
        let now = [
            count("poll_cq c", 10.0),
            count("poll_cq rust", 7.5),
            count("post_recv c", 1.0),
            count("a c", 0.0),
        ];
        let expected = "
of the C interface beyond its Rust functions, per call:
poll_cq            2.5 instructions
";
        assert_eq!(beyond_rust(&now), expected);
    }

    #[test]
    fn kept_is_of_cases_that_were_counted_twice() {
        let now = [
            count("both_without_loss send_64", 2500.0),
            count("both_without_loss read_64", 5000.0),
            count("both_at_2_percent send_64", 2750.0),
        ];
        let expected =
            "\nkept at a loss of 2 %, by instructions per data packet of both ends:\nsend_64      0.909\n";
        assert_eq!(kept(&now), expected);
    }

    #[test]
    fn the_version_of_the_library_is_locked() {
        let lock = "version = 4\n[[package]]\nname = \"gungraun-macros\"\nversion = \"1.0.0\"\n\
                    [[package]]\nname = \"gungraun\"\nversion = \"0.20.0\"\nsource = \"x\"\n";
        assert_eq!(locked_version(lock, "gungraun").unwrap(), "0.20.0");
        assert!(locked_version(lock, "absent").unwrap_err().to_string().contains("no package absent"));
        let own = include_str!("../../Cargo.lock");
        assert!(locked_version(own, LIBRARY).is_ok());
    }
}
