//! The link speed of a network interface of the kernel.

use std::fs;
use std::path::Path;

use super::Interface;

/// Directory with an entry for each interface of the network namespace in which /sys was mounted.
const INTERFACES: &str = "/sys/class/net";

/// Returns the speed of the link of `interface` in Mbit/s. `None` if the kernel reports no speed, or if /sys belongs to
/// another network namespace, in which another interface may have the name of `interface`.
pub(crate) fn speed_mbps(interface: &Interface) -> Option<u32> {
    read(Path::new(INTERFACES), interface)
}

fn read(interfaces: &Path, interface: &Interface) -> Option<u32> {
    let value = |name: &str| fs::read_to_string(interfaces.join(&interface.name).join(name)).ok();
    let is_same = value("ifindex")?.trim() == interface.index.to_string()
        && value("address")?.trim().eq_ignore_ascii_case(&interface.mac.to_string());
    // The kernel reports -1 if the speed is unknown.
    is_same.then(|| value("speed")?.trim().parse().ok()).flatten().filter(|mbps| *mbps > 0)
}

#[cfg(test)]
mod tests {
    use roce::id::Mac;

    use super::*;

    #[test]
    fn the_speed_is_that_of_the_same_interface() {
        let directory = std::env::temp_dir().join(format!("roce-speed-{}", std::process::id()));
        let entry = directory.join("eth1");
        fs::create_dir_all(&entry).unwrap();
        let mac = Mac([2, 0, 0, 0, 0, 0xab]);
        let interface = Interface { name: "eth1".to_owned(), mac, ..Interface::imaginary(7) };
        for (index, address, speed, expected) in [
            ("7", "02:00:00:00:00:ab", "25000", Some(25_000)),
            ("7", "02:00:00:00:00:ab", "-1", None),
            ("7", "02:00:00:00:00:ab", "0", None),
            ("7", "02:00:00:00:00:aa", "25000", None),
            ("8", "02:00:00:00:00:ab", "25000", None),
        ] {
            for (name, text) in [("ifindex", index), ("address", address), ("speed", speed)] {
                fs::write(entry.join(name), format!("{text}\n")).unwrap();
            }
            assert_eq!(read(&directory, &interface), expected, "{index} {address} {speed}");
        }
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(read(&directory, &interface), None);
    }
}
