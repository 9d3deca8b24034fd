//! Real processes over real ports: `cargo test -p tests ports`.
