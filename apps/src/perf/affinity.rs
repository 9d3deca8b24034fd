//! The CPU of the thread that measures.

use anyhow::Context as _;

/// Binds the calling thread, which measures, to one CPU. Threads made before keep their affinity.
pub(super) fn pin(cpu: usize) -> anyhow::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    if cpu >= rustix::thread::CpuSet::MAX_CPU {
        anyhow::bail!("--cpu {cpu}: CPUs are numbered from 0 to {}", rustix::thread::CpuSet::MAX_CPU - 1);
    }
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set)
        .with_context(|| format!("--cpu {cpu}: this process may not run there, or there is no such CPU"))
}
