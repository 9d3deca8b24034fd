//! Memory of the application that is unmapped, protected or truncated. If this occurs before the registration, the
//! registration fails. If this occurs later, each copy by an engine that the memory no longer permits fails.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))] // elsewhere a memory fault ends the process

mod connections;
mod copies;
mod pages;
mod registration;
mod signals;

use std::sync::Mutex;

use verbs::{Context, DeviceOptions, Pd};

/// Returns a context of the device of all tests, whose port receives every frame that it sends.
fn context() -> Context {
    static DEVICE: Mutex<Option<Context>> = Mutex::new(None);
    let mut device = DEVICE.lock().unwrap();
    let spec = "eal:net_ring0,ip=10.0.0.1/24".parse().unwrap();
    let context = Context::open(&spec, &DeviceOptions::default()).unwrap();
    // Keeps the device open between two tests.
    device.get_or_insert_with(|| context.clone());
    context
}

fn pd() -> Pd {
    context().alloc_pd().unwrap()
}
