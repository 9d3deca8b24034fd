//! The memory regions of a device, by key. Threads register and deregister regions while engines use other regions.
//!
//! ```text
//!   key, all bits random --its low bits--> places: | key, region | empty | key, null | ..
//! ```
//!
//! An engine looks a region up in its [`MemoryView`], without a lock and without a write. The places are an
//! open-addressing hash table of a fixed size. If half of the places are used, the next registration replaces the table
//! by a new one. Replaced tables and deregistered regions are freed when no engine uses them (`epoch`).
//!
//! The place of a deregistered region keeps its key, with null instead of the region, so that the key is in
//! quarantine: it is not allocated again before [`QUARANTINE_NUMBERS`] further regions were deregistered. Otherwise a
//! delayed request with the R_Key of a deregistered region could access a later region.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ptr::{self, NonNull};
use std::sync::{Arc, PoisonError};

use super::copy::{Memory, Span};
use super::epoch::{Epoch, Epochs};
use super::mr::{Access, MemoryError, MemoryRegion, PdId, RegisterError};
use crate::id::{LKey, RKey};
use crate::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::table::QUARANTINE_NUMBERS;

/// Smallest number of places of the hash table; only 4 under loom, which tracks each atomic variable.
const PLACES_MIN: usize = if cfg!(loom) { 4 } else { 64 };

/// Smallest ratio of places to keys (allocated or in quarantine) in a hash table that replaces another, so that most
/// look-ups end at the first place searched.
const PLACES_PER_KEY: usize = 4;

/// A place of the hash table. An empty place has key 0, which no region has.
#[derive(Debug)]
struct Place {
    key: AtomicU32,
    /// From `Box::into_raw`; null if the region was deregistered.
    region: AtomicPtr<MemoryRegion>,
}

/// The hash table. At most half of its places are used, so that the search for an absent key ends at an empty place.
#[derive(Debug)]
struct Places(Box<[Place]>);

impl Places {
    /// Creates a table of at least `len` places.
    fn new(len: usize) -> Self {
        let empty = || Place { key: AtomicU32::new(0), region: AtomicPtr::new(ptr::null_mut()) };
        Places((0..len.max(PLACES_MIN).next_power_of_two()).map(|_| empty()).collect())
    }

    /// Returns the place of `key`. If no place has this key, returns as an error the empty place at which the search
    /// ended: another thread may be writing a region with a different key to this place. Key 0 is not found.
    #[inline]
    fn find(&self, key: u32) -> Result<&Place, &Place> {
        let mask = self.0.len() - 1;
        let mut at = key as usize;
        loop {
            let place = &self.0[at & mask];
            let found = place.key.load(Ordering::Acquire);
            if found == 0 {
                return Err(place);
            }
            if found == key {
                return Ok(place);
            }
            at += 1;
        }
    }

    /// Writes `region` and then `key` to the empty place of `key`.
    fn insert(&self, key: u32, region: *mut MemoryRegion) {
        let (Ok(place) | Err(place)) = self.find(key);
        place.region.store(region, Ordering::Relaxed);
        place.key.store(key, Ordering::Release);
    }
}

/// State of [`MemoryTable`] that only registration and deregistration use.
#[derive(Debug)]
struct Control {
    max_regions: usize,
    regions: usize,
    /// Number of places of the current table that are not empty.
    used_places: usize,
    /// Keys in quarantine, in the order in which their regions were deregistered.
    quarantine: VecDeque<u32>,
}

/// All memory regions of a device. The L_Key and the R_Key of a region are the same number.
#[derive(Debug)]
pub(crate) struct MemoryTable {
    /// From `Box::into_raw`; replaced only by a thread that holds the lock of `control`.
    places: AtomicPtr<Places>,
    /// Number of regions deregistered or invalidated.
    revocations: AtomicU64,
    control: Mutex<Control>,
    epochs: Epochs,
}

