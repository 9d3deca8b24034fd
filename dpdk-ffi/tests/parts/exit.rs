//! Actions at the exit of a process.

use dpdk_ffi::ExitAction;

/// The test finds the line of the last action, which is printed only at the exit.
pub(super) fn exit_actions() {
    drop(ExitAction::new(|| {
        println!("an action ran whose value was dropped");
        std::process::abort();
    }));
    std::mem::forget(ExitAction::new(|| panic!("a fault of an action")));
    std::mem::forget(ExitAction::new(|| println!("1 passed")));
    std::process::exit(0);
}
