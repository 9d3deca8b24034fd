//! The integration tests, in one binary.

mod guest;
mod live;
mod ports;
mod scripts;
mod sim;
mod wireshark;
