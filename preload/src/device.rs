//! Devices: `struct ibv_device`, and the list that contains the devices of this process and those of other libraries.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::{mem, ptr};

use verbs::config::node_guid;
use verbs::port::PortKind;
use verbs::{DeviceDescription, DeviceOptions, PortSpec, describe};
use verbs_sys::{IBV_NODE_CA, IBV_TRANSPORT_IB, ibv_device};

use crate::boundary::{Errno, explain, object, set_errno};
use crate::config;
use crate::next::next;

/// A device of this process. C code has pointers to `c`.
#[repr(C)] // `c` is not last, because rdma-core's libraries read beyond the device to recognise their own
pub(crate) struct DeviceHandle {
    c: ibv_device,
    pub(crate) spec: PortSpec,
    pub(crate) options: DeviceOptions,
    /// Description of the device before the port is opened; `None` if the port's name is refused.
    pub(crate) description: Option<DeviceDescription>,
    /// EUI-64, in network byte order.
    pub(crate) guid: [u8; 8],
    /// Number of open contexts.
    pub(crate) contexts: AtomicUsize,
}

// SAFETY: `c` has null pointers only, and nothing changes a device.
unsafe impl Send for DeviceHandle {}
// SAFETY: as above.
unsafe impl Sync for DeviceHandle {}

/// Made at the first call of [`devices`], and never moved or freed.
static DEVICES: OnceLock<Vec<DeviceHandle>> = OnceLock::new();

thread_local! {
    /// Whether the thread is opening a port: DPDK's driver of mlx5 NICs then asks for the devices of libibverbs, and must
    /// not find the device that is being opened.
    static OPENS: Cell<bool> = const { Cell::new(false) };
}

/// Runs `open`, during which the calling thread sees only the devices of other libraries.
pub(crate) fn while_opening<T>(open: impl FnOnce() -> T) -> T {
    OPENS.set(true);
    let opened = open();
    OPENS.set(false);
    opened
}

/// Returns whether a port of `kind` has a link of its own. The link of the others is up while the peer's process is
/// connected; programs refuse a port that is not active, and a server starts before its peer.
pub(crate) fn has_link(kind: PortKind) -> bool {
    !matches!(kind, PortKind::Memif | PortKind::Vhost | PortKind::VirtioUser)
}

fn put_str(field: &mut [c_char], text: &str) {
    let bytes = text.bytes().take(field.len() - 1);
    field.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte.cast_signed());
}

impl DeviceHandle {
    fn new(number: usize, (spec, options): (PortSpec, DeviceOptions)) -> Self {
        let description = describe(&spec).map_err(|error| explain(&format!("port {spec}"), error)).ok();
        let mac = description.as_ref().and_then(|description| description.mac);
        let guid = node_guid(&spec, mac);
        // SAFETY: zeros are a value of each field: null pointers, numbers and empty texts.
        let mut c: ibv_device = unsafe { mem::zeroed() };
        c.node_type = IBV_NODE_CA;
        c.transport_type = IBV_TRANSPORT_IB;
        put_str(&mut c.name, &format!("roce{number}"));
        put_str(&mut c.dev_name, &format!("uverbs_roce{number}"));
        put_str(&mut c.dev_path, &format!("/sys/class/infiniband_verbs/uverbs_roce{number}"));
        put_str(&mut c.ibdev_path, &format!("/sys/class/infiniband/roce{number}"));
        DeviceHandle { c, spec, options, description, guid, contexts: AtomicUsize::new(0) }
    }

    pub(crate) fn as_ptr(&'static self) -> *mut ibv_device {
        ptr::from_ref(&self.c).cast_mut()
    }

    pub(crate) fn name(&self) -> &str {
        // SAFETY: `put_str` keeps the last byte 0.
        unsafe { CStr::from_ptr(self.c.name.as_ptr()) }.to_str().unwrap_or_default()
    }
}

fn devices() -> &'static [DeviceHandle] {
    let make =
        || (0..).zip(config::devices()).map(|(number, device)| DeviceHandle::new(number, device)).collect();
    DEVICES.get_or_init(make)
}

/// Returns the device of this process at `device`; `None` for null and for a device of another library.
pub(crate) fn ours(device: *mut ibv_device) -> Option<&'static DeviceHandle> {
    DEVICES.get()?.iter().find(|own| ptr::eq(&own.c, device))
}

/// Lists returned to the program and not yet freed, with the list of the next library that each contains.
static LISTS: Mutex<Option<HashMap<usize, usize>>> = Mutex::new(None);

/// Makes a list of `others`, a list of the next library or null, and the devices of this process. The list is one block
/// of malloc, because some programs free it themselves.
fn list(others: *mut *mut ibv_device, count: usize) -> Result<(*mut *mut ibv_device, usize), Errno> {
    let own = devices();
    let total = count + own.len();
    // SAFETY: the block has room for all devices and the null pointer at the end; `others` has `count` devices.
    let list = unsafe {
        let list = libc::calloc(total + 1, size_of::<*mut ibv_device>()).cast::<*mut ibv_device>();
        if list.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        if count > 0 {
            ptr::copy_nonoverlapping(others, list, count);
        }
        for (place, device) in (count..).zip(own) {
            list.add(place).write(device.as_ptr());
        }
        list
    };
    let mut lists = LISTS.lock().unwrap_or_else(PoisonError::into_inner);
    lists.get_or_insert_default().insert(list.addr(), others.expose_provenance());
    Ok((list, total))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    let mut count: c_int = 0;
    let out = &raw mut count;
    let others = next!(ibv_get_device_list(out: *mut c_int) -> *mut *mut ibv_device, ptr::null_mut());
    let (list, total) = if OPENS.get() || devices().is_empty() {
        (others, count)
    } else {
        let mut total = 0;
        let list = object(|| {
            let (list, len) = list(others, usize::try_from(count).unwrap_or(0))?;
            total = len;
            // Without RDMA devices of the kernel the next library has failed.
            set_errno(Errno(0));
            Ok(list)
        });
        (list, c_int::try_from(total).unwrap_or(0))
    };
    // SAFETY: the program passes null or an int.
    if let Some(num_devices) = unsafe { num_devices.as_mut() } {
        *num_devices = total;
    }
    list
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    let merged = {
        let mut lists = LISTS.lock().unwrap_or_else(PoisonError::into_inner);
        lists.as_mut().and_then(|lists| lists.remove(&list.addr()))
    };
    let others = merged.map_or(list, ptr::with_exposed_provenance_mut);
    if !others.is_null() {
        next!(ibv_free_device_list(others: *mut *mut ibv_device) -> (), ());
    }
    if merged.is_some() {
        // SAFETY: the list is a block of calloc, which the program frees only here.
        unsafe { libc::free(list.cast()) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    match ours(device) {
        Some(device) => u64::from_ne_bytes(device.guid),
        None => next!(ibv_get_device_guid(device: *mut ibv_device) -> u64, 0),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    match ours(device) {
        // The kernel has no such device.
        Some(_) => -1,
        None => next!(ibv_get_device_index(device: *mut ibv_device) -> c_int, -1),
    }
}
