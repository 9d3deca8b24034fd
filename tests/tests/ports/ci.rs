//! The lines of docs/user/ci.md, run as they are on the page. What is substituted: Docker by tests/tests/ports/docker.sh,
//! sudo by a script that runs its arguments, `./rdma-test` by a script that runs ibv_devinfo, and the installed package
//! by the programs of this workspace. [`NOT_RUN`] lists the lines that are not run.

use std::path::Path;
use std::time::Duration;

use crate::live::{Namespace, Process, install_script, library, programs, roce, turn};

const PAGE: &str = include_str!("../../../docs/user/ci.md");
/// Beginnings of blocks and steps that are not run here, and the reasons.
const NOT_RUN: [(&str, &str); 3] = [
    ("FROM ", "the image of a registry"),
    ("uses: actions/", "actions of GitHub"),
    (
        "sudo apt-get update && sudo apt-get install",
        "scripts/package.sh --test unpacks the package and tries it",
    ),
];
/// How long one block may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A script of the page: a block, or a step of the workflow.
struct Script {
    heading: String,
    text: String,
}

/// Returns the blocks of the page, each with its language.
fn blocks() -> Vec<(&'static str, Script)> {
    let mut blocks = Vec::new();
    let (mut heading, mut block) = ("", None);
    for line in PAGE.lines() {
        match (line.strip_prefix("```"), &mut block) {
            (Some(language), None) => block = Some((language, String::new())),
            (Some(_), Some(_)) => {
                let (language, text) = block.take().expect("a block is open");
                blocks.push((language, Script { heading: heading.to_owned(), text }));
            }
            (None, Some((_, text))) => *text += &format!("{line}\n"),
            (None, None) => heading = line.strip_prefix("## ").unwrap_or(heading),
        }
    }
    assert!(block.is_none(), "a block has no end");
    blocks
}

/// Returns the steps of a workflow: the scripts of `run`, and the lines with `uses`.
fn steps(workflow: &Script) -> Vec<Script> {
    let mut steps: Vec<Script> = Vec::new();
    // Indentation of `run: |`, whose lines are indented further.
    let mut open: Option<usize> = None;
    for line in workflow.text.lines() {
        let indent = line.len() - line.trim_start().len();
        if open.is_some_and(|run| indent > run) {
            steps.last_mut().expect("the step has begun").text += &format!("{}\n", line.trim_start());
            continue;
        }
        open = None;
        let step = |text: &str| Script { heading: workflow.heading.clone(), text: text.to_owned() };
        match line.trim_start().trim_start_matches("- ").split_once(": ") {
            Some(("run", "|")) => {
                open = Some(indent);
                steps.push(step(""));
            }
            Some(("run", line)) => steps.push(step(line)),
            Some(("uses", action)) => steps.push(step(&format!("uses: {action}"))),
            _ => {}
        }
    }
    steps
}

/// Runs `script` in a network namespace with directories of its own: as an ordinary user, or, if the page says sudo or
/// docker, as root of the namespace.
fn execute(script: &Script) {
    let namespace = Namespace::with_own_directories();
    let inside = namespace.proc().join("root/tmp");
    for (name, text) in [
        ("sudo", "#!/bin/sh\nexec \"$@\"\n"),
        ("docker", include_str!("docker.sh")),
        ("rdma-test", "#!/bin/sh\nibv_devinfo -d roce0 | grep PORT_ACTIVE\n"),
    ] {
        install_script(text, &inside.join(name));
    }
    let as_root = script.text.contains("sudo ") || script.text.contains("docker ");
    let (mut command, path) = if as_root {
        (namespace.command("bash"), format!("{}:/tmp", programs().display()))
    } else {
        // Brings the programs to /tmp.
        drop(namespace.ordinary_user(&library()));
        drop(namespace.ordinary_user(&roce()));
        (namespace.ordinary_user(Path::new("/bin/bash")), "/tmp".to_owned())
    };
    let rest = std::env::var("PATH").unwrap();
    command.args(["-euo", "pipefail", "-c", &format!("cd /tmp\n{}", script.text)]);
    let output = Process::start(command.env("PATH", format!("{path}:{rest}"))).finish(TIMEOUT);
    output.expect_success(&format!("docs/user/ci.md, {}:\n{}", script.heading, script.text));
}

#[test]
fn the_lines_of_the_page_run() {
    let _turn = turn();
    let mut scripts = Vec::new();
    for (language, script) in blocks() {
        match language {
            "sh" | "dockerfile" => scripts.push(script),
            "yaml" => scripts.extend(steps(&script)),
            other => panic!("a block of the language `{other}`"),
        }
    }
    let mut left_out = [0; NOT_RUN.len()];
    let mut executed = 0;
    for script in &scripts {
        match NOT_RUN.iter().position(|(beginning, _)| script.text.starts_with(beginning)) {
            Some(at) => {
                eprintln!("NOT RUN: {} ({})", script.text.lines().next().unwrap_or_default(), NOT_RUN[at].1);
                left_out[at] += 1;
            }
            None => {
                execute(script);
                executed += 1;
            }
        }
    }
    assert_eq!((left_out, executed), ([1, 3, 1], 8), "blocks not run, and blocks run");
}
