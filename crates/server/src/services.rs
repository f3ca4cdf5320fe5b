//! What handlers share and what lives beside them: sockets and their queues, logs, metrics, users, pictures, memory in words. Knows
//! no handler.

pub(crate) mod answers;
pub(crate) mod config;
pub(crate) mod frame;
pub(crate) mod frames;
pub(crate) mod hub;
pub(crate) mod job_json;
pub(crate) mod job_log;
pub(crate) mod logs;
pub(crate) mod memory_guard;
pub(crate) mod memory_json;
pub(crate) mod memory_words;
pub(crate) mod metrics;
pub(crate) mod outbox;
pub(crate) mod pictures;
pub mod relay;
pub(crate) mod sign_in;
pub(crate) mod throttle;
pub(crate) mod tree;
pub(crate) mod users;
