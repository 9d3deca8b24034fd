//! Simulated Ethernet in virtual time.
