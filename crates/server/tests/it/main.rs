//! The server over its own router and over real sockets, on tiny nodes.

#![expect(unreachable_pub, reason = "a test binary has no outside")]
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed; the lint only knows functions marked as tests"
)]

mod files;
mod foreign;
mod harness;
mod jobs;
mod memory;
mod model_room;
mod models;
mod nodes;
mod packs;
mod prompts;
mod security;
mod sockets;
mod static_files;
mod transport;
mod users;