impl MemoryTable {
    pub(crate) fn new(max_regions: usize) -> Self {
        let places = Box::into_raw(Box::new(Places::new(PLACES_MIN)));
        let control = Control { max_regions, regions: 0, used_places: 0, quarantine: VecDeque::new() };
        MemoryTable {
            places: AtomicPtr::new(places),
            revocations: AtomicU64::new(0),
            control: Mutex::new(control),
            epochs: Epochs::new(),
        }
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the current table. The borrow of `control` proves that the caller holds the lock.
    fn places<'a>(&'a self, _control: &'a Control) -> &'a Places {
        // SAFETY: the pointer is from Box::into_raw, and a table is replaced only by `reserve`, which needs the lock
        // and a mutable borrow of `control`.
        unsafe { &*self.places.load(Ordering::Relaxed) }
    }

    /// Registers `memory`, and returns L_Key and R_Key of the memory region. `draw` returns random numbers, of which
    /// one becomes the number of both keys.
    pub(crate) fn register(
        &self,
        mut draw: impl FnMut() -> u32,
        pd: PdId,
        memory: Memory,
        addr: u64,
        access: Access,
    ) -> Result<(LKey, RKey), RegisterError> {
        let region = MemoryRegion::new(pd, addr, memory, access)?;
        let mut control = self.control();
        if control.regions == control.max_regions {
            return Err(RegisterError::TooMany(control.max_regions));
        }
        self.reserve(&mut control);
        let places = self.places(&control);
        // Most numbers are free, so the loop ends after a few draws.
        let key = loop {
            let drawn = draw();
            if drawn != 0 && places.find(drawn).is_err() {
                break drawn;
            }
        };
        places.insert(key, Box::into_raw(Box::new(region)));
        control.regions += 1;
        control.used_places += 1;
        Ok((LKey(key), RKey(key)))
    }

    /// Makes room for one further key: if half of the places are used, replaces the table by a new table. The new table
    /// does not contain the keys whose quarantine has ended.
    fn reserve(&self, control: &mut Control) {
        let old = self.places(control);
        if 2 * (control.used_places + 1) <= old.0.len() {
            return;
        }
        let kept = control.regions + control.quarantine.len();
        let new = Places::new(PLACES_PER_KEY * (kept + 1));
        for place in &old.0 {
            let region = place.region.load(Ordering::Relaxed);
            if !region.is_null() {
                new.insert(place.key.load(Ordering::Relaxed), region);
            }
        }
        control.quarantine.iter().for_each(|key| new.insert(*key, ptr::null_mut()));
        control.used_places = kept;
        let old = self.places.swap(Box::into_raw(Box::new(new)), Ordering::AcqRel);
        self.epochs.wait();
        // SAFETY: the pointer is from Box::into_raw, and the swap has removed it from the table. Each engine has left
        // the epoch in which it may have loaded the pointer; other threads use the table only with the lock.
        drop(unsafe { Box::from_raw(old) });
    }

    /// Removes the region with the key `lkey`, waits until no engine uses it, and frees it. Returns the protection
    /// domain of the region; `None` if no region has this key.
    pub(crate) fn deregister(&self, lkey: LKey) -> Option<PdId> {
        let mut control = self.control();
        let place = self.places(&control).find(lkey.0).ok()?;
        let region = NonNull::new(place.region.swap(ptr::null_mut(), Ordering::AcqRel))?;
        self.revocations.fetch_add(1, Ordering::Release);
        control.regions -= 1;
        control.quarantine.push_back(lkey.0);
        if control.quarantine.len() > QUARANTINE_NUMBERS {
            control.quarantine.pop_front();
        }
        drop(control);
        self.epochs.wait();
        // SAFETY: the pointer is from Box::into_raw, and the swap has passed it to this call only. Each engine has left
        // the epoch in which it may have loaded the pointer.
        Some(unsafe { Box::from_raw(region.as_ptr()) }.pd())
    }
}

impl Drop for MemoryTable {
    fn drop(&mut self) {
        // SAFETY: the pointer is from Box::into_raw. Each view references the table, so no view exists.
        let places = unsafe { Box::from_raw(self.places.load(Ordering::Relaxed)) };
        for region in places.0.iter().map(|place| place.region.load(Ordering::Relaxed)) {
            if !region.is_null() {
                // SAFETY: the pointer is from Box::into_raw, and only the current table has it.
                drop(unsafe { Box::from_raw(region) });
            }
        }
    }
}

/// The access of one engine to a [`MemoryTable`]. [`MemoryView::enter`] begins the epoch of the engine, and
/// [`MemoryView::leave`] ends the epoch.
#[derive(Debug)]
pub(crate) struct MemoryView {
    table: Arc<MemoryTable>,
    epoch: Arc<Epoch>,
    /// During an epoch (from `enter` until `leave`): the hash table of the memory regions, as `enter` loaded it.
    /// Otherwise `None`.
    places: Option<NonNull<Places>>,
}

// SAFETY: `places` is a reference to an object that any thread may read, and that is not freed while the view is inside
// its epoch, on whatever thread.
unsafe impl Send for MemoryView {}

impl MemoryView {
    pub(crate) fn new(table: Arc<MemoryTable>) -> Self {
        let epoch = table.epochs.add();
        MemoryView { table, epoch, places: None }
    }

