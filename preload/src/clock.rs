//! Timestamps of completions: the time at which the program polls the completion, because the engine stores no time in a
//! completion. While a program polls, the engine writes a completion within the same poll.

use std::mem::zeroed;

use libc::{c_int, clockid_t, timespec};
use verbs_sys::{IBV_VALUES_MASK_RAW_CLOCK, ibv_context, ibv_values_ex};

use crate::boundary::{UNSUPPORTED, status};
use crate::context::own;

/// `hca_core_clock` in kHz: the unit of a timestamp is a nanosecond.
pub(crate) const CORE_CLOCK_KHZ: u64 = 1_000_000;

/// One time on both clocks, in nanoseconds.
#[derive(Clone, Copy, Default)]
pub(crate) struct Timestamps {
    pub(crate) monotonic: u64,
    pub(crate) realtime: u64,
}

impl Timestamps {
    pub(crate) fn now() -> Self {
        let nanos = |clock| {
            let time = read(clock);
            time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
        };
        Timestamps { monotonic: nanos(libc::CLOCK_MONOTONIC), realtime: nanos(libc::CLOCK_REALTIME) }
    }
}

fn read(clock: clockid_t) -> timespec {
    // SAFETY: zeros are a value of each field.
    let mut time: timespec = unsafe { zeroed() };
    // SAFETY: `time` outlives the call, which succeeds for these clocks.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time
}

/// `ibv_query_rt_values_ex`: the present time of the clock of completions.
pub(crate) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    status(|| {
        // SAFETY: the context's table of functions was used, and the program passes values.
        let (_, values) = unsafe { (own(context)?, &mut *values) };
        if values.comp_mask & !IBV_VALUES_MASK_RAW_CLOCK != 0 {
            return Err(UNSUPPORTED);
        }
        if values.comp_mask & IBV_VALUES_MASK_RAW_CLOCK != 0 {
            let time = read(libc::CLOCK_MONOTONIC);
            (values.raw_clock.tv_sec, values.raw_clock.tv_nsec) = (time.tv_sec, time.tv_nsec);
        }
        Ok(())
    })
}
