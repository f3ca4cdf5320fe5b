//! Simulates what cannot be had on a desk. Start it with `cargo xtask sim cluster`.

#![expect(clippy::print_stdout, reason = "the table is what this program is for")]

mod cluster;

use anyhow::{Result, bail};

use crate::cluster::{Outcome, Policy, Scenario, simulate};

/// The scenarios of `docs/cluster.md`.
fn scenarios() -> Vec<Scenario> {
    let small = Scenario {
        name: "8 models, 4 workers with 2 each",
        workers: 4,
        holds: 2,
        models: 8,
        skew: 0.0,
        jobs: 20_000,
        clients: 4,
        load: 0.0,
        die: 0.0,
        policy: Policy::Placement,
    };
    let large = Scenario {
        name: "2,000 workers, 200 models",
        workers: 2000,
        holds: 4,
        models: 200,
        skew: 1.0,
        jobs: 1_000_000,
        clients: 100,
        load: 0.8,
        ..small.clone()
    };
    vec![
        Scenario {
            policy: Policy::InTurn,
            ..small.clone()
        },
        small,
        Scenario {
            policy: Policy::InTurn,
            ..large.clone()
        },
        large.clone(),
        Scenario {
            name: "the same, a tenth dies halfway",
            jobs: 100_000,
            die: 0.1,
            ..large
        },
    ]
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["cluster"] => {}
        _ => bail!("usage: fresco-sim cluster"),
    }
    println!(
        "| scenario | jobs | who takes a job | model there | loads | computing | wait, median | wait, 99 of 100 | tried again | lost | twice |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    for scenario in scenarios() {
        println!("{}", row(&scenario, &simulate(&scenario)));
    }
    Ok(())
}

fn row(scenario: &Scenario, outcome: &Outcome) -> String {
    let policy = match scenario.policy {
        Policy::Placement => "the one that suits",
        Policy::InTurn => "the next one",
    };
    format!(
        "| {} | {} | {policy} | {:.1} % | {} | {:.1} % | {:.1} s | {:.1} s | {} | {} | {} |",
        scenario.name,
        scenario.jobs,
        outcome.resident_share() * 100.0,
        outcome.loads,
        outcome.utilisation() * 100.0,
        outcome.wait(0.5),
        outcome.wait(0.99),
        outcome.retried,
        scenario.jobs - outcome.finished,
        outcome.twice,
    )
}
