//! Copies that survive a memory fault: if the registered memory is not mapped, not accessible, or beyond the end of
//! its file, the copy ends, and reports the fault.
//!
//! ```text
//!   copy -> SIGSEGV, SIGBUS -> handler of the program (crate `verbs`) -> FaultSite::recovery
//!     ^                                                                      |
//!     '-- copy returns a MemoryFault <-- instruction pointer = exit <--------'
//! ```
//!
//! The routines are assembly, because only then are the addresses of their instructions, and the registers with source
//! and destination, known. The routines use no stack, so a jump to their exit leaves nothing behind. Without a handler,
//! and in builds where [`CAN_RECOVER`] is false, a memory fault ends the process.
#![allow(unsafe_code)]

/// True if the copy routines compiled into this build can report a memory fault: on x86-64 Linux, except under Miri,
/// loom and the sanitizers: these tools observe the accesses of Rust code only.
pub const CAN_RECOVER: bool = cfg!(all(
    target_arch = "x86_64",
    target_os = "linux",
    target_pointer_width = "64",
    not(miri),
    not(loom),
    not(sanitizer)
));

/// Error: registered memory could not be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "registered memory is not mapped, not accessible, or beyond the end of its file: keep memory mapped until it is deregistered"
)]
pub struct MemoryFault;

/// The first call detects which vector registers the processor has (AVX, AVX-512), and thereby selects the instructions
/// of all later copies.
pub(super) fn detect() {
    routines::detect();
}

/// Copies `count` bytes of registered memory at `from` to `to`.
///
/// # Safety
/// The contract of [`std::ptr::copy_nonoverlapping`], except that the bytes at `from` may be inaccessible if
/// [`CAN_RECOVER`] is true and the program has a handler that uses [`FaultSite`].
#[inline]
pub(super) unsafe fn load(from: *const u8, to: *mut u8, count: usize) -> Result<(), MemoryFault> {
    // SAFETY: the caller's contract.
    let faulted = unsafe { routines::load(to, from, count) };
    if faulted == 0 { Ok(()) } else { Err(MemoryFault) }
}

/// Copies `last + 1` bytes at `from` to registered memory at `to`. The last byte is stored after all others.
///
/// # Safety
/// As [`load`], with `to` as the registered memory.
#[inline]
pub(super) unsafe fn store(from: *const u8, to: *mut u8, last: usize) -> Result<(), MemoryFault> {
    // SAFETY: the caller's contract.
    let faulted = unsafe { routines::store(to, from, last) };
    if faulted == 0 { Ok(()) } else { Err(MemoryFault) }
}

/// If [`CAN_RECOVER`] is true, calls `check` twice: first while the copy routines, in all threads, use no vectors of 64
/// bytes, then while the copy routines use vectors of at most 16 bytes. Otherwise calls `check` once.
#[cfg(test)]
pub(super) fn without_vectors(check: fn()) {
    routines::without_vectors(check);
}

/// The state of a thread at a fault, by which [`FaultSite::recovery`] decides whether a copy routine caused the fault.
#[derive(Clone, Copy, Debug)]
pub struct FaultSite {
    /// Address whose access failed (`si_addr`).
    pub addr: usize,
    /// Instruction pointer (x86-64: `rip`).
    pub instruction: usize,
    /// Destination, if a copy routine caused the fault (x86-64: `rdi`).
    pub to: usize,
    /// Source, if a copy routine caused the fault (x86-64: `rsi`).
    pub from: usize,
    /// If a copy routine caused the fault: number of bytes that the routine copies from registered memory, or one less
    /// than the number of bytes that the routine copies to registered memory (x86-64: `rdx`).
    pub count: usize,
}

impl FaultSite {
    /// Returns the instruction pointer at which the thread must continue, so that its copy returns a [`MemoryFault`].
    /// `None` if no copy routine caused the fault, or if `addr` is not in the registered memory of the copy; the
    /// program must handle such a fault. The function only compares numbers, so a signal handler can call the function.
    pub fn recovery(&self) -> Option<usize> {
        let routines = routines::all();
        let (code, stores) = routines.iter().find(|(code, _)| code.contains(&self.instruction))?;
        let (base, len_bytes) =
            if *stores { (self.to, self.count.wrapping_add(1)) } else { (self.from, self.count) };
        (self.addr.wrapping_sub(base) < len_bytes).then_some(code.end)
    }
}

