//! Two hosts and an attacker on one switch: `cargo test -p tests attack`.
//!
//! The attacker sends frames with a right ICRC, and the test grants it numbers that it would have to guess:
//! queue pair number, PSN, remote key. What it may not do with them is what each test is called.

mod exchange;
mod flood;
mod forged;
mod frames;
mod layer2;
mod network;
