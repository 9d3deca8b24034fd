//! Leases of QPN prefixes. Each process that shares an interface leases a prefix, so that the destination QPN of a
//! packet identifies the process.
//!
//! ```text
//!   QPN     23 .. 18 number of the lease | 17 .. 0 random
//!   lease   the abstract Unix socket @roce-qpn-INDEX-NUMBER; INDEX is the index of the interface
//! ```
//! Abstract names belong to a network namespace, as interfaces do. The kernel frees the name when the last process that
//! has the socket ends, also after SIGKILL. A process forked from the owner keeps the lease until it ends or executes
//! another program.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;

use roce::engine::QpnPrefix;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

use super::{Interface, KernelError};
use crate::limits::TooFewDescriptors;

/// Number of bits of a leased prefix, the largest that [`QpnPrefix`] permits.
const LEASE_BITS: u8 = 6;
/// Numbers that [`Lease::any`] leases. Number 0 is left out, because the owner of lease 0 receives the management
/// packets (packets to the QPNs 0 and 1).
pub(super) const LEASES: Range<u8> = 1..1 << LEASE_BITS;

/// The right to QPNs of one prefix on an interface. The drop frees the prefix.
#[derive(Debug)]
pub struct Lease {
    prefix: QpnPrefix,
    /// Sockets that only occupy their names: no socket listens or is connected.
    _sockets: Vec<OwnedFd>,
}

impl Lease {
    /// Leases a free prefix of `interface`. The search begins at a random number. Otherwise a process would often lease
    /// the prefix of a process that has just ended, and receive packets to the QPNs of the ended process.
    ///
    /// # Errors
    /// [`KernelError::NoPrefix`] if all prefixes are leased.
    pub fn any(interface: &Interface) -> Result<Self, KernelError> {
        let mut random = [0];
        let failed = KernelError::system("draw a random number");
        getrandom::fill(&mut random).map_err(|error| failed(io::Error::other(error.to_string())))?;
        let start = LEASES.start + random[0] % LEASES.len() as u8;
        for number in (start..LEASES.end).chain(LEASES.start..start) {
            match take(interface, number) {
                Err(KernelError::PrefixTaken { .. }) => {}
                taken => return taken.map(|socket| Lease::new(number, socket)),
            }
        }
        Err(KernelError::NoPrefix { interface: interface.name.clone(), index: interface.index })
    }

    /// Leases `prefix`: takes each lease whose number begins with the bits of `prefix`. These are 1 to 64 leases.
    ///
    /// # Errors
    /// [`KernelError::PrefixTaken`] if another process has one of these leases.
    pub fn of(interface: &Interface, prefix: QpnPrefix) -> Result<Self, KernelError> {
        let free_bits = LEASE_BITS - prefix.bits();
        let first = prefix.value() << free_bits;
        let count = 1_u8 << free_bits;
        TooFewDescriptors::check("the lease of QPNs", count.into())?;
        let sockets = (first..first + count).map(|number| take(interface, number));
        Ok(Lease { prefix, _sockets: sockets.collect::<Result<_, _>>()? })
    }

    fn new(number: u8, socket: OwnedFd) -> Self {
        let prefix = QpnPrefix::new(number, LEASE_BITS).unwrap_or_default();
        Lease { prefix, _sockets: vec![socket] }
    }

    /// Returns the leased prefix.
    pub fn prefix(&self) -> QpnPrefix {
        self.prefix
    }
}