    /// Begins the epoch: `open_local` and `open_remote` find regions until `leave`. A thread that deregisters a region
    /// or replaces the hash table waits for `leave`. A second `enter` before `leave` has no effect.
    #[inline]
    pub(crate) fn enter(&mut self) {
        if self.places.is_none() {
            self.epoch.enter();
            self.places = NonNull::new(self.table.places.load(Ordering::Acquire));
        }
    }

    /// Ends the epoch: `open_local` and `open_remote` find no region until the next `enter`. Outside the epoch,
    /// `leave` has no effect. The mutable borrow proves that no [`Span`] of a region is in use.
    #[inline]
    pub(crate) fn leave(&mut self) {
        if self.places.is_some() {
            self.places = None;
            self.epoch.leave();
        }
    }

    #[inline]
    fn region(&self, key: u32) -> Option<&MemoryRegion> {
        // SAFETY: inside the epoch, neither the places nor a region found there is freed before `leave`, which needs a
        // mutable borrow of the view.
        let places = unsafe { self.places?.as_ref() };
        let region = places.find(key).ok()?.region.load(Ordering::Acquire);
        // SAFETY: as above.
        unsafe { region.as_ref() }
    }

    /// Returns `len_bytes` bytes at `addr` of the region with key `lkey`, for a local work request. The region must be
    /// of `pd` and grant `access`: [`Access::LOCAL_WRITE`] to write, [`Access::NONE`] to read. If `len_bytes` is 0, the
    /// returned span is empty, and neither key nor address is checked. If `len_bytes` is above 0, returns `UnknownKey`
    /// outside the epoch of the engine.
    #[inline]
    pub(crate) fn open_local(
        &self,
        pd: PdId,
        lkey: LKey,
        addr: u64,
        len_bytes: u32,
        access: Access,
    ) -> Result<Span<'_>, MemoryError> {
        if len_bytes == 0 {
            return Ok(Span::EMPTY);
        }
        self.region(lkey.0).ok_or(MemoryError::UnknownKey)?.open(pd, addr, len_bytes, access)
    }

    /// Returns `len_bytes` bytes at `addr` of the region with key `rkey`, for a peer's request. The region must be of
    /// `pd` and grant `access`. If `len_bytes` is 0, neither key nor address is checked (IBA C9-88), and the span is
    /// empty.
    #[inline]
    pub(crate) fn open_remote(
        &self,
        pd: PdId,
        rkey: RKey,
        addr: u64,
        len_bytes: u32,
        access: Access,
    ) -> Result<Span<'_>, MemoryError> {
        self.open_local(pd, LKey(rkey.0), addr, len_bytes, access)
    }

    /// Invalidates both keys of the region with key `rkey` (IBA 10.6.5). The region must be of `pd`. Until the region
    /// is deregistered, no access to its bytes is permitted. Another engine of the device may still complete a copy
    /// that it has started. The invalidation of an invalid region has no effect.
    pub(crate) fn invalidate(&self, pd: PdId, rkey: RKey) -> Result<(), MemoryError> {
        let region = self.region(rkey.0).ok_or(MemoryError::UnknownKey)?;
        if region.pd() != pd {
            return Err(MemoryError::WrongPd);
        }
        region.invalidate();
        self.table.revocations.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Returns the number of regions of the device deregistered or invalidated. While it does not change, `open_local`
    /// and `open_remote` grant each access again that they have granted. A deregistration that has returned is counted.
    #[inline]
    pub(crate) fn revocations(&self) -> u64 {
        self.table.revocations.load(Ordering::Acquire)
    }

    /// Creates a memory table and a view of this table, and begins the epoch (`enter`).
    #[cfg(test)]
    pub(crate) fn alone(max_regions: usize) -> Self {
        let mut view = MemoryView::new(Arc::new(MemoryTable::new(max_regions)));
        view.enter();
        view
    }

    /// Calls `leave` (the end of the epoch), then `change` with the table, then `enter`. Otherwise a deregistration by
    /// `change` would wait forever for the end of the epoch.
    #[cfg(test)]
    pub(crate) fn with_table<R>(&mut self, change: impl FnOnce(&MemoryTable) -> R) -> R {
        self.leave();
        let result = change(&self.table);
        self.enter();
        result
    }
}

