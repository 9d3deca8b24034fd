//! Copies to and from memory of which a page is lost.

use roce::mem::AccessError;
use verbs::Memory;

use crate::pages::{LOSSES, Loss, PAGE_BYTES, Pages};
use crate::pd;

/// Lengths of copies, in bytes: on both sides of each length at which the copy uses other instructions.
const LENS: [usize; 31] = [
    1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 34, 64, 65, 66, 128, 129, 130, 256, 257, 258, 319, 320,
    321, 1000, 2048, 4096, 5000,
];

const STALE: u8 = 0xBA;

fn write(memory: &Memory, offset: usize, len: usize) -> Result<(), AccessError> {
    memory.write(offset, &vec![0x11; len])
}

/// Reads `len` bytes at `offset`, and checks that the bytes around the destination are unchanged.
fn read(memory: &Memory, offset: usize, len: usize) -> Result<(), AccessError> {
    let mut room = vec![STALE; len + 128];
    let result = memory.read(offset, &mut room[64..][..len]);
    assert!(room[..64].iter().chain(&room[64 + len..]).all(|byte| *byte == STALE), "{len} bytes");
    result
}

/// Memory of four pages, of which page 2 is lost, and after a truncation page 3, too. Copies that end before the lost
/// page succeed; copies whose first, middle or last byte is in the lost page fail.
#[test]
fn a_copy_fails_exactly_if_one_of_its_bytes_is_lost() {
    let pd = pd();
    for loss in LOSSES {
        let pages = Pages::new(4);
        let _region = pages.register(&pd);
        pages.lose(2, loss);
        let (memory, start) = (&pages.memory(0, 4 * PAGE_BYTES), 2 * PAGE_BYTES);
        let fault = |result| matches!(result, Err(AccessError::Fault(_)));
        for len in LENS {
            let case = format!("{loss:?}, {len} bytes");
            assert_eq!(
                (write(memory, start - len, len), read(memory, start - len, len)),
                (Ok(()), Ok(())),
                "{case}"
            );
            // The lost page begins at the first, a middle, and the last byte of the copy.
            for before in [0, 1, len / 2, len - 1] {
                let offset = start - before.min(len - 1);
                assert!(fault(write(memory, offset, len)), "{case}, {before} bytes before the lost page");
                let reads = read(memory, offset, len);
                assert_eq!(
                    fault(reads),
                    loss != Loss::ReadOnly,
                    "{case}, {before} bytes before the lost page"
                );
            }
            // The lost page ends at the first, a middle, and the last byte of the copy.
            if loss != Loss::Truncated {
                for after in [1, len / 2, len - 1].map(|after: usize| after.clamp(1, PAGE_BYTES)) {
                    let offset = start + PAGE_BYTES + after - len;
                    let is_lost = after < len;
                    assert_eq!(fault(write(memory, offset, len)), is_lost, "{case}, {after} bytes behind");
                    assert_eq!(fault(read(memory, offset, len)), is_lost && loss != Loss::ReadOnly, "{case}");
                }
                assert_eq!(write(memory, start + PAGE_BYTES, len.min(PAGE_BYTES)), Ok(()), "{case}");
            }
        }
    }
}

/// A program may poll the last byte of a message to learn that the message is complete. Therefore a copy that fails
/// must not write its last byte.
#[test]
fn a_failed_write_leaves_its_last_byte() {
    let pages = Pages::new(3);
    let region = pages.register(&pd());
    region.write(2 * PAGE_BYTES, &[STALE; PAGE_BYTES]).unwrap();
    pages.lose(1, Loss::Unmapped);
    for len in [PAGE_BYTES + 2, PAGE_BYTES + 100, 2 * PAGE_BYTES] {
        assert!(region.write(PAGE_BYTES - 1, &vec![0x11; len]).is_err());
        let mut last = [0];
        region.read(PAGE_BYTES - 1 + len - 1, &mut last).unwrap();
        assert_eq!(last, [STALE], "{len} bytes");
    }
}