#[cfg(all(
    target_arch = "x86_64",
    target_os = "linux",
    target_pointer_width = "64",
    not(miri),
    not(loom),
    not(sanitizer)
))]
mod routines {
    use std::arch::{global_asm, is_x86_feature_detected};
    use std::ops::Range;
    use std::sync::Once;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Smallest `rdx` (number of bytes, less 1 in `roce_store`) for which the routines use 64-byte registers. The loop
    /// starts at an aligned address, at most 63 bytes after the first byte of the destination, and its first round
    /// stores 256 bytes: together fewer than 320 bytes.
    const AVX512_BYTES_MIN: usize = 320;

    static HAS_AVX: AtomicBool = AtomicBool::new(false);
    static HAS_AVX512: AtomicBool = AtomicBool::new(false);

    // Arguments: rdi = destination, rsi = source, rdx = number of bytes (`roce_load`) or number of bytes minus 1
    // (`roce_store`, which copies the last byte after all others). No routine changes these registers, because
    // `FaultSite::recovery` reads them.
    //
    // Copies of 16 to 256 bytes (without AVX: 128 bytes) use some vectors from the first byte on, and as many
    // vectors up to the last byte; the two groups may overlap. Longer copies store to aligned addresses, four
    // vectors at a time, and then store the last four vectors. With vectors of 64 bytes, a copy of 4 KiB takes as long
    // as two calls of the C library with 2 KiB each, and less time than one call with 4 KiB.
    global_asm!(
        ".macro roce_finish is_store",
        ".if \\is_store",
        "movzx eax, byte ptr [rsi + rdx]",
        "mov byte ptr [rdi + rdx], al",
        ".endif",
        "xor eax, eax",
        "ret",
        ".endm",
        //
        ".macro roce_begin name",
        ".globl \\name",
        ".hidden \\name",
        ".type \\name, @function",
        ".p2align 6",
        "\\name:",
        ".cfi_startproc",
        ".endm",
        //
        ".macro roce_end name",
        ".globl \\name\\()_exit",
        ".hidden \\name\\()_exit",
        "\\name\\()_exit:",
        "mov eax, 1",
        "ret",
        ".cfi_endproc",
        ".size \\name, . - \\name",
        ".endm",
        //
        ".macro roce_copy_vectors move, v, bytes, is_store",
        "\\move \\v\\()0, [rsi]",
        "mov rax, rdi",
        "neg rax",
        "and eax, \\bytes - 1",
        "lea rcx, [rdx - 4 * \\bytes]",
        "\\move [rdi], \\v\\()0",
        "2:",
        "\\move \\v\\()0, [rsi + rax]",
        "\\move \\v\\()1, [rsi + rax + \\bytes]",
        "\\move \\v\\()2, [rsi + rax + 2 * \\bytes]",
        "\\move \\v\\()3, [rsi + rax + 3 * \\bytes]",
        "\\move [rdi + rax], \\v\\()0",
        "\\move [rdi + rax + \\bytes], \\v\\()1",
        "\\move [rdi + rax + 2 * \\bytes], \\v\\()2",
        "\\move [rdi + rax + 3 * \\bytes], \\v\\()3",
        "add rax, 4 * \\bytes",
        "cmp rax, rcx",
        "jb 2b",
        "\\move \\v\\()0, [rsi + rcx]",
        "\\move \\v\\()1, [rsi + rcx + \\bytes]",
        "\\move \\v\\()2, [rsi + rcx + 2 * \\bytes]",
        "\\move \\v\\()3, [rsi + rcx + 3 * \\bytes]",
        "\\move [rdi + rcx], \\v\\()0",
        "\\move [rdi + rcx + \\bytes], \\v\\()1",
        "\\move [rdi + rcx + 2 * \\bytes], \\v\\()2",
        "\\move [rdi + rcx + 3 * \\bytes], \\v\\()3",
        ".if \\bytes > 16",
        "vzeroupper",
        ".endif",
        "roce_finish \\is_store",
        ".endm",
        //
        ".macro roce_copy name, is_store",
        "roce_begin \\name",
        "cmp rdx, 32",
        "jb 5f",
        "cmp byte ptr [rip + {has_avx}], 0",
        "je 4f",
        "vmovdqu ymm0, [rsi]",
        "vmovdqu ymm1, [rsi + rdx - 32]",
        "cmp rdx, 64",
        "ja 2f",
        "vmovdqu [rdi], ymm0",
        "vmovdqu [rdi + rdx - 32], ymm1",
        "vzeroupper",
        "roce_finish \\is_store",
        "2:",
        "vmovdqu ymm2, [rsi + 32]",
        "vmovdqu ymm3, [rsi + rdx - 64]",
        "cmp rdx, 128",
        "ja 2f",
        "vmovdqu [rdi], ymm0",
        "vmovdqu [rdi + 32], ymm2",
        "vmovdqu [rdi + rdx - 64], ymm3",
        "vmovdqu [rdi + rdx - 32], ymm1",
        "vzeroupper",
        "roce_finish \\is_store",
        "2:",
        "cmp rdx, 256",
        "ja 2f",
        "vmovdqu ymm4, [rsi + 64]",
        "vmovdqu ymm5, [rsi + 96]",
        "vmovdqu ymm6, [rsi + rdx - 128]",
        "vmovdqu ymm7, [rsi + rdx - 96]",
        "vmovdqu [rdi], ymm0",
        "vmovdqu [rdi + 32], ymm2",
        "vmovdqu [rdi + 64], ymm4",
        "vmovdqu [rdi + 96], ymm5",
        "vmovdqu [rdi + rdx - 128], ymm6",
        "vmovdqu [rdi + rdx - 96], ymm7",
        "vmovdqu [rdi + rdx - 64], ymm3",
        "vmovdqu [rdi + rdx - 32], ymm1",
        "vzeroupper",
        "roce_finish \\is_store",
        "2:",
        "cmp rdx, {avx512_bytes_min}",
        "jb 3f",
        "cmp byte ptr [rip + {has_avx512}], 0",
        "je 3f",
        "roce_copy_vectors vmovdqu64, zmm, 64, \\is_store",
        "3:",
        "roce_copy_vectors vmovdqu, ymm, 32, \\is_store",
        // No AVX.
        "4:",
        "cmp rdx, 64",
        "ja 3f",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + 16]",
        "movups xmm2, [rsi + rdx - 32]",
        "movups xmm3, [rsi + rdx - 16]",
        "movups [rdi], xmm0",
        "movups [rdi + 16], xmm1",
        "movups [rdi + rdx - 32], xmm2",
        "movups [rdi + rdx - 16], xmm3",
        "roce_finish \\is_store",
        "3:",
        "cmp rdx, 128",
        "ja 3f",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + 16]",
        "movups xmm2, [rsi + 32]",
        "movups xmm3, [rsi + 48]",
        "movups xmm4, [rsi + rdx - 64]",
        "movups xmm5, [rsi + rdx - 48]",
        "movups xmm6, [rsi + rdx - 32]",
        "movups xmm7, [rsi + rdx - 16]",
        "movups [rdi], xmm0",
        "movups [rdi + 16], xmm1",
        "movups [rdi + 32], xmm2",
        "movups [rdi + 48], xmm3",
        "movups [rdi + rdx - 64], xmm4",
        "movups [rdi + rdx - 48], xmm5",
        "movups [rdi + rdx - 32], xmm6",
        "movups [rdi + rdx - 16], xmm7",
        "roce_finish \\is_store",
        "3:",
        "roce_copy_vectors movups, xmm, 16, \\is_store",
        "5:",
        "cmp edx, 16",
        "jb 6f",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + rdx - 16]",
        "movups [rdi], xmm0",
        "movups [rdi + rdx - 16], xmm1",
        "roce_finish \\is_store",
        "6:",
        "cmp edx, 8",
        "jb 6f",
        "mov rax, [rsi]",
        "mov rcx, [rsi + rdx - 8]",
        "mov [rdi], rax",
        "mov [rdi + rdx - 8], rcx",
        "roce_finish \\is_store",
        "6:",
        "cmp edx, 4",
        "jb 6f",
        "mov eax, [rsi]",
        "mov ecx, [rsi + rdx - 4]",
        "mov [rdi], eax",
        "mov [rdi + rdx - 4], ecx",
        "roce_finish \\is_store",
        "6:",
        "test edx, edx",
        "jz 7f",
        "mov r8d, edx",
        "shr r8d, 1",
        "movzx eax, byte ptr [rsi]",
        "movzx r9d, byte ptr [rsi + r8]",
        "movzx ecx, byte ptr [rsi + rdx - 1]",
        "mov [rdi], al",
        "mov [rdi + r8], r9b",
        "mov [rdi + rdx - 1], cl",
        "7:",
        "roce_finish \\is_store",
        "roce_end \\name",
        ".endm",
        //
        ".pushsection .text.roce_copy, \"ax\", @progbits",
        "roce_copy roce_load, 0",
        "roce_copy roce_store, 1",
        ".popsection",
        has_avx = sym HAS_AVX,
        has_avx512 = sym HAS_AVX512,
        avx512_bytes_min = const AVX512_BYTES_MIN,
    );

    // SAFETY: these symbols are defined above. The routines return 0, or 1 after a memory fault.
    unsafe extern "sysv64" {
        #[link_name = "roce_load"]
        pub(super) fn load(to: *mut u8, from: *const u8, count: usize) -> u32;
        #[link_name = "roce_store"]
        pub(super) fn store(to: *mut u8, from: *const u8, last: usize) -> u32;
        fn roce_load_exit();
        fn roce_store_exit();
    }

    /// Detects the vector registers of the processor. Before the first call the routines use no vector registers of
    /// more than 16 bytes.
    pub(super) fn detect() {
        static DETECTED: Once = Once::new();
        DETECTED.call_once(|| {
            HAS_AVX.store(is_x86_feature_detected!("avx"), Ordering::Relaxed);
            // The first processors with AVX-512, which lack VBMI2, reduce their clock when they use 64-byte registers.
            let has_avx512 = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vbmi2");
            HAS_AVX512.store(has_avx512, Ordering::Relaxed);
        });
    }

    #[cfg(test)]
    pub(super) fn without_vectors(check: fn()) {
        let flags = [&HAS_AVX512, &HAS_AVX];
        let before = flags.map(|flag| {
            let had = flag.swap(false, Ordering::Relaxed);
            check();
            had
        });
        flags.into_iter().zip(before).for_each(|(flag, had)| flag.store(had, Ordering::Relaxed));
    }

    /// Returns, for each routine, the addresses of its instructions up to its exit, and whether the registered memory
    /// is the destination.
    pub(super) fn all() -> [(Range<usize>, bool); 2] {
        let code = |start: *const (), exit: *const ()| start.addr()..exit.addr();
        [
            (code(load as *const (), roce_load_exit as *const ()), false),
            (code(store as *const (), roce_store_exit as *const ()), true),
        ]
    }
}

