//! Thousands of random runs, each with its own tape of faults.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, Once};
use std::thread;

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use roce::wire::Packet;
use tests::record::{self, Trace};

use super::play::{Tally, play};
use super::run::Verdict;
use super::scenario::{Scenario, scenarios};

/// Runs, unless `SIM_TAPES` says otherwise.
const TAPES: u32 = 20_000;
/// Runs drawn from one seed: small enough to spread over any number of threads, and the same whatever
/// their number.
const TAPES_PER_SHARD: u32 = 100;
/// One run in so many is played twice, and must be the same twice.
const TWICE_EVERY: u64 = 64;
/// Attempts to make a failing run smaller.
const SHRINK_STEPS_MAX: u32 = 3_000;

#[test]
fn random_tapes() {
    let tapes = number_from_env("SIM_TAPES", TAPES);
    let seed = number_from_env("SIM_SEED", 0);
    let shards = tapes.div_ceil(TAPES_PER_SHARD);
    let next = AtomicU32::new(0);
    let failure = Mutex::new(None);
    let total = Mutex::new(Tally::default());
    let work = || {
        while failure.lock().unwrap().is_none() {
            let shard = next.fetch_add(1, Ordering::Relaxed);
            if shard >= shards {
                return;
            }
            let count = TAPES_PER_SHARD.min(tapes - shard * TAPES_PER_SHARD);
            match run_shard(seed, shard, count) {
                Ok(tally) => total.lock().unwrap().add(&tally),
                Err(message) => *failure.lock().unwrap() = Some(message),
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    if let Some(message) = failure.into_inner().unwrap() {
        panic!("{message}");
    }
    let total = total.into_inner().unwrap();
    println!("{tapes} tapes: {total:#?}");
    assert_eq!(total.runs, u64::from(tapes));
    if tapes >= 1_000 {
        total.check_variety();
    }
}

fn number_from_env(name: &str, default: u32) -> u32 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => default,
    }
}

/// Plays `count` runs; in the case of failure returns what there is to know about it.
fn run_shard(seed: u32, shard: u32, count: u32) -> Result<Tally, String> {
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&seed.to_le_bytes());
    bytes[4..8].copy_from_slice(&shard.to_le_bytes());
    let config = Config {
        cases: count,
        failure_persistence: None,
        max_shrink_iters: SHRINK_STEPS_MAX,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let total = RefCell::new(Tally::default());
    let outcome = runner.run(&scenarios(), |scenario| {
        let tally = check(&scenario).map_err(TestCaseError::fail)?;
        total.borrow_mut().add(&tally);
        Ok(())
    });
    match outcome {
        Ok(()) => Ok(total.into_inner()),
        Err(TestError::Fail(reason, scenario)) => Err(report(&scenario, reason.message(), seed, shard)),
        Err(TestError::Abort(reason)) => Err(format!("proptest gave up: {reason}")),
    }
}

/// Plays a run, now and then twice.
fn check(scenario: &Scenario) -> Verdict<Tally> {
    if !scenario.seed.is_multiple_of(TWICE_EVERY) {
        return play_quietly(scenario, None);
    }
    let traces = [Trace::default(), Trace::default()];
    let tally = play_quietly(scenario, Some(&traces[0]))?;
    play_quietly(scenario, Some(&traces[1]))?;
    let (first, second) = (traces[0].borrow(), traces[1].borrow());
    match first.iter().zip(second.iter()).position(|(a, b)| a != b) {
        None if first.len() == second.len() => Ok(tally),
        at => Err(format!("the same run went another way the second time, from frame {at:?}")),
    }
}

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Plays a run; a panic is a failure like any other, and is not printed for each step of shrinking.
fn play_quietly(scenario: &Scenario, trace: Option<&Trace>) -> Verdict<Tally> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if IS_QUIET.get() {
                LAST_PANIC.with(|last| *last.borrow_mut() = info.to_string());
            } else {
                print(info);
            }
        }));
    });
    IS_QUIET.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(|| play(scenario, trace)));
    IS_QUIET.set(false);
    outcome.unwrap_or_else(|_| Err(LAST_PANIC.with(|last| last.borrow().clone())))
}

/// Plays the smallest failing run once more and writes down what was on the wire.
fn report(scenario: &Scenario, reason: &str, seed: u32, shard: u32) -> String {
    let trace = Trace::default();
    let again = play_quietly(scenario, Some(&trace));
    let name = format!("tape-{seed}-{shard}");
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sim");
    let path = match record::write(&trace.borrow(), &directory, &name) {
        Ok(path) => path.display().to_string(),
        Err(error) => format!("not written: {error}"),
    };
    let damaged = trace.borrow().iter().filter(|seen| Packet::parse(&seen.frame).is_err()).count();
    format!(
        "{reason}\n\nthe smallest run that fails so (seed {seed}, shard {shard}): {scenario:#?}\n\
         played again: {}\n{} frames ({damaged} not RoCE), capture: {path} (and .txt beside it)\n\
         tape: {:#?}",
        again.err().unwrap_or_else(|| "it passed".to_owned()),
        trace.borrow().len(),
        scenario.tape,
    )
}
