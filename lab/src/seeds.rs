//! One experiment with several seeds, in parallel.

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Runs `experiment` once per seed, on the number of cores or `threads_max` threads, whichever is less, and returns the
/// results in the order of the seeds. A world cannot change threads, so `experiment` creates the world.
pub fn run_all<T: Send>(seeds: &[u64], threads_max: usize, experiment: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let threads = cores.min(threads_max).clamp(1, seeds.len().max(1));
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<T>>> = seeds.iter().map(|_| Mutex::new(None)).collect();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&seed) = seeds.get(at) else { return };
                    let result = experiment(seed);
                    *results[at].lock().expect("nobody else has this result") = Some(result);
                }
            });
        }
    });
    let taken = results.into_iter().map(|result| result.into_inner().ok().flatten());
    taken.map(|result| result.expect("the scope ends when all have run")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_seed_runs_once_and_results_keep_their_order() {
        let seeds: Vec<u64> = (0..100).collect();
        let runs = AtomicUsize::new(0);
        for threads_max in [0, 1, 3, usize::MAX] {
            let squares = run_all(&seeds, threads_max, |seed| {
                runs.fetch_add(1, Ordering::Relaxed);
                seed * seed
            });
            assert!(squares.iter().zip(&seeds).all(|(square, seed)| *square == seed * seed));
        }
        assert_eq!(runs.into_inner(), 4 * seeds.len());
        assert!(run_all(&[], 4, |seed| seed).is_empty());
    }
}
