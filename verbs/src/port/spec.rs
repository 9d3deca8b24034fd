//! The name of a port: `KIND:TARGET[,key=value...]`. The `roce` commands and this library use the same syntax.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use roce::engine::SourceChecks;
use roce::id::Mac;

/// Kinds of port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortKind {
    /// A memif: shared memory between two processes. The process that opens its port first is the memif
    /// server, the other process the memif client.
    Memif,
    /// A network interface of the kernel, used through packet sockets: a shared port.
    AfPacket,
    /// A network interface of the kernel, used through XDP sockets: a dedicated port.
    AfXdp,
    /// The device end of a vhost-user socket. A virtual machine or a virtio-user port is the driver end.
    Vhost,
    /// The driver end of a vhost-user socket (virtio-user).
    VirtioUser,
    /// A tap interface of the kernel, created by this process.
    Tap,
    /// A NIC on the PCI bus.
    Pci,
    /// A virtual device of DPDK that has no kind of its own, given by its DPDK name.
    Eal,
}

/// Each kind of port, with its name, a description of its target, and an example of a port name.
pub const KINDS: [(PortKind, &str, &str, &str); 8] = [
    (PortKind::Memif, "memif", "a name, a socket's path, or @NAME", "memif:wire"),
    (PortKind::AfPacket, "af_packet", "a kernel interface", "af_packet:eth1"),
    (PortKind::AfXdp, "af_xdp", "a kernel interface", "af_xdp:eth1"),
    (PortKind::Vhost, "vhost", "a socket's path, which this side makes", "vhost:/tmp/vm.sock"),
    (PortKind::VirtioUser, "virtio-user", "a socket's path, which the peer made", "virtio-user:/tmp/vm.sock"),
    (PortKind::Tap, "tap", "a kernel interface to be made", "tap:rdma0"),
    (PortKind::Pci, "pci", "a PCI address", "pci:0000:3b:00.0"),
    (PortKind::Eal, "eal", "a DPDK virtual device", "eal:net_null0"),
];

impl PortKind {
    /// Returns the name of this kind of port, with which port names begin.
    pub fn name(self) -> &'static str {
        KINDS.iter().find(|(kind, ..)| *kind == self).map_or("", |(_, name, ..)| name)
    }

    /// Returns whether the target of the port is a network interface that the kernel has before the port is opened.
    pub(crate) fn is_kernel_interface(self) -> bool {
        matches!(self, PortKind::AfPacket | PortKind::AfXdp)
    }

    /// Returns whether the DPDK device of a dedicated port has an MTU setting. On other dedicated ports, only the size
    /// of the packet buffers limits frames.
    pub(crate) fn has_mtu(self) -> bool {
        matches!(self, PortKind::Pci | PortKind::Tap)
    }
}

/// Largest VLAN identifier; 802.1Q reserves 4095.
const VLAN_ID_MAX: u16 = 4094;

/// A parsed port name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSpec {
    /// Kind of the port.
    pub kind: PortKind,
    /// Target of the port: interface, path, address or name, as [`KINDS`] describes for each kind of port.
    pub target: String,
    /// IP addresses of the port, each with its prefix length in bits.
    pub ips: Vec<(IpAddr, u8)>,
    /// Gateway to destinations off the link. Refused on af_packet and af_xdp: af_packet ports use the kernel's routes,
    /// and af_xdp ports the gateways of the kernel's default routes.
    pub gateway: Option<IpAddr>,
    /// MAC of the port. `None`: the MAC of the DPDK device; on a tap, this MAC with the lowest bit of its last byte
    /// inverted, because the kernel's tap interface has the MAC of the DPDK device.
    pub mac: Option<Mac>,
    /// VLAN identifier, 1 to 4094: the port sends frames with a VLAN tag that has this identifier, and receives only
    /// frames with such a tag. `None`: no VLAN.
    pub vlan: Option<u16>,
    /// Largest IP packet, in bytes: at most the size of a packet buffer less 64 bytes and, on af_packet and af_xdp
    /// ports, at most the MTU of the interface. `None`: on pci and tap ports the MTU of the DPDK device, on other ports
    /// the largest permitted value.
    pub mtu_bytes: Option<u16>,
    /// Number of receive queues, and of transmit queues; at least 1.
    pub queues: u16,
    /// Whether a packet's source MAC and source UDP port are checked, besides its source IP address.
    pub source_checks: SourceChecks,
    /// Secret of a memif: the server accepts only clients that send the same secret; `None`: no secret.
    pub secret: Option<String>,
    /// User IDs that the process at the other end of a memif may have, besides this process's user ID and root's.
    pub peer_uids: Vec<u32>,
    /// Arguments passed unchanged to the DPDK driver.
    pub driver_args: Vec<String>,
}

