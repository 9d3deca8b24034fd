//! Manual pages and completions, which the command makes from its own definition.

use std::collections::BTreeSet;
use std::process::Command;

use crate::live::{roce, run};

/// Returns the subcommands that the help of `roce WORDS` lists.
fn subcommands(words: &[&str]) -> Vec<String> {
    let help = run(Command::new(roce()).args(words).arg("-h"));
    let (_, list) = help.split_once("Commands:\n").unwrap_or_default();
    let names = list.lines().take_while(|line| !line.is_empty()).filter_map(|line| {
        let name = line.strip_prefix("  ")?.split(' ').next()?;
        (!name.is_empty() && name != "help").then(|| name.to_owned())
    });
    names.collect()
}

/// Returns the names of the pages that the command and its subcommands should have.
fn wanted(words: &[&str]) -> BTreeSet<String> {
    let mut pages = BTreeSet::from([[&["roce"], words].concat().join("-") + ".1"]);
    for name in subcommands(words) {
        pages.extend(wanted(&[words, &[&name]].concat()));
    }
    pages
}

#[test]
fn each_subcommand_has_a_page_that_groff_sets_without_a_warning() {
    let directory = tempfile::tempdir().unwrap();
    run(Command::new(roce()).arg("man-pages").arg(directory.path()));
    let names = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let pages: BTreeSet<String> = names.map(|name| name.into_string().unwrap()).collect();
    assert_eq!(pages, wanted(&[]));
    assert!(pages.contains("roce-perf-write-bw.1") && pages.contains("roce-run.1"), "{pages:?}");
    for page in &pages {
        let path = directory.path().join(page);
        let output = Command::new("groff").args(["-man", "-ww", "-Tutf8"]).arg(&path).output();
        let output = output.expect("groff; scripts/check.sh installs what the tests need");
        assert!(output.status.success(), "{page}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "warnings about {page}");
    }
    let ping = std::fs::read_to_string(directory.path().join("roce-ping.1")).unwrap();
    assert!(ping.contains("\n.SH EXAMPLES\n") && ping.contains("\n.SH \"EXIT STATUS\"\n"), "{ping}");
}

/// Returns what bash proposes for the last of `words`.
fn proposals(words: &str) -> Vec<String> {
    let script = r#"
        . <("$0" completions bash)
        COMP_WORDS=($1) COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        _roce roce "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let proposed = run(Command::new("bash").args(["-c", script]).arg(roce()).arg(words));
    proposed.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_subcommands_and_options() {
    assert_eq!(proposals("roce pe"), ["perf"]);
    assert_eq!(proposals("roce perf write-b"), ["write-bw"]);
    assert_eq!(proposals("roce ping --drop-c"), ["--drop-chance"]);
}

#[test]
fn each_shell_gets_completions() {
    for (shell, first) in [("bash", "_roce() {"), ("zsh", "#compdef roce"), ("fish", "# Print an optspec")] {
        let script = run(Command::new(roce()).args(["completions", shell]));
        assert!(script.starts_with(first), "{shell}: {}", script.lines().next().unwrap_or_default());
        let offers = script.contains("write-bw") && script.contains("drop-chance");
        assert!(offers, "{shell}");
    }
}
