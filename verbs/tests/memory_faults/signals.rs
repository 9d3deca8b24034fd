//! Signals that a process sends, and faults of code other than the copies of an engine. Both must reach the action that
//! the program has set. Each test starts itself again in a child process, and the fault occurs in the child process.
#![allow(unsafe_code)]

use std::env;
use std::mem::zeroed;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use libc::{SIGBUS, SIGSEGV, c_int, c_void, sigaction, siginfo_t};
use verbs::QpState;

use crate::connections::{rc, write_to};
use crate::pages::{Loss, PAGE_BYTES, Pages};
use crate::pd;

const CHILD: &str = "MEMORY_FAULTS_CHILD";
/// Exit code of a child process in which the handler of the program has received the fault.
const SEEN: c_int = 42;

/// Runs the test `name` in a child process, in which `role` is called.
fn in_child(name: &str, role: impl FnOnce()) -> Option<Output> {
    if env::var_os(CHILD).is_none() {
        let mut child = Command::new(env::current_exe().unwrap());
        child.args(["--exact", &format!("signals::{name}"), "--nocapture"]).env(CHILD, "1");
        return Some(child.output().unwrap());
    }
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is valid. A fault leaves no core file.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
    role();
    // The fault did not end the process.
    std::process::exit(0)
}

fn signal_of(output: Option<Output>) -> Option<c_int> {
    let output = output?;
    assert!(
        output.status.signal().is_some(),
        "{:?}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    output.status.signal()
}

fn code_of(output: Option<Output>) -> Option<c_int> {
    let output = output?;
    assert!(
        output.status.code().is_some(),
        "{:?}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    output.status.code()
}

/// Registers two pages, loses the second page, and checks that a copy from the lost page fails.
fn lose_a_page(loss: Loss) -> Pages {
    let pages = Pages::new(2);
    let region = pages.register(&pd());
    pages.lose(1, loss);
    assert!(region.read(PAGE_BYTES - 1, &mut [0; 2]).is_err());
    pages
}

/// Sets the action of `number`, and returns the action before.
fn set_action(number: c_int, handler: usize, flags: c_int) -> sigaction {
    // SAFETY: 0 is valid for all fields.
    let (mut new, mut old): (sigaction, sigaction) = unsafe { (zeroed(), zeroed()) };
    (new.sa_sigaction, new.sa_flags) = (handler, flags);
    // SAFETY: the pointers are valid, and the handler has the type that the flags say.
    assert_eq!(unsafe { sigaction(number, &new, &mut old) }, 0);
    old
}

extern "C" fn exit_seen(_number: c_int) {
    // SAFETY: ends the process.
    unsafe { libc::_exit(SEEN) }
}

/// Exits with `SEEN` if the arguments are those of a fault.
extern "C" fn exit_seen_with_info(number: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid `info`.
    let is_fault = number == SIGSEGV && unsafe { (*info).si_code } > 0 && !context.is_null();
    // SAFETY: ends the process.
    unsafe { libc::_exit(if is_fault { SEEN } else { 1 }) }
}

#[test]
fn a_fault_of_the_program_ends_it() {
    let output = in_child("a_fault_of_the_program_ends_it", || {
        lose_a_page(Loss::Unmapped).touch(PAGE_BYTES);
    });
    assert_eq!(signal_of(output), Some(SIGSEGV));
}

#[test]
fn a_bus_error_of_the_program_ends_it() {
    let output = in_child("a_bus_error_of_the_program_ends_it", || {
        lose_a_page(Loss::Truncated).touch(PAGE_BYTES);
    });
    assert_eq!(signal_of(output), Some(SIGBUS));
}

/// Only one end of a copy is registered memory. The other end is memory of the program: here the destination.
#[test]
fn a_fault_at_the_other_end_of_a_copy_ends_the_program() {
    let output = in_child("a_fault_at_the_other_end_of_a_copy_ends_the_program", || {
        let (from, mut to) = (Pages::new(1), lose_a_page(Loss::Unmapped));
        let region = from.register(&pd());
        let _ = region.read(0, to.slice(PAGE_BYTES - 1, 2));
    });
    assert_eq!(signal_of(output), Some(SIGSEGV));
}

#[test]
fn a_stack_overflow_is_reported_as_ever() {
    #[expect(unconditional_recursion, reason = "the stack is to overflow")]
    fn descend(depth: &mut [u8; 1024]) {
        let mut below = *std::hint::black_box(depth);
        descend(&mut below);
        std::hint::black_box(below);
    }
    let output = in_child("a_stack_overflow_is_reported_as_ever", || {
        lose_a_page(Loss::Unmapped);
        descend(&mut [0; 1024]);
    });
    let Some(output) = output else { return };
    assert_eq!(output.status.signal(), Some(libc::SIGABRT));
    assert!(String::from_utf8_lossy(&output.stderr).contains("has overflowed its stack"));
}

#[test]
fn a_handler_that_was_there_before_is_called() {
    let output = in_child("a_handler_that_was_there_before_is_called", || {
        set_action(SIGSEGV, exit_seen as *const () as usize, 0);
        lose_a_page(Loss::Unmapped).touch(PAGE_BYTES);
    });
    assert_eq!(code_of(output), Some(SEEN));
}

#[test]
fn a_handler_with_info_that_was_there_before_is_called() {
    let output = in_child("a_handler_with_info_that_was_there_before_is_called", || {
        set_action(SIGSEGV, exit_seen_with_info as *const () as usize, libc::SA_SIGINFO);
        lose_a_page(Loss::Unmapped).touch(PAGE_BYTES);
    });
    assert_eq!(code_of(output), Some(SEEN));
}

#[test]
fn a_signal_that_was_ignored_or_not_handled_still_is() {
    // SAFETY: raises a signal in this thread.
    let raise = || assert_eq!(unsafe { libc::raise(SIGSEGV) }, 0);
    let output = in_child("a_signal_that_was_ignored_or_not_handled_still_is", || {
        set_action(SIGSEGV, libc::SIG_IGN, 0);
        lose_a_page(Loss::Unmapped);
        raise();
        set_action(SIGSEGV, libc::SIG_DFL, 0);
        lose_a_page(Loss::Unmapped);
        raise();
        unreachable!("the signal ends the process");
    });
    assert_eq!(signal_of(output), Some(SIGSEGV));
}

/// The kernel reports a memory error that no access has met yet (`PR_MCE_KILL_EARLY`). No instruction faults after the
/// return of the handler, so the handler itself must raise the signal that ends the program.
#[test]
fn a_memory_error_that_no_access_has_met_ends_the_program() {
    const BUS_MCEERR_AO: c_int = 5;
    let output = in_child("a_memory_error_that_no_access_has_met_ends_the_program", || {
        set_action(SIGBUS, libc::SIG_DFL, 0);
        lose_a_page(Loss::Unmapped);
        // SAFETY: 0 is valid for all fields.
        let mut info: siginfo_t = unsafe { zeroed() };
        (info.si_signo, info.si_code) = (SIGBUS, BUS_MCEERR_AO);
        // SAFETY: sends this thread a signal; the pointer is valid.
        let sent = unsafe {
            libc::syscall(libc::SYS_rt_tgsigqueueinfo, libc::getpid(), libc::gettid(), SIGBUS, &info)
        };
        assert_eq!(sent, 0);
    });
    assert_eq!(signal_of(output), Some(SIGBUS));
}

fn set_blocked(how: c_int) {
    // SAFETY: the set is initialised before it is used.
    unsafe {
        let mut signals = zeroed();
        libc::sigemptyset(&mut signals);
        for number in [SIGSEGV, SIGBUS] {
            libc::sigaddset(&mut signals, number);
        }
        assert_eq!(libc::pthread_sigmask(how, &signals, null_mut()), 0);
    }
}

/// The background thread starts with the signal mask of the thread that opens the device. The kernel ends a process
/// that faults while the signal is blocked.
#[test]
fn a_device_may_be_opened_while_the_signals_are_blocked() {
    let output = in_child("a_device_may_be_opened_while_the_signals_are_blocked", || {
        set_blocked(libc::SIG_BLOCK);
        let (_context, near, far) = rc();
        set_blocked(libc::SIG_UNBLOCK);
        far.pages.lose(1, Loss::Unmapped);
        near.post_send(1, write_to(&far.region), &near.intact);
        // This thread does not poll, so only the background thread receives.
        while far.state() != QpState::Err {
            thread::sleep(Duration::from_millis(1));
        }
    });
    assert_eq!(code_of(output), Some(0));
}

#[test]
fn a_fault_ends_a_program_that_ignored_the_signal() {
    let output = in_child("a_fault_ends_a_program_that_ignored_the_signal", || {
        set_action(SIGSEGV, libc::SIG_IGN, 0);
        lose_a_page(Loss::Unmapped).touch(PAGE_BYTES);
    });
    assert_eq!(signal_of(output), Some(SIGSEGV));
}

static CALLS: AtomicUsize = AtomicUsize::new(0);
static BEFORE: AtomicPtr<sigaction> = AtomicPtr::new(null_mut());

/// A handler of a library: counts its calls, and passes the fault on to the handler before it.
extern "C" fn count_and_pass_on(number: c_int, info: *mut siginfo_t, context: *mut c_void) {
    if CALLS.fetch_add(1, Ordering::Relaxed) > 1 {
        // SAFETY: ends the process, because the handlers pass the fault to each other without end.
        unsafe { libc::_exit(3) }
    }
    // SAFETY: `set_counting` stored the action, whose handler has this type.
    unsafe {
        let before = (*BEFORE.load(Ordering::Acquire)).sa_sigaction;
        let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = std::mem::transmute(before);
        handler(number, info, context);
    }
}

fn set_counting() {
    let before =
        set_action(SIGSEGV, count_and_pass_on as *const () as usize, libc::SA_SIGINFO | libc::SA_ONSTACK);
    BEFORE.store(Box::into_raw(Box::new(before)), Ordering::Release);
}

fn handler_now() -> usize {
    // SAFETY: 0 is valid for all fields, and the pointers are valid or null.
    unsafe {
        let mut now: sigaction = zeroed();
        assert_eq!(sigaction(SIGSEGV, null(), &mut now), 0);
        now.sa_sigaction
    }
}

/// Each registration of memory makes `on_fault` of verbs/src/memory/signals.rs the first handler again. The program
/// installs `exit_seen_with_info` before the first registration, and `count_and_pass_on` before two later
/// registrations. A fault of the program must reach `count_and_pass_on` once, and then `exit_seen_with_info`.
#[test]
fn a_handler_that_the_program_installs_later_is_kept_and_called_once() {
    let output = in_child("a_handler_that_the_program_installs_later_is_kept_and_called_once", || {
        set_action(SIGSEGV, exit_seen_with_info as *const () as usize, libc::SA_SIGINFO);
        lose_a_page(Loss::Unmapped);
        for _ in 0..2 {
            set_counting();
            let theirs = handler_now();
            lose_a_page(Loss::NoAccess);
            let ours = handler_now();
            lose_a_page(Loss::NoAccess);
            assert!(ours != theirs && handler_now() == ours, "installed once");
            assert_eq!(CALLS.load(Ordering::Relaxed), 0, "a fault of a copy");
        }
        lose_a_page(Loss::Unmapped).touch(PAGE_BYTES);
    });
    assert_eq!(code_of(output), Some(SEEN));
}
