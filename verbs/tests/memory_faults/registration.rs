//! Registration of memory of the application.

use verbs::{Access, Error, Memory, Pd, UnusableMemory};

use crate::pages::{Loss, PAGE_BYTES, Pages};
use crate::pd;

const READ: Access = Access::REMOTE_READ;
const WRITE: Access = Access::LOCAL_WRITE;

fn refusal(pd: &Pd, memory: Memory, access: Access) -> Option<UnusableMemory> {
    match pd.register(memory, access) {
        Ok(_) => None,
        Err(Error::UnusableMemory(reason)) => Some(reason),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn memory_that_is_not_mapped_is_refused_with_its_first_address() {
    let (pd, pages) = (pd(), Pages::new(4));
    let base = pages.addr() as u64;
    pages.lose(2, Loss::Unmapped);
    let lost = base + 2 * PAGE_BYTES as u64;
    let beyond = base + 4 * PAGE_BYTES as u64;
    for access in [READ, WRITE, Access::ALL] {
        for (offset, len, expected) in [
            (0, 4 * PAGE_BYTES, lost),
            (2 * PAGE_BYTES - 1, 2, lost),
            (2 * PAGE_BYTES + 7, 1, lost + 7),
            (3 * PAGE_BYTES, PAGE_BYTES + 1, beyond),
            (3 * PAGE_BYTES, 1 << 46, beyond),
        ] {
            let reason = refusal(&pd, pages.memory(offset, len), access).expect("a refusal");
            assert!(matches!(reason, UnusableMemory::NotMapped { addr, .. } if addr == expected), "{reason}");
        }
        let wraps = pages.memory(0, usize::MAX);
        assert!(matches!(refusal(&pd, wraps, access), Some(UnusableMemory::NotMapped { .. })));
        for (offset, len) in [
            (0, 2 * PAGE_BYTES),
            (1, 1),
            (2 * PAGE_BYTES - 1, 1),
            (3 * PAGE_BYTES + 5, 90),
            (2 * PAGE_BYTES, 0),
        ] {
            let reason = refusal(&pd, pages.memory(offset, len), access);
            assert!(reason.is_none(), "{len} bytes at {offset}: {reason:?}");
        }
    }
}

#[test]
fn memory_is_refused_if_it_does_not_permit_what_the_access_rights_demand() {
    let (pd, pages) = (pd(), Pages::new(4));
    pages.protect(1, libc::PROT_READ);
    pages.protect(2, libc::PROT_NONE);
    let page = |index: usize| (pages.addr() + index * PAGE_BYTES) as u64;
    let refusal = |first: usize, count: usize, access| match refusal(
        &pd,
        pages.memory(first * PAGE_BYTES, count * PAGE_BYTES),
        access,
    ) {
        None => None,
        Some(UnusableMemory::NotPermitted { addr, write, .. }) => Some((addr, write)),
        Some(other) => panic!("{other}"),
    };
    assert_eq!(refusal(0, 2, READ), None);
    assert_eq!(refusal(0, 2, Access::NONE), None);
    assert_eq!(refusal(0, 3, READ), Some((page(2), false)));
    assert_eq!(refusal(0, 1, WRITE), None);
    assert_eq!(refusal(0, 2, WRITE), Some((page(1), true)));
    assert_eq!(refusal(0, 2, WRITE | Access::REMOTE_WRITE), Some((page(1), true)));
    assert_eq!(refusal(2, 2, WRITE), Some((page(2), true)));
    let reason = pd.register(pages.memory(PAGE_BYTES, 10), WRITE).err().unwrap().to_string();
    assert!(reason.contains("cannot be written: map the memory with PROT_READ | PROT_WRITE"), "{reason}");
}

#[test]
fn memory_beyond_the_end_of_its_file_is_refused() {
    let (pd, pages) = (pd(), Pages::new(3));
    pages.lose(2, Loss::Truncated);
    for access in [READ, WRITE] {
        let reason = refusal(&pd, pages.memory(0, 3 * PAGE_BYTES), access);
        assert!(matches!(reason, Some(UnusableMemory::NoContent { .. })), "{reason:?}");
        assert!(refusal(&pd, pages.memory(0, 2 * PAGE_BYTES), access).is_none());
    }
}

#[test]
fn the_pages_of_registered_memory_are_present() {
    let (pd, pages) = (pd(), Pages::new(4));
    assert!(!pages.is_present(1));
    let region = pd.register(pages.memory(2 * PAGE_BYTES - 1, 2), READ).unwrap();
    assert_eq!([0, 1, 2, 3].map(|page| pages.is_present(page)), [false, true, true, false]);
    drop(region);
}
