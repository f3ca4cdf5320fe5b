//! How long planning takes: fifty models of two thousand units each, one of which is to be loaded.

use std::time::Instant;

use anyhow::{Result, ensure};
use fresco_memory::plan::{self, EvictionRank, Item, Room, Scene};
use fresco_memory::{Order, Policy, Unit, WeightsId, split_in};

use crate::table::Table;

const MODELS: u64 = 50;
const UNITS: u64 = 2000;
const ROUNDS: u32 = 200;

/// Sizes like those of a network: few large units, many small ones.
fn units() -> Vec<Unit> {
    let unit = |n: u64| {
        let bytes = (n * 7919 % 97 + 1) * (1 << (n % 16));
        Unit {
            name: format!("blocks.{}.{n}", n / 20).into(),
            bytes,
            cost: bytes,
            embedding: false,
            biased: true,
            castable: true,
            own: false,
            block: Some((n / 20) as u32),
        }
    };
    (0..UNITS).map(unit).collect()
}

fn scene(each: u64) -> Scene {
    let item = |n: u64| Item {
        weights: WeightsId::new(&format!("model{n}")),
        model: None,
        policy: [Policy::Auto, Policy::Keep, Policy::EjectAfter][(n % 3) as usize],
        set_by: fresco_memory::SetBy::default(),
        orphan: n.is_multiple_of(7),
        ejected: false,
        held: n.is_multiple_of(5),
        needed: n == 0,
        touched: false,
        eject: false,
        removed: None,
        bytes: vec![0, each, 0],
        offloaded: 0,
        size: each,
        last_used: n * 31 % 17,
    };
    Scene {
        devices: ["cpu", "sim:0", "sim:1"].map(str::to_owned).into(),
        items: (0..MODELS).map(item).collect(),
    }
}

pub(crate) fn planner(table: &mut Table) -> Result<()> {
    let units = units();
    let each: u64 = units.iter().map(|unit| unit.bytes).sum();
    let scene = scene(each);
    let order = Order::of(&units);
    let room = Room {
        device: 1,
        to_free: each * 40,
        most: EvictionRank::ORDINARY,
        whole: false,
    };
    let begun = Instant::now();
    let mut steps = 0;
    for round in 0..ROUNDS {
        steps += plan::room(&scene, room).steps.len();
        let limit = each / 2 + u64::from(round);
        steps += split_in(&units, &order, Some(limit), 2).resident.len();
    }
    let each = begun.elapsed().as_secs_f64() * 1000.0 / f64::from(ROUNDS);
    ensure!(steps > 0, "nothing was planned");
    table.row(
        "plan a load among 50 models of 2,000 units",
        each,
        "ms",
        Some(1.0),
        "",
    );
    Ok(())
}
