//! Tests of memory table and epochs with the model checker loom (`scripts/check.sh loom`), as in `queue/models.rs`.

use std::sync::Arc;

use super::{Access, Memory, MemoryTable, MemoryView, PdId};
use crate::id::LKey;
use crate::sync::UnsafeCell;
use loom::thread;

const PD: PdId = PdId(1);

fn register(table: &MemoryTable, key: u32) -> LKey {
    let memory = Memory::phantom(8);
    table.register(|| key, PD, memory, 0, Access::NONE).expect("there is room").0
}

fn is_open(view: &MemoryView, lkey: LKey) -> bool {
    view.open_local(PD, lkey, 0, 8, Access::NONE).is_ok()
}

/// `bytes` represents the memory of the region. After deregistration the application uses this memory again.
#[test]
fn a_deregistered_region_is_not_touched() {
    loom::model(|| {
        let table = Arc::new(MemoryTable::new(1));
        let lkey = register(&table, 1);
        let bytes = Arc::new(UnsafeCell::new(()));
        let mut view = MemoryView::new(table.clone());
        let engine = thread::spawn({
            let bytes = bytes.clone();
            move || {
                for _ in 0..2 {
                    view.enter();
                    if is_open(&view, lkey) {
                        bytes.with(|_| ());
                    }
                    view.leave();
                }
            }
        });
        assert_eq!(table.deregister(lkey), Some(PD));
        bytes.with_mut(|_| ());
        engine.join().unwrap();
    });
}

#[test]
fn a_region_is_found_while_the_table_is_replaced() {
    loom::model(|| {
        let table = Arc::new(MemoryTable::new(4));
        let first = register(&table, 1);
        let mut view = MemoryView::new(table.clone());
        let engine = thread::spawn(move || {
            view.enter();
            assert!(is_open(&view, first));
            view.leave();
            view
        });
        // A table is at most half full, so the third region replaces the table of 4 places by a larger table.
        let later = [2, 3, 4].map(|key| register(&table, key));
        let mut view = engine.join().unwrap();
        view.enter();
        assert!(later.iter().all(|lkey| is_open(&view, *lkey)));
    });
}

/// Keys 1 and 5 have the same low bits, so a search for key 5 starts at the place to which key 1 is inserted. If the
/// insertion has written the region but not yet the key, the search ends there, and must not return the region.
#[test]
fn a_key_does_not_open_the_region_that_is_registered_in_its_place() {
    loom::model(|| {
        let table = Arc::new(MemoryTable::new(1));
        let mut view = MemoryView::new(table.clone());
        let engine = thread::spawn(move || {
            view.enter();
            assert!(!is_open(&view, LKey(5)));
            assert!(!is_open(&view, LKey(0)));
            view.leave();
        });
        register(&table, 1);
        engine.join().unwrap();
    });
}
