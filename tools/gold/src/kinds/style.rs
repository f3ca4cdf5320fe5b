//! Networks that turn pictures into tokens of a prompt.

use anyhow::Result;
use fresco_models::flux::redux::Redux;
use fresco_models::sd::style::StyleAdapter;
use fresco_models::style::StyleNetwork;
use fresco_tensor::Device;

use super::Kind;
use crate::golden::Golden;
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[
    Kind {
        name: "Redux",
        is: |golden| golden.has_key("redux_down.weight"),
        run: |golden, device, report| {
            let store = golden.store(device)?;
            run(golden, &Redux::new(&store)?, report)
        },
    },
    Kind {
        name: "style adapter",
        is: |golden| golden.has_key("style_embedding"),
        run: adapter,
    },
];

fn adapter(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    let adapter = StyleAdapter::new(&store, golden.need("num_head")?)?;
    run(golden, &adapter, report)
}

fn run(golden: &Golden, net: &dyn StyleNetwork, report: &mut Report<'_>) -> Result<()> {
    report.check("out", &net.tokens(&golden.tensor("x")?)?)
}