/// Takes the lease of the QPNs of `interface` whose 6 high bits have the value `number`.
fn take(interface: &Interface, number: u8) -> Result<OwnedFd, KernelError> {
    let failed = |errno: Errno| KernelError::system("lease QPNs of the interface")(errno.into());
    let name = format!("roce-qpn-{}-{number}", interface.index);
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(failed)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let socket = socket.map_err(failed)?;
    match bind(&socket, &address) {
        Ok(()) => Ok(socket),
        Err(Errno::ADDRINUSE) => Err(KernelError::PrefixTaken {
            interface: interface.name.clone(),
            index: interface.index,
            number,
        }),
        Err(errno) => Err(failed(errno)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    /// Environment variable with the index of the interface of which a child process leases a prefix.
    const INDEX: &str = "ROCE_TEST_LEASE_INDEX";

    /// Returns one of four interface indices of this process, selected by `test` (0 to 3). No other test process has
    /// leases of these indices.
    fn own_index(test: u32) -> u32 {
        u32::MAX - 4 * std::process::id() - test
    }

    fn prefix(number: u8, bits: u8) -> QpnPrefix {
        QpnPrefix::new(number, bits).unwrap()
    }

    #[test]
    fn each_lease_has_another_prefix_until_all_are_taken() {
        let (one, other) = (Interface::imaginary(own_index(0)), Interface::imaginary(own_index(1)));
        let mut leases: Vec<Lease> = LEASES.map(|_| Lease::any(&one).unwrap()).collect();
        let numbers: BTreeSet<u8> = leases.iter().map(|lease| lease.prefix().value()).collect();
        assert!(numbers.into_iter().eq(1..64) && leases.iter().all(|lease| lease.prefix().bits() == 6));
        let error = Lease::any(&one).unwrap_err().to_string();
        assert!(error.contains("no QPN prefix of interface `none` is free"), "{error}");
        assert!(Lease::any(&other).is_ok(), "each interface has its own leases");
        let freed = leases.swap_remove(17).prefix();
        assert_eq!(Lease::any(&one).unwrap().prefix(), freed);
    }

    #[test]
    fn the_search_begins_at_a_random_number() {
        let interface = Interface::imaginary(own_index(2));
        let drawn: BTreeSet<u8> = (0..64).map(|_| Lease::any(&interface).unwrap().prefix().value()).collect();
        assert!(drawn.len() > 8, "{drawn:?}");
    }

    #[test]
    fn a_given_prefix_is_leased_with_all_its_numbers() {
        let interface = Interface::imaginary(own_index(3));
        let half = Lease::of(&interface, prefix(1, 1)).unwrap();
        assert_eq!(half.prefix(), prefix(1, 1));
        for (value, bits) in [(32, 6), (63, 6), (3, 2), (0, 0)] {
            let error = Lease::of(&interface, prefix(value, bits)).unwrap_err();
            assert!(matches!(error, KernelError::PrefixTaken { number: 32.., .. }), "{error}");
        }
        let quarter = Lease::of(&interface, prefix(1, 2)).unwrap();
        let others: Vec<Lease> = (1..16).map(|_| Lease::any(&interface).unwrap()).collect();
        assert!(others.iter().all(|lease| lease.prefix().value() < 16));
        assert!(Lease::any(&interface).is_err());
        drop((half, quarter, others));
        let all = Lease::of(&interface, QpnPrefix::default()).unwrap();
        assert!(Lease::any(&interface).is_err());
        drop(all);
        assert!(Lease::any(&interface).is_ok());
    }

    #[test]
    fn the_death_of_a_process_frees_its_lease() {
        if let Ok(index) = std::env::var(INDEX) {
            let lease = Lease::of(&Interface::imaginary(index.parse().unwrap()), prefix(9, 6)).unwrap();
            println!("leased");
            std::io::stdin().read_line(&mut String::new()).unwrap();
            return drop(lease);
        }
        let index = u32::MAX / 2 - std::process::id();
        let name = concat!(module_path!(), "::the_death_of_a_process_frees_its_lease");
        let (_, name) = name.split_once("::").unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(INDEX, index.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.ends_with("leased")));
        let taken = Lease::of(&Interface::imaginary(index), prefix(9, 6));
        assert!(matches!(taken, Err(KernelError::PrefixTaken { number: 9, .. })), "{taken:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(Lease::of(&Interface::imaginary(index), prefix(9, 6)).is_ok());
    }
}