/// Reason why a text does not name a port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortSpecError {
    /// The text does not begin with a kind of port.
    #[error("`{0}` names no port; write KIND:TARGET[,key=value...], for example memif:wire or af_packet:eth1,ip=10.0.0.1/24. Kinds: {kinds}", kinds = kind_names())]
    NoKind(String),
    /// No target follows the kind of port.
    #[error("`{kind}:` needs a target: {needed}, as in {example}")]
    NoTarget {
        /// Name of the kind of port.
        kind: &'static str,
        /// Description of the text that must follow `KIND:` in the name of a port.
        needed: &'static str,
        /// Example of a port name of the kind `kind`.
        example: &'static str,
    },
    /// The text has an unknown key.
    #[error(
        "`{0}` is no key of a port; there are ip=ADDRESS/PREFIX, gw=ADDRESS, mac=, vlan=ID, mtu=BYTES, queues=N, source-mac=any, source-port=any, for memif secret=TEXT and uid=N, and dev.KEY=VALUE for the DPDK driver"
    )]
    UnknownKey(String),
    /// The value given for a key of the port name is not valid.
    #[error("{key}={value}: {reason}")]
    BadValue {
        /// Key of the port name.
        key: &'static str,
        /// The value given for `key`.
        value: String,
        /// Reason why `value` is not valid for `key`.
        reason: String,
    },
}

fn kind_names() -> String {
    KINDS.map(|(_, name, ..)| name).join(", ")
}

fn bad<E: fmt::Display>(key: &'static str, value: &str) -> impl FnOnce(E) -> PortSpecError {
    move |error| PortSpecError::BadValue { key, value: value.to_owned(), reason: error.to_string() }
}

fn parse_ip(value: &str) -> Result<(IpAddr, u8), PortSpecError> {
    let (ip, prefix) = value
        .split_once('/')
        .ok_or("write the prefix length too, as in 10.0.0.1/24")
        .map_err(bad("ip", value))?;
    let ip: IpAddr = ip.parse().map_err(bad("ip", value))?;
    let most = if ip.is_ipv4() { 32 } else { 128 };
    let bits: u8 = prefix.parse().map_err(bad("ip", value))?;
    if bits > most {
        return Err(bad("ip", value)(format!("a prefix has at most {most} bits")));
    }
    Ok((ip, bits))
}

/// Parses the value of the key `source-mac` or `source-port`. Returns whether the stack checks the source MAC or source
/// UDP port of packets: true for `bound`, false for `any`.
fn parse_bound(key: &'static str, value: &str) -> Result<bool, PortSpecError> {
    match value {
        "any" => Ok(false),
        "bound" => Ok(true),
        _ => Err(bad(key, value)("it is `bound` (the default) or `any`")),
    }
}

/// Returns the secret: `value` or, for `@FILE`, the first line of FILE. With `@FILE`, the secret is not on the command
/// line, which every user can read. Errors do not contain the secret.
fn parse_secret(value: &str) -> Result<String, PortSpecError> {
    /// Longest secret, in bytes; the driver appends a zero byte.
    const BYTES_MAX: usize = 23;
    let shown = value.strip_prefix('@').map_or("...", |_| value);
    let secret = match value.strip_prefix('@') {
        Some(path) => std::fs::read_to_string(path).map_err(bad("secret", shown))?,
        None => value.to_owned(),
    };
    let secret = secret.lines().next().unwrap_or_default();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+".contains(&byte);
    if (1..=BYTES_MAX).contains(&secret.len()) && secret.bytes().all(is_plain) {
        return Ok(secret.to_owned());
    }
    Err(bad("secret", shown)(format!("it takes 1 to {BYTES_MAX} letters, digits or `-_.+`")))
}

impl PortSpec {
    fn set(&mut self, pair: &str) -> Result<(), PortSpecError> {
        let (key, value) = pair.split_once('=').ok_or_else(|| PortSpecError::UnknownKey(pair.to_owned()))?;
        match key {
            "ip" => self.ips.push(parse_ip(value)?),
            "gw" => self.gateway = Some(value.parse().map_err(bad("gw", value))?),
            "mac" => self.mac = Some(value.parse().map_err(bad("mac", value))?),
            "vlan" => {
                let id: u16 = value.parse().map_err(bad("vlan", value))?;
                if !(1..=VLAN_ID_MAX).contains(&id) {
                    return Err(bad("vlan", value)("a VLAN has a number from 1 to 4094"));
                }
                self.vlan = Some(id);
            }
            "mtu" => self.mtu_bytes = Some(value.parse().map_err(bad("mtu", value))?),
            "queues" => {
                self.queues = value.parse().map_err(bad("queues", value))?;
                if self.queues == 0 {
                    return Err(bad("queues", value)("a port has at least one queue"));
                }
            }
            "source-mac" => self.source_checks.mac = parse_bound("source-mac", value)?,
            "source-port" => self.source_checks.udp_port = parse_bound("source-port", value)?,
            "secret" => self.secret = Some(parse_secret(value)?),
            "uid" => self.peer_uids.push(value.parse().map_err(bad("uid", value))?),
            _ => match key.strip_prefix("dev.") {
                Some(key) => self.driver_args.push(format!("{key}={value}")),
                None => return Err(PortSpecError::UnknownKey(key.to_owned())),
            },
        }
        Ok(())
    }
}

