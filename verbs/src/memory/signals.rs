//! Handler of SIGSEGV and SIGBUS. If a copy to or from registered memory causes a memory fault, the handler makes the
//! copy fail; without the handler, the signal would end the process.
//!
//! ```text
//!   fault -> on_fault -- of a copy routine of `roce`: the thread continues at the exit of the routine
//!                     '- of other code: the action that the signal had before, as if there were no on_fault
//! ```
//!
//! If the program installs a handler of its own later, this handler receives the faults first. The next registration of
//! memory then installs `on_fault` again, at a new level, so that `on_fault` receives the faults first. Each level has
//! an entry point of its own and an earlier action: the action that the signal had before the installation of the
//! level.
//!
//! The handler of the program may pass a fault on to the action that the signal had before this handler. This action
//! may be `on_fault` of a lower level. If the earlier action of the lower level were the handler of the program, this
//! handler would receive the fault twice. `skip_recorded` therefore removes this handler from all lower levels.
#![allow(unsafe_code)]

use std::io;
use std::mem::{transmute, zeroed};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use libc::{c_int, c_void, sigaction, siginfo_t};
use roce::mem::CAN_RECOVER;

use super::UnusableMemory;

type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

/// Code of a SIGBUS that reports damaged memory before an instruction accesses this memory (`sigaction(2)`).
const BUS_MCEERR_AO: c_int = 5;

/// Number of times that `on_fault` can be installed for a signal.
const LEVELS: usize = 4;

/// At index n: the handler that installation number n of `on_fault`, from 0, gives to a signal.
static ENTRIES: [Handler; LEVELS] = [on_fault::<0>, on_fault::<1>, on_fault::<2>, on_fault::<3>];

/// A signal that a memory fault raises.
struct Signal {
    number: c_int,
    /// At index n: the action to which the handler `ENTRIES[n]` passes a signal that no copy routine of `roce` caused.
    /// Null: the default action. The actions are never freed, because a handler may read them at any time.
    earlier: [AtomicPtr<sigaction>; LEVELS],
}

impl Signal {
    const fn new(number: c_int) -> Self {
        Signal { number, earlier: [const { AtomicPtr::new(null_mut()) }; LEVELS] }
    }
}

static SIGNALS: [Signal; 2] = [Signal::new(libc::SIGSEGV), Signal::new(libc::SIGBUS)];

/// Makes `on_fault` the handler of SIGSEGV and SIGBUS, unless `on_fault` is the handler already. If `on_fault` was
/// installed `LEVELS` times for a signal already, logs a warning instead.
pub(super) fn install() -> Result<(), UnusableMemory> {
    static LEVELS_IN_USE: Mutex<[usize; 2]> = Mutex::new([0; 2]);
    if !CAN_RECOVER {
        return Ok(());
    }
    let mut levels = LEVELS_IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
    for (signal, level) in SIGNALS.iter().zip(levels.iter_mut()) {
        let failed = |error| UnusableMemory::System { what: "handle the signals of memory faults", error };
        install_signal(signal, level).map_err(failed)?;
    }
    Ok(())
}

/// Unblocks SIGSEGV and SIGBUS in the calling thread, because the kernel ends a process that faults while the signal is
/// blocked.
pub(super) fn unblock() {
    // SAFETY: 0 is valid for all fields, and the pointers are valid or null. The functions cannot fail: the signals
    // exist.
    unsafe {
        let mut signals: libc::sigset_t = zeroed();
        libc::sigemptyset(&mut signals);
        for signal in &SIGNALS {
            libc::sigaddset(&mut signals, signal.number);
        }
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &signals, null_mut());
    }
}

/// If the present handler of `signal` is not in `ENTRIES` (`on_fault` of each level), installs `ENTRIES[level]` as the
/// handler of `signal`, and increments `level`. If `level` is already `LEVELS`, the length of `ENTRIES`, logs a warning
/// instead.
fn install_signal(signal: &Signal, level: &mut usize) -> io::Result<()> {
    let current = action(signal.number, None)?;
    if ENTRIES.iter().any(|entry| *entry as usize == current.sa_sigaction) {
        return Ok(());
    }
    let (Some(entry), Some(earlier)) = (ENTRIES.get(*level), signal.earlier.get(*level)) else {
        tracing::warn!(
            signal = signal.number,
            "the program has replaced the handler of memory faults {LEVELS} times: registered memory that is unmapped now ends the process"
        );
        return Ok(());
    };
    // `on_fault` may run before the call of `action` that installs `on_fault` has returned, so the earlier action
    // (`current`) is stored first.
    earlier.store(Box::into_raw(Box::new(current)), Ordering::Release);
    // Signal mask, SA_RESTART and SA_NODEFER are those of the earlier action, because `on_fault` may call the handler
    // of the earlier action.
    let flags = current.sa_flags & (libc::SA_RESTART | libc::SA_NODEFER);
    let own = sigaction {
        sa_sigaction: *entry as usize,
        sa_flags: libc::SA_SIGINFO | libc::SA_ONSTACK | flags,
        ..current
    };
    let replaced = action(signal.number, Some(&own))?;
    *level += 1;
    if replaced.sa_sigaction != current.sa_sigaction {
        // Between the first call of `action` (read) and the second (replace), another thread has changed the action.
        earlier.store(Box::into_raw(Box::new(replaced)), Ordering::Release);
    }
    skip_recorded(signal, *level - 1, replaced.sa_sigaction);
    Ok(())
}

