//! The integration tests, in one binary.

mod guest;
mod live;
mod ports;
mod sim;
mod wireshark;
