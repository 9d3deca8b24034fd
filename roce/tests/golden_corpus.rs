//! Replays the fuzz corpus of `parse`: frames of the captures, and inputs that the fuzzer added.

use roce::wire::Transport;
use std::collections::BTreeSet;
use std::path::PathBuf;

#[path = "../../fuzz/oracle/parse.rs"]
mod oracle;

#[test]
fn the_parse_corpus_holds() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/parse");
    let mut opcodes = BTreeSet::new();
    let mut refused = 0;
    for entry in std::fs::read_dir(&dir).unwrap() {
        let frame = std::fs::read(entry.unwrap().path()).unwrap();
        match oracle::check(&frame) {
            Some(opcode) => drop(opcodes.insert(opcode.value())),
            None => refused += 1,
        }
    }
    let rc = opcodes.iter().filter(|opcode| {
        let info = roce::wire::Opcode::new(**opcode).info().unwrap();
        info.transport == Transport::Rc
    });
    assert!(rc.count() >= 20, "the corpus has every RC opcode of the captures, not only {opcodes:02x?}");
    assert!(refused >= 10, "the corpus has frames that are refused, not only {refused}");
}
