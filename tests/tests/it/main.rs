//! Black-box tests of the running program, one binary for all of them.

#![expect(
    clippy::unwrap_used,
    reason = "an answer without the expected part is a failed test"
)]

mod bodies;
mod cluster;
mod cluster_clients;
mod cluster_memory;
mod cluster_trouble;
mod disk;
mod encoders;
mod events;
mod exposure;
mod families;
mod film_families;
mod films;
mod interrupts;
mod loading;
mod loops;
mod media;
mod memory_admission;
mod memory_bad_input;
mod memory_cases;
mod memory_decisions;
mod memory_free;
mod memory_lifetime;
mod memory_limits;
mod memory_networks;
mod memory_numbers;
mod memory_patches;
mod memory_placement;
mod memory_retention;
mod memory_watching;
mod older_families;
mod outline;
mod over_tls;
mod packs;
mod page_routes;
mod pictures;
mod program;
mod prompts;
mod queue_order;
mod record;
mod rules;
mod sequences;
#[cfg(target_os = "linux")]
mod shares;
mod sockets;
mod sounds;
mod specs;
mod starter;
mod startup;
mod templates;
mod token;
mod views;
mod weights;
mod workers;
mod workflow_files;
mod wrong_files;
