//! The pure part of the memory room: tables of the specification, and properties over random input.

#![expect(
    clippy::unwrap_used,
    reason = "a text that should be right fails its test otherwise"
)]

mod blocks;
mod budget;
mod expert;
mod placement;
mod properties;

use fresco_memory::amount::{GIB, MIB};
use fresco_memory::{DeviceTotal, Unit};

pub(crate) fn unit(name: &str, bytes: u64) -> Unit {
    Unit {
        name: name.into(),
        bytes,
        cost: bytes,
        embedding: false,
        biased: true,
        castable: true,
        own: false,
        block: None,
    }
}

pub(crate) fn mib(name: &str, size: u64) -> Unit {
    unit(name, size * MIB)
}

/// Two accelerators and the main memory, as the specification's examples have them.
pub(crate) fn machine(kind: &str) -> Vec<DeviceTotal> {
    devices(&[
        ("cpu", 64),
        (&format!("{kind}:0"), 24),
        (&format!("{kind}:1"), 12),
    ])
}

pub(crate) fn devices(list: &[(&str, u64)]) -> Vec<DeviceTotal> {
    list.iter()
        .map(|(name, gib)| DeviceTotal {
            name: (*name).to_owned(),
            total: gib * GIB,
        })
        .collect()
}
