//! Measures the built program from outside: the figures of `docs/measurements.md`.
//!
//! Start it with `cargo xtask bench server [MEASUREMENT]`, which builds the release program first. Every line of the table
//! has the figure we promised and, where there is one, what the reference takes on a machine of the same size.

#![expect(clippy::print_stdout, reason = "the table is what this program is for")]

mod measure;
mod process;
mod table;

use anyhow::{Result, bail};

use crate::{measure::MEASUREMENTS, table::Table};

fn main() -> Result<()> {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    for name in &wanted {
        if !MEASUREMENTS.iter().any(|(known, _)| known == name) {
            let names: Vec<&str> = MEASUREMENTS.iter().map(|(name, _)| *name).collect();
            bail!("no measurement {name:?}; there are {}", names.join(", "));
        }
    }
    let mut table = Table::default();
    for (name, work) in MEASUREMENTS {
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