impl FromStr for PortSpec {
    type Err = PortSpecError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let no_kind = || PortSpecError::NoKind(text.to_owned());
        let (name, rest) = text.split_once(':').ok_or_else(no_kind)?;
        let (kind, name, needed, example) =
            *KINDS.iter().find(|(_, known, ..)| *known == name).ok_or_else(no_kind)?;
        let mut parts = rest.split(',');
        let target = parts.next().unwrap_or_default();
        if target.is_empty() || target == "@" {
            return Err(PortSpecError::NoTarget { kind: name, needed, example });
        }
        let mut spec = PortSpec {
            kind,
            target: target.to_owned(),
            ips: Vec::new(),
            gateway: None,
            mac: None,
            vlan: None,
            mtu_bytes: None,
            queues: 1,
            source_checks: SourceChecks::default(),
            secret: None,
            peer_uids: Vec::new(),
            driver_args: Vec::new(),
        };
        parts.try_for_each(|pair| spec.set(pair))?;
        Ok(spec)
    }
}

impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind.name(), self.target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_with_their_keys() {
        let spec: PortSpec = "pci:0000:3b:00.0,ip=10.0.0.1/24,ip=fd00::1/64,mac=2:0:0:0:0:1,vlan=7,mtu=4200,queues=2,gw=10.0.0.254,dev.a=b".parse().unwrap();
        assert_eq!(spec.kind, PortKind::Pci);
        assert_eq!(spec.target, "0000:3b:00.0");
        assert_eq!(spec.ips.len(), 2);
        assert_eq!((spec.vlan, spec.mtu_bytes, spec.queues), (Some(7), Some(4200), 2));
        assert_eq!(spec.driver_args, ["a=b"]);
        assert_eq!(spec.source_checks, SourceChecks { mac: true, udp_port: true });
        assert_eq!(spec.to_string(), "pci:0000:3b:00.0");
        let spec: PortSpec = "tap:r,source-port=any".parse().unwrap();
        assert_eq!(spec.source_checks, SourceChecks { mac: true, udp_port: false });
        assert!("tap:r,source-mac=none".parse::<PortSpec>().is_err());
        for (kind, _, _, example) in KINDS {
            assert_eq!(example.parse::<PortSpec>().unwrap().kind, kind);
        }
    }

    #[test]
    fn who_may_be_the_other_end_of_a_memif_is_read() {
        let spec: PortSpec = "memif:a,secret=s3c-ret,uid=1000,uid=7".parse().unwrap();
        assert_eq!(
            (spec.secret.as_deref(), spec.peer_uids.as_slice()),
            (Some("s3c-ret"), [1000, 7].as_slice())
        );
        let path = std::env::temp_dir().join(format!("roce-secret-test-{}", std::process::id()));
        std::fs::write(&path, "of.a+file\nand more\n").unwrap();
        let spec: PortSpec = format!("memif:a,secret=@{}", path.display()).parse().unwrap();
        assert_eq!(spec.secret.as_deref(), Some("of.a+file"));
        std::fs::remove_file(&path).unwrap();
        let error = "memif:a,secret=top secret".parse::<PortSpec>().unwrap_err().to_string();
        assert!(!error.contains("top"), "{error}");
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, said) in [
            ("eth0", "names no port"),
            ("memif:", "needs a target"),
            ("memif:@", "needs a target"),
            ("memif:@a,ip=10.0.0.1", "prefix length"),
            ("memif:@a,ip=10.0.0.1/33", "at most 32 bits"),
            ("memif:@a,mtu=99999", "mtu=99999"),
            ("memif:@a,queues=0", "at least one"),
            ("memif:@a,vlan=0", "from 1 to 4094"),
            ("memif:@a,vlan=4095", "from 1 to 4094"),
            ("memif:@a,colour=red", "`colour` is no key"),
            ("memif:@a,colour", "`colour` is no key"),
            ("memif:a,uid=root", "uid=root"),
            ("memif:a,secret=", "1 to 23 letters"),
            ("memif:a,secret=123456789012345678901234", "1 to 23 letters"),
            ("memif:a,secret=a b", "1 to 23 letters"),
            ("memif:a,secret=@/nosuchfile", "secret=@/nosuchfile"),
        ] {
            let error = text.parse::<PortSpec>().unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
