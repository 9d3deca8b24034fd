//! Memory that the application owns. The registration of memory checks that the memory can be accessed. If the
//! application unmaps registered memory, a later access of the engine to this memory fails, and the signal of the
//! memory fault does not end the process.

mod maps;
mod populate;
mod signals;

use dpdk_ffi::NoCancel;
use roce::mem::{Access, Memory};

pub use populate::UnusableMemory;

/// Prepares a thread that was started with the signal mask of the application: unblocks the signals of memory faults.
pub(crate) fn prepare_thread() {
    signals::unblock();
}

/// Prepares memory of the application for registration: makes its pages present, checks that they are accessible as
/// `access` needs, and installs the handler of memory faults. Takes no lock of a device, because the kernel may read
/// the pages from a file.
pub(crate) fn prepare(memory: &Memory, access: Access) -> Result<(), UnusableMemory> {
    if !memory.is_lent() || memory.len_bytes() == 0 {
        return Ok(());
    }
    // `populate` may read the mappings of this process from /proc/self/maps; this read is a cancellation point.
    let _no_cancel = NoCancel::new();
    signals::install()?;
    populate::populate(memory, access)
}
