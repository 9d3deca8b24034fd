//! Tests of whole engines. One program, because each program of tests compiles the engine for its ports anew.

mod common;
mod corpus;
mod hostile;
mod stations;
mod wire_port;

mod allocations;
mod congestion;
mod forged;
mod hostile_peer;
mod last_responses;
mod link_layer;
mod local_faults;
mod local_operations;
mod loopback;
mod many_qps;
mod neighbour_frames;
mod reorder;
mod requester;
mod shared_objects;
mod srq;
mod threats;
mod uc;
mod ud;
