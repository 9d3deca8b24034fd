//! Protection domains and memory regions.

use std::ptr;

use libc::{c_int, c_uint, c_void};
use verbs::{Access, Memory, PdId};
use verbs_sys::{
    IBV_ACCESS_HUGETLB, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_OPTIONAL_FIRST, IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE, ibv_context, ibv_mr, ibv_pd,
};

use crate::boundary::{Errno, INVALID, UNSUPPORTED, explain, object, status};
use crate::context::{ContextHandle, ours};
use crate::next::next;

/// A protection domain. C code has pointers to `c`, the first field.
#[repr(C)]
pub(crate) struct PdHandle {
    c: ibv_pd,
    pub(crate) id: PdId,
}

/// A memory region. C code has pointers to `c`, the first field.
#[repr(C)]
struct MrHandle {
    c: ibv_mr,
    lkey: verbs::LKey,
}

/// Returns the protection domain at `pd` and its context; `None` if they are another library's.
///
/// # Safety
/// `pd` is null or points to a protection domain of any library.
pub(crate) unsafe fn pd_of<'a>(pd: *mut ibv_pd) -> Option<(&'a PdHandle, &'a ContextHandle)> {
    // SAFETY: as the caller states; all protection domains of a context of ours are first fields of handles.
    unsafe {
        let context = ours(pd.as_ref()?.context)?;
        Some((&*pd.cast::<PdHandle>(), context))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the program passes a context.
    match unsafe { ours(context) } {
        Some(handle) => object(|| {
            let id = handle.objects()?.alloc_pd()?;
            let c = ibv_pd { context, handle: 0 };
            Ok(Box::into_raw(Box::new(PdHandle { c, id })).cast())
        }),
        None => next!(ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd, ptr::null_mut()),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the program passes a protection domain.
    match unsafe { pd_of(pd) } {
        Some((handle, context)) => status(|| {
            context.objects()?.dealloc_pd(handle.id)?;
            // SAFETY: the handle is a box of `ibv_alloc_pd`, and the program does not use it again.
            drop(unsafe { Box::from_raw(pd.cast::<PdHandle>()) });
            Ok(())
        }),
        None => next!(ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int, libc::ENOSYS),
    }
}

/// Flags that a device may ignore (`IBV_ACCESS_OPTIONAL_RANGE`).
const OPTIONAL: c_uint = (1 << 30) - IBV_ACCESS_OPTIONAL_FIRST;

/// Returns the rights of `enum ibv_access_flags`, whose numbers are those of `Access`. Optional flags are hints.
fn access_of(flags: c_uint) -> Result<Access, Errno> {
    const KNOWN: c_uint =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_HUGETLB;
    let required = flags & !OPTIONAL;
    if required & !KNOWN & !verbs_sys::IBV_ACCESS_REMOTE_ATOMIC != 0 {
        return Err(UNSUPPORTED);
    }
    Ok(Access(required & !IBV_ACCESS_HUGETLB))
}

fn register(
    pd: *mut ibv_pd,
    (handle, context): (&PdHandle, &ContextHandle),
    (addr, length, iova): (*mut c_void, usize, u64),
    flags: c_uint,
) -> *mut ibv_mr {
    object(|| {
        let access = access_of(flags)?;
        // SAFETY: the program keeps the range mapped until it deregisters the region; a range that it unmaps before is a
        // memory fault, which the copy routines report as an error of the packet.
        let memory = unsafe { Memory::from_raw(addr.cast(), length) }.ok_or(Errno(libc::EFAULT))?;
        let registered = context.objects()?.register(handle.id, memory, iova, access);
        let (lkey, rkey) = registered.map_err(|error| {
            explain("ibv_reg_mr", &error);
            Errno::from(error)
        })?;
        let c = ibv_mr { context: handle.c.context, pd, addr, length, handle: 0, lkey: lkey.0, rkey: rkey.0 };
        Ok(Box::into_raw(Box::new(MrHandle { c, lkey })).cast())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the program passes a protection domain.
    match unsafe { pd_of(pd) } {
        Some(of) => register(pd, of, (addr, length, addr.addr() as u64), access.cast_unsigned()),
        None => next!(
            ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr,
            ptr::null_mut()
        ),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the program passes a protection domain.
    match unsafe { pd_of(pd) } {
        Some(of) => register(pd, of, (addr, length, iova), access.cast_unsigned()),
        None => next!(
            ibv_reg_mr_iova(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_int)
                -> *mut ibv_mr,
            ptr::null_mut()
        ),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the program passes a protection domain.
    match unsafe { pd_of(pd) } {
        Some(of) => register(pd, of, (addr, length, iova), access),
        None => next!(
            ibv_reg_mr_iova2(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint)
                -> *mut ibv_mr,
            ptr::null_mut()
        ),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the program passes a protection domain.
    match unsafe { pd_of(pd) } {
        Some(_) => object(|| Err(UNSUPPORTED)),
        None => next!(
            ibv_reg_dmabuf_mr(pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int)
                -> *mut ibv_mr,
            ptr::null_mut()
        ),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    /// `IBV_REREG_MR_ERR_INPUT`: the call has changed nothing.
    const ERR_INPUT: c_int = -1;
    // SAFETY: the program passes a region.
    match unsafe { mr.as_ref().and_then(|mr| ours(mr.context)) } {
        Some(_) => {
            status(|| Err(UNSUPPORTED));
            ERR_INPUT
        }
        None => next!(
            ibv_rereg_mr(mr: *mut ibv_mr, flags: c_int, pd: *mut ibv_pd, addr: *mut c_void, length: usize,
                access: c_int) -> c_int,
            ERR_INPUT
        ),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: the program passes a region.
    match unsafe { mr.as_ref().and_then(|mr| ours(mr.context)) } {
        Some(context) => status(|| {
            let handle = mr.cast::<MrHandle>();
            // SAFETY: regions of our contexts are first fields of handles; the program does not use the region again.
            unsafe {
                context.objects()?.deregister((*handle).lkey)?;
                drop(Box::from_raw(handle));
            }
            Ok(())
        }),
        None => next!(ibv_dereg_mr(mr: *mut ibv_mr) -> c_int, libc::ENOSYS),
    }
}

/// Returns the right bits for `ibv_qp_attr::qp_access_flags`.
pub(crate) fn qp_access_of(flags: c_uint) -> Result<Access, Errno> {
    access_of(flags).map_err(|_| INVALID)
}
