//! The integration tests, in one binary.

mod attack;
mod guest;
mod live;
mod package;
mod ports;
mod preload;
mod scripts;
mod sim;
mod wireshark;
