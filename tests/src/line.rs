//! The line that two programs exchange over standard output and input before they connect a queue pair each.

use std::error::Error;
use std::io::{self, Write as _};

use verbs::{Endpoint, Mr, Qp, RKey};

/// Prints the endpoint of `qp` with address and R_Key of `region`, and reads the peer's line. Returns the endpoint of the
/// peer, and address and R_Key of the peer's region. The GIDs have index 1.
pub fn exchange(qp: &Qp, region: &Mr) -> Result<(Endpoint, (u64, RKey)), Box<dyn Error>> {
    println!("{} {:x} {:x}", qp.endpoint(1), region.addr(), region.rkey().0);
    io::stdout().flush()?;
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    let [rkey, addr, peer] = line.trim().rsplitn(3, ' ').collect::<Vec<_>>()[..] else {
        return Err("the peer's line has three parts".into());
    };
    Ok((peer.parse()?, (u64::from_str_radix(addr, 16)?, RKey(u32::from_str_radix(rkey, 16)?))))
}