#[cfg(not(all(
    target_arch = "x86_64",
    target_os = "linux",
    target_pointer_width = "64",
    not(miri),
    not(loom),
    not(sanitizer)
)))]
mod routines {
    use std::ops::Range;
    use std::sync::atomic::{AtomicU8, Ordering};

    #[inline]
    pub(super) unsafe fn load(to: *mut u8, from: *const u8, count: usize) -> u32 {
        // SAFETY: the caller's contract.
        unsafe { std::ptr::copy_nonoverlapping(from, to, count) };
        0
    }

    #[inline]
    pub(super) unsafe fn store(to: *mut u8, from: *const u8, last: usize) -> u32 {
        // SAFETY: the caller's contract. During this call the engine makes no other access to the last byte.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, last);
            AtomicU8::from_ptr(to.add(last)).store(*from.add(last), Ordering::Release);
        }
        0
    }

    pub(super) fn detect() {}

    #[cfg(test)]
    pub(super) fn without_vectors(check: fn()) {
        check();
    }

    pub(super) fn all() -> [(Range<usize>, bool); 0] {
        []
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_fault_of_a_copy_in_its_registered_memory_is_recovered() {
        for (code, stores) in routines::all() {
            let site = FaultSite { addr: 0, instruction: code.start, to: 0x9000, from: 0x5000, count: 16 };
            // If the routine copies to registered memory (`stores`), `FaultSite::count` is the number of bytes minus 1.
            let (first, last) = if stores { (0x9000, 0x9010) } else { (0x5000, 0x500F) };
            for addr in [first, last] {
                let recovery = |instruction| FaultSite { addr, instruction, ..site }.recovery();
                assert_eq!(recovery(code.start), Some(code.end));
                assert_eq!(recovery(code.end - 1), Some(code.end));
                assert_eq!((recovery(code.end), recovery(0), recovery(usize::MAX)), (None, None, None));
            }
            for addr in [first - 1, last + 1, 0, usize::MAX] {
                assert_eq!(FaultSite { addr, ..site }.recovery(), None, "{addr:#x}");
            }
        }
        assert_eq!(routines::all().is_empty(), !CAN_RECOVER);
    }
}
