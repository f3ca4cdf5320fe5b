//! Measures the built program: the figures of `docs/measurements.md`.
//!
//! Start it with `cargo xtask bench GROUP [MEASUREMENT]`, which builds the release program first. Every line of the table
//! has the figure we promised and, where there is one, what the reference takes on a machine of the same size.

#![expect(clippy::print_stdout, reason = "the table is what this program is for")]

mod attention;
mod cluster;
mod families;
mod gpu;
mod kernels;
mod measure;
mod media;
mod memory;
mod over_http;
mod packs;
mod picture;
mod planner;
mod process;
mod run;
mod starter;
mod table;
mod transformers;
mod turns;
mod workers;

use anyhow::{Result, bail};

use crate::table::Table;

/// One thing to measure, by name.
type Measurement = (&'static str, fn(&mut Table) -> Result<()>);

/// What can be measured, by the first argument.
const GROUPS: &[(&str, &[Measurement])] = &[
    ("server", measure::MEASUREMENTS),
    ("sd15", picture::MEASUREMENTS),
    ("kernels", kernels::MEASUREMENTS),
    ("memory", memory::MEASUREMENTS),
    ("starter", starter::MEASUREMENTS),
    ("transformers", transformers::MEASUREMENTS),
    ("gpu", gpu::MEASUREMENTS),
    ("turns", turns::MEASUREMENTS),
    ("media", media::MEASUREMENTS),
    ("workers", workers::MEASUREMENTS),
    ("packs", packs::MEASUREMENTS),
    ("models", families::MEASUREMENTS),
    ("cluster", cluster::MEASUREMENTS),
    ("over-http", over_http::MEASUREMENTS),
];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((group, wanted)) = arguments.split_first() else {
        bail!("usage: fresco-bench GROUP [MEASUREMENT]");
    };
    let Some((_, measurements)) = GROUPS.iter().find(|(name, _)| name == group) else {
        let names: Vec<&str> = GROUPS.iter().map(|(name, _)| *name).collect();
        bail!("no bench {group:?}; there are {}", names.join(", "));
    };
    for name in wanted {
        if !measurements.iter().any(|(known, _)| known == name) {
            let names: Vec<&str> = measurements.iter().map(|(name, _)| *name).collect();
            bail!("no measurement {name:?}; there are {}", names.join(", "));
        }
    }
    let mut table = Table::default();
    for (name, work) in *measurements {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            eprintln!("measuring {name}");
            work(&mut table)?;
        }
    }
    println!("{}", process::machine()?);
    println!();
    print!("{table}");
    if table.missed() > 0 {
        println!("\n{} figures miss their target", table.missed());
    }
    Ok(())
}
