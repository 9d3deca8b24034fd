//! Tests of the memory table with an engine and an application on different threads, in many rounds, with and without
//! ThreadSanitizer. The tests in `models.rs` check short interleavings with loom.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;

use super::{Access, Memory, MemoryTable, MemoryView, PdId};
use crate::id::LKey;

const ROUNDS: u64 = if cfg!(miri) { 50 } else { 20_000 };
const PD: PdId = PdId(1);

/// Sets its flag when dropped, so that the thread `engine` of the test also ends after a failed assertion.
struct EndOnDrop(Arc<AtomicBool>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One thread, the engine, copies to the region whose key is in `key`. The other thread, the application, registers a
/// region, stores its key in `key`, and deregisters the region, in each round. After the deregistration only the
/// application accesses the bytes.
#[test]
fn two_threads_copy_and_deregister() {
    let table = Arc::new(MemoryTable::new(2));
    let key = Arc::new(AtomicU32::new(0));
    let copies = Arc::new(AtomicU64::new(0));
    let ended = Arc::new(AtomicBool::new(false));
    let end_on_drop = EndOnDrop(ended.clone());
    let mut view = MemoryView::new(table.clone());
    let engine = thread::spawn({
        let (key, copies) = (key.clone(), copies.clone());
        move || {
            while !ended.load(Ordering::Relaxed) {
                view.enter();
                let lkey = LKey(key.load(Ordering::Relaxed));
                if let Ok(span) = view.open_local(PD, lkey, 0, 8, Access::LOCAL_WRITE) {
                    span.copy_from(&[0xFF; 8]).expect("memory of this test");
                    copies.fetch_add(1, Ordering::Relaxed);
                }
                view.leave();
            }
            view
        }
    });
    for (round, key_number) in (0..ROUNDS).zip(1..) {
        let memory = Memory::alloc(8);
        let registered = table.register(|| key_number, PD, memory.clone(), 0, Access::LOCAL_WRITE);
        let (lkey, _) = registered.expect("there is room");
        let before = copies.load(Ordering::Relaxed);
        key.store(lkey.0, Ordering::Relaxed);
        // In every eighth round this thread waits for a copy, so that the engine copies at all. In the other rounds the
        // engine may look up the key or copy during the deregistration.
        while round % 8 == 0 && copies.load(Ordering::Relaxed) == before {
            thread::yield_now();
        }
        assert_eq!(table.deregister(lkey), Some(PD));
        let mut seen = [0; 8];
        memory.write(0, &round.to_be_bytes()).expect("8 bytes");
        thread::yield_now();
        memory.read(0, &mut seen).expect("8 bytes");
        assert_eq!(seen, round.to_be_bytes());
    }
    end_on_drop.0.store(true, Ordering::Relaxed);
    // The engine's `MemoryView` is dropped on this thread, because ThreadSanitizer does not see the memory fence that
    // orders the drop of an `Arc`.
    drop(engine.join().unwrap());
    assert!(copies.load(Ordering::Relaxed) >= ROUNDS / 8);
}