impl Drop for MemoryView {
    fn drop(&mut self) {
        self.leave();
        self.table.epochs.remove(&self.epoch);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::random::Random;
    use proptest::prelude::*;

    fn table() -> (MemoryView, Memory, LKey, RKey) {
        let mut view = MemoryView::alone(8);
        let memory = Memory::alloc(100);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mut random = Random::new([1; 32]);
        let register = |table: &MemoryTable| {
            table.register(|| random.bits(), PdId(1), memory.clone(), 0x1000, access).unwrap()
        };
        let keys = view.with_table(register);
        (view, memory, keys.0, keys.1)
    }

    #[test]
    fn a_key_opens_its_range_to_its_domain_for_its_rights() {
        let (view, _, lkey, rkey) = table();
        let open = |pd, addr, len, access| {
            view.open_remote(PdId(pd), rkey, addr, len, access).map(|s| s.len_bytes())
        };
        assert_eq!(open(1, 0x1000, 100, Access::REMOTE_WRITE), Ok(100));
        assert_eq!(open(1, 0x1001, 100, Access::REMOTE_WRITE), Err(MemoryError::OutOfBounds));
        assert_eq!(open(1, 0xFFF, 1, Access::REMOTE_WRITE), Err(MemoryError::OutOfBounds));
        assert_eq!(open(1, u64::MAX, 2, Access::REMOTE_WRITE), Err(MemoryError::OutOfBounds));
        assert_eq!(open(1, 0x1000, 1, Access::REMOTE_READ), Err(MemoryError::NoAccess));
        assert_eq!(open(2, 0x1000, 1, Access::REMOTE_WRITE), Err(MemoryError::WrongPd));
        assert_eq!(open(2, 5, 0, Access::REMOTE_READ), Ok(0), "no bytes, no check");
        let wrong = LKey(lkey.0 ^ 1);
        assert!(matches!(
            view.open_local(PdId(1), wrong, 0x1000, 1, Access::NONE),
            Err(MemoryError::UnknownKey)
        ));
    }

    #[test]
    fn an_invalidated_key_opens_nothing_and_can_be_deregistered() {
        let (mut view, _, lkey, rkey) = table();
        assert_eq!(view.invalidate(PdId(2), rkey), Err(MemoryError::WrongPd));
        assert_eq!(view.invalidate(PdId(1), RKey(rkey.0 ^ 1)), Err(MemoryError::UnknownKey));
        assert_eq!(view.revocations(), 0);
        let open = |access| view.open_local(PdId(1), lkey, 0x1000, 1, access).map(|span| span.len_bytes());
        assert_eq!(open(Access::NONE), Ok(1), "a failed invalidation has no effect");
        for _ in 0..2 {
            assert_eq!(view.invalidate(PdId(1), rkey), Ok(()));
            for access in [Access::NONE, Access::LOCAL_WRITE, Access::REMOTE_WRITE] {
                assert_eq!(open(access), Err(MemoryError::NoAccess));
            }
        }
        assert_eq!(view.revocations(), 2);
        assert_eq!(view.with_table(|table| table.deregister(lkey)), Some(PdId(1)));
        assert_eq!(view.revocations(), 3);
        assert_eq!(view.invalidate(PdId(1), rkey), Err(MemoryError::UnknownKey));
    }

    #[test]
    fn registration_refuses_what_the_standard_refuses() {
        let (mut view, memory, lkey, _) = table();
        let mut random = Random::new([2; 32]);
        let mut register = |addr, access| {
            view.with_table(|table| table.register(|| random.bits(), PdId(1), memory.clone(), addr, access))
        };
        assert_eq!(register(0, Access::REMOTE_WRITE), Err(RegisterError::NeedsLocalWrite));
        assert_eq!(register(0, Access(1 << 6)), Err(RegisterError::UnknownAccess(1 << 6)));
        assert!(matches!(register(u64::MAX - 10, Access::NONE), Err(RegisterError::Wraps { .. })));
        for _ in 0..7 {
            register(0, Access::REMOTE_READ).unwrap();
        }
        assert_eq!(register(0, Access::NONE), Err(RegisterError::TooMany(8)));
        let mut deregister = || view.with_table(|table| table.deregister(lkey));
        assert_eq!((deregister(), deregister()), (Some(PdId(1)), None));
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes many minutes under Miri, which runs the code in the other tests")]
    fn keys_are_kept_in_quarantine_and_the_table_stays_small() {
        let table = MemoryTable::new(3);
        let mut random = Random::new([3; 32]);
        let mut register = || {
            table
                .register(|| random.bits(), PdId(1), Memory::phantom(8), 0, Access::NONE)
                .expect("there is room")
                .0
        };
        let first = register();
        let churn = 3 * QUARANTINE_NUMBERS;
        let mut last_keys = VecDeque::new();
        for _ in 0..churn {
            let lkey = register();
            assert!(lkey != first && !last_keys.contains(&lkey) || last_keys.len() > 64);
            last_keys.push_front(lkey);
            last_keys.truncate(64);
            assert_eq!(table.deregister(lkey), Some(PdId(1)));
        }
        let control = table.control();
        assert_eq!((control.regions, control.quarantine.len()), (1, QUARANTINE_NUMBERS));
        let places = table.places(&control);
        assert!(places.0.len() <= 4 * PLACES_PER_KEY * QUARANTINE_NUMBERS, "{} places", places.0.len());
        assert!(control.quarantine.iter().all(|key| {
            places.find(*key).is_ok_and(|place| place.region.load(Ordering::Relaxed).is_null())
        }));
        drop(control);
        let mut view = MemoryView::new(Arc::new(table));
        view.enter();
        assert!(view.open_local(PdId(1), first, 0, 8, Access::NONE).is_ok());
        view.leave();
        assert!(view.open_local(PdId(1), first, 0, 8, Access::NONE).is_err(), "outside the epoch");
    }

    proptest! {
        /// Checks that `open_local` succeeds for the keys of registered regions (`live`), and fails for the keys of
        /// deregistered regions (`gone`) and for key 0.
        #[test]
        fn every_region_is_found_and_no_other(
            steps in prop::collection::vec(
                (any::<bool>(), any::<prop::sample::Index>()),
                0..if cfg!(miri) { 100 } else { 300 },
            ),
        ) {
            const REGIONS_MAX: usize = 40;
            let mut view = MemoryView::alone(REGIONS_MAX);
            let mut random = Random::new([4; 32]);
            let (mut live, mut gone): (Vec<LKey>, Vec<LKey>) = Default::default();
            for (is_register, which) in steps {
                if is_register || live.is_empty() {
                    let memory = Memory::phantom(8);
                    let draw = || random.bits();
                    let registered =
                        view.with_table(|table| table.register(draw, PdId(1), memory, 0, Access::NONE));
                    prop_assert_eq!(registered.is_ok(), live.len() < REGIONS_MAX);
                    live.extend(registered.map(|(lkey, _)| lkey));
                } else {
                    let lkey = live.swap_remove(which.index(live.len()));
                    prop_assert_eq!(view.with_table(|table| table.deregister(lkey)), Some(PdId(1)));
                    prop_assert_eq!(view.with_table(|table| table.deregister(lkey)), None);
                    gone.push(lkey);
                }
                let is_open = |lkey: &LKey| view.open_local(PdId(1), *lkey, 0, 8, Access::NONE).is_ok();
                prop_assert!(live.iter().all(is_open) && !gone.iter().any(is_open) && !is_open(&LKey(0)));
            }
        }
    }
}