/// In `Signal::earlier`, below index `level`: each action whose handler is `handler` becomes equal to the action at the
/// next lower index or, at index 0, to the default action. A fault then reaches `handler` only once.
fn skip_recorded(signal: &Signal, level: usize, handler: usize) {
    let mut below = null_mut();
    for slot in signal.earlier.iter().take(level) {
        let earlier = slot.load(Ordering::Acquire);
        // SAFETY: the pointers are from Box::into_raw, and never freed.
        if unsafe { earlier.as_ref() }.is_some_and(|action| action.sa_sigaction == handler) {
            slot.store(below, Ordering::Release);
        }
        below = slot.load(Ordering::Acquire);
    }
}

/// Returns the action that signal `number` has at the call. If `new` is an action, makes `new` the signal's action.
fn action(number: c_int, new: Option<&sigaction>) -> io::Result<sigaction> {
    // SAFETY: 0 is valid for all fields.
    let mut old: sigaction = unsafe { zeroed() };
    // SAFETY: both pointers are valid or null. A new action is `on_fault` or the default action.
    let result = unsafe { sigaction(number, new.map_or(null(), |new| new), &mut old) };
    if result == 0 { Ok(old) } else { Err(io::Error::last_os_error()) }
}

/// The handler that installation number `LEVEL`, from 0, gives to a signal. Async-signal-safe: the function compares
/// and loads numbers, and calls only `sigaction`, `raise` and the handler in `Signal::earlier` at index `LEVEL`.
extern "C" fn on_fault<const LEVEL: usize>(number: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel, or a handler that was installed later, passes a valid `info`.
    let (code, addr) = unsafe { ((*info).si_code, (*info).si_addr()) };
    // `si_code` above 0: a fault; otherwise a signal that a process sent. Exception: BUS_MCEERR_AO
    // reports damaged memory that no instruction has accessed yet, so no instruction would fault again after the
    // return of this handler.
    let is_fault = code > 0 && (number, code) != (libc::SIGBUS, BUS_MCEERR_AO);
    // SAFETY: `context` is the context of the interrupted thread, since the action has SA_SIGINFO.
    if is_fault && unsafe { recover(addr as usize, context) } {
        return;
    }
    let earlier = SIGNALS.iter().find(|signal| signal.number == number).map(|signal| &signal.earlier);
    let earlier =
        earlier.and_then(|levels| levels.get(LEVEL)).map_or(null_mut(), |at| at.load(Ordering::Acquire));
    // SAFETY: the pointer is from Box::into_raw, and never freed.
    pass_on(unsafe { earlier.as_ref() }, is_fault, (number, info, context));
}

/// Does what the kernel would do for a signal with the action `earlier`; `None`: the default action.
fn pass_on(
    earlier: Option<&sigaction>,
    is_fault: bool,
    (number, info, context): (c_int, *mut siginfo_t, *mut c_void),
) {
    let restore_default = || {
        // SAFETY: 0 is valid for all fields; the handler SIG_DFL is 0.
        let default: sigaction = unsafe { zeroed() };
        // Cannot fail: the signal exists, and its action can be changed.
        let _ = action(number, Some(&default));
    };
    match earlier.map_or(libc::SIG_DFL, |earlier| earlier.sa_sigaction) {
        libc::SIG_IGN if !is_fault => {}
        // The kernel does not let a thread ignore a fault, because the thread would fault again and again. After
        // the handler `on_fault` has returned, the instruction faults again, and the default action ends the process.
        libc::SIG_IGN => restore_default(),
        libc::SIG_DFL => {
            restore_default();
            if !is_fault {
                // SAFETY: no memory is passed. The signal is delivered when this handler has returned.
                unsafe { libc::raise(number) };
            }
        }
        handler => {
            let flags = earlier.map_or(0, |earlier| earlier.sa_flags);
            if flags & libc::SA_RESETHAND != 0 {
                restore_default();
            }
            if flags & libc::SA_SIGINFO != 0 {
                // SAFETY: the program installed a handler of this type.
                let handler: Handler = unsafe { transmute(handler) };
                handler(number, info, context);
            } else {
                // SAFETY: the program installed a handler of this type.
                let handler: extern "C" fn(c_int) = unsafe { transmute(handler) };
                handler(number);
            }
        }
    }
}

/// If a copy routine of `roce` caused the fault at `addr`, makes the interrupted thread continue at the exit of the
/// routine.
///
/// # Safety
/// `context` is the `ucontext_t` that the kernel passed to the handler.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
unsafe fn recover(addr: usize, context: *mut c_void) -> bool {
    // SAFETY: `context` is a valid `ucontext_t`, as the contract of this function requires.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let register = |index: c_int| registers[index as usize] as usize;
    let site = roce::mem::FaultSite {
        addr,
        instruction: register(libc::REG_RIP),
        to: register(libc::REG_RDI),
        from: register(libc::REG_RSI),
        count: register(libc::REG_RDX),
    };
    let Some(exit) = site.recovery() else { return false };
    registers[libc::REG_RIP as usize] = exit as i64;
    true
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
unsafe fn recover(_addr: usize, _context: *mut c_void) -> bool {
    false
}
