//! EAL's command line, checked before EAL parses it, because EAL prints its usage to standard output for an
//! unknown option, and ends the process for `--help`.

use super::error::EalError;

/// An option of `rte_eal_init` (DPDK 22.11 to 24.11): its name without dashes, and whether it takes a value.
struct EalOption(&'static str, Value);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    Needed,
    None,
    Optional,
}

const OPTIONS: &[EalOption] = &[
    EalOption("a", Value::Needed),
    EalOption("allow", Value::Needed),
    EalOption("b", Value::Needed),
    EalOption("base-virtaddr", Value::Needed),
    EalOption("block", Value::Needed),
    EalOption("c", Value::Needed),
    EalOption("create-uio-dev", Value::None),
    EalOption("d", Value::Needed),
    EalOption("file-prefix", Value::Needed),
    EalOption("force-max-simd-bitwidth", Value::Needed),
    EalOption("huge-dir", Value::Needed),
    EalOption("huge-unlink", Value::Optional),
    EalOption("huge-worker-stack", Value::Optional),
    EalOption("in-memory", Value::None),
    EalOption("iova-mode", Value::Needed),
    EalOption("l", Value::Needed),
    EalOption("lcores", Value::Needed),
    EalOption("legacy-mem", Value::None),
    EalOption("log-color", Value::Optional),
    EalOption("log-level", Value::Needed),
    EalOption("log-timestamp", Value::Optional),
    EalOption("m", Value::Needed),
    EalOption("main-lcore", Value::Needed),
    EalOption("match-allocations", Value::None),
    EalOption("mbuf-pool-ops-name", Value::Needed),
    EalOption("n", Value::Needed),
    EalOption("no-hpet", Value::None),
    EalOption("no-huge", Value::None),
    EalOption("no-pci", Value::None),
    EalOption("no-shconf", Value::None),
    EalOption("no-telemetry", Value::None),
    EalOption("proc-type", Value::Needed),
    EalOption("r", Value::Needed),
    EalOption("s", Value::Needed),
    EalOption("S", Value::Needed),
    EalOption("single-file-segments", Value::None),
    EalOption("socket-limit", Value::Needed),
    EalOption("socket-mem", Value::Needed),
    EalOption("syslog", Value::Optional),
    EalOption("telemetry", Value::None),
    EalOption("trace", Value::Optional),
    EalOption("trace-bufsz", Value::Needed),
    EalOption("trace-dir", Value::Needed),
    EalOption("trace-mode", Value::Needed),
    EalOption("v", Value::None),
    EalOption("vdev", Value::Needed),
    EalOption("vfio-intr", Value::Needed),
    EalOption("vfio-vf-token", Value::Needed),
    EalOption("vmware-tsc-map", Value::None),
];

/// Names of the options of a command line, each known to EAL and complete.
pub(super) struct Checked<'a>(Vec<&'a str>);

impl<'a> Checked<'a> {
    /// Checks `args`, in which an option is written as `--name=value`, `--name value`, `-n value` or
    /// `-nvalue`.
    pub(super) fn new(args: &'a [String]) -> Result<Self, EalError> {
        let mut names = Vec::new();
        let mut rest = args.iter();
        while let Some(arg) = rest.next() {
            let refuse =
                |reason: &str| EalError::InvalidArgument { argument: arg.clone(), reason: reason.to_owned() };
            if arg.contains('\0') {
                return Err(refuse("it contains a NUL byte"));
            }
            let (name, inline) =
                split(arg).ok_or_else(|| refuse("it is not an option: those begin with - or --"))?;
            let EalOption(name, value) = OPTIONS.iter().find(|option| option.0 == name).ok_or_else(|| {
                refuse("EAL has no such option, or not one that makes sense inside another program")
            })?;
            if *name == "d" && dpdk_sys::STATIC {
                return Err(refuse(
                    "DPDK is part of this program, and a driver loaded from a file would bring another",
                ));
            }
            match (value, inline) {
                (Value::None, Some(_)) => return Err(refuse("this option takes no value")),
                (Value::Needed, Some("")) => return Err(refuse("this option needs a value")),
                (Value::Needed, None) if rest.next().is_none_or(|value| value.is_empty()) => {
                    return Err(refuse("this option needs a value"));
                }
                _ => names.push(*name),
            }
        }
        let checked = Self(names);
        checked.exclude("no-huge", "in-memory")?;
        checked.exclude("no-huge", "legacy-mem")?;
        Ok(checked)
    }

    /// Whether one of `names` is given.
    pub(super) fn has_any(&self, names: &[&str]) -> bool {
        self.0.iter().any(|given| names.contains(given))
    }

    fn exclude(&self, one: &str, other: &str) -> Result<(), EalError> {
        if self.has_any(&[one]) && self.has_any(&[other]) {
            let reason = format!("EAL does not take it together with --{other}: give one of them");
            return Err(EalError::InvalidArgument { argument: format!("--{one}"), reason });
        }
        Ok(())
    }
}

/// Returns an option's name, and the value in the same word, if any.
fn split(arg: &str) -> Option<(&str, Option<&str>)> {
    if let Some(long) = arg.strip_prefix("--").filter(|long| !long.is_empty()) {
        return Some(match long.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (long, None),
        });
    }
    let short = arg.strip_prefix('-')?;
    let name_len = short.chars().next()?.len_utf8();
    let (name, value) = short.split_at(name_len);
    Some((name, (!value.is_empty()).then_some(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(args: &[&str]) -> Result<Vec<String>, String> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let checked = Checked::new(&args).map_err(|error| error.to_string())?;
        Ok(checked.0.iter().map(|name| (*name).to_owned()).collect())
    }

    #[test]
    fn every_way_to_write_an_option_is_understood() {
        let args = [
            "--vdev=net_null0",
            "--log-level",
            "debug",
            "-m",
            "64",
            "-m64",
            "--no-pci",
            "--huge-unlink=always",
        ];
        assert_eq!(check(&args).unwrap(), ["vdev", "log-level", "m", "m", "no-pci", "huge-unlink"]);
    }

    #[test]
    fn what_eal_would_refuse_or_end_the_process_for_is_an_error() {
        for args in [
            &["--no-such-option"][..],
            &["--help"],
            &["-h"],
            &["stray"],
            &["--"],
            &["-"],
            &["--vdev"],
            &["--vdev="],
            &["-m"],
            &["--no-pci=1"],
            &["--vdev=a\0b"],
            &["--no-huge", "--in-memory"],
            &["--legacy-mem", "--no-huge"],
        ] {
            let error = check(args).expect_err(&format!("{args:?} must be refused"));
            let subject = args.iter().any(|arg| error.contains(&format!("{arg:?}")));
            assert!(subject, "{error} does not name the argument of {args:?}");
        }
    }
}
