//! Black-box tests of the built program: they start it, and talk HTTP and WebSocket to it, nothing else.
//!
//! This library is the harness: a server process in a folder of its own ([`Server`]), a plain HTTP client
//! ([`Connection`]), a WebSocket client ([`Socket`]) and the workflows that tests send ([`workflow`]). It knows none of
//! our crates, so a test here cannot pass by agreeing with a bug in a shared type.
//!
//! The harness panics with a reason when the program misbehaves: every caller is a test, a driver or a measurement.

pub mod chance;
pub mod cluster;
pub mod http;
pub mod limits;
pub mod member;
pub mod memory;
pub mod packs;
pub mod picture;
pub mod quantised;
pub mod server;
#[cfg(target_os = "linux")]
pub mod share;
pub mod socket;
pub mod starter;
pub mod templates;
pub mod tiny;
pub mod workflow;

pub use http::{Connection, Response};
pub use server::{Server, StartOptions};
pub use socket::{Frame, Socket};
