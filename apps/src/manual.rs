//! `roce completions` and `roce man-pages`: completions of shells and manual pages, made from the definition of the
//! command line.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::output;

const NAME: &str = "roce";

/// Print the completions of a shell for this command.
#[derive(Args)]
#[command(after_help = "\
Examples:
  roce completions bash > ~/.local/share/bash-completion/completions/roce
  roce completions zsh > ~/.zfunc/_roce           # in ~/.zshrc, before compinit: fpath+=~/.zfunc
  roce completions fish > ~/.config/fish/completions/roce.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Write the manual pages of this command to a directory: roce.1, roce-perf.1 and so on.
#[derive(Args)]
#[command(hide = true)]
pub(crate) struct ManPagesArgs {
    /// The directory, which is created if it does not exist.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Prints the completions of `command`.
pub(crate) fn completions(args: &CompletionsArgs, command: &mut Command) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, command, NAME, &mut script);
    output::print(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a page for `command` and for each of its visible subcommands.
pub(crate) fn man_pages(args: &ManPagesArgs, command: Command) -> anyhow::Result<ExitCode> {
    let directory = &args.directory;
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    // `roce help perf` has no page of its own.
    let mut command = command.disable_help_subcommand(true);
    command.build();
    write_pages(&command, directory)?;
    Ok(ExitCode::SUCCESS)
}

fn write_pages(command: &Command, directory: &Path) -> anyhow::Result<()> {
    let man = Man::new(command.clone());
    let path = directory.join(man.get_filename());
    fs::write(&path, page(command, &man)?).with_context(|| format!("cannot write {}", path.display()))?;
    command.get_subcommands().filter(|sub| !sub.is_hide_set()).try_for_each(|sub| write_pages(sub, directory))
}

/// Returns the page of `command`. `Man::render` would drop the empty date of the title, and would make one paragraph of
/// the end of the help.
fn page(command: &Command, man: &Man) -> io::Result<Vec<u8>> {
    let name = command.get_display_name().unwrap_or(NAME);
    let mut page = Vec::new();
    writeln!(page, ".TH {name} 1 \"\" \"{NAME} {}\" \"User Commands\"", env!("CARGO_PKG_VERSION"))?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let mut end = Roff::new();
    if let Some(help) = command.get_after_help() {
        end_of_help(&help.to_string(), &mut end);
    }
    if name != NAME {
        end.control("SH", ["SEE ALSO"]).text([bold(NAME), roman("(1)")]);
    }
    end.to_writer(&mut page)?;
    Ok(page)
}

/// Writes the end of a help as sections. After an empty or indented line, a line that is not indented begins a section
/// (`Examples:`, `Exit status: 0 on success`). Indented lines keep their form.
fn end_of_help(help: &str, roff: &mut Roff) {
    let (mut after_empty, mut after_indented) = (true, false);
    for line in help.lines() {
        let is_indented = line.starts_with(' ');
        if is_indented {
            if after_empty {
                roff.control("sp", []);
            }
            roff.control("nf", []).text([roman(line)]).control("fi", []);
        } else if let (true, Some((heading, text))) = (after_empty || after_indented, line.split_once(':')) {
            roff.control("SH", [heading.to_uppercase().as_str()]);
            if !text.is_empty() {
                roff.text([roman(text.trim_start())]);
            }
        } else if !line.is_empty() {
            roff.text([roman(line)]);
        }
        (after_empty, after_indented) = (line.is_empty(), is_indented);
    }
}
