//! Networks that steer a UNet with a picture: control nets and T2I adapters.

mod adapter;
mod light;
mod names;
mod net;
mod union;

use std::sync::Arc;

use fresco_tensor::{Device, Tensor, WeightFile};

use crate::control::{
    BuildControl, ControlConds, ControlInput, ControlNetwork, ControlStore, SeenHint, Steers,
};
use crate::denoise::hooks::ControlFeatures;
use crate::error::{ModelError, Result};
use crate::sd::UNITS;
use crate::store::WeightStore;

pub use adapter::T2iAdapter;
pub use light::LightAdapter;
pub use net::ControlNet;

const NETS: Steers = Steers {
    models: "SD1.x, SD2.x and SDXL",
    key: "input_blocks.0.0.weight",
    columns: &[
        ("attn2.to_k.weight", "attn2.to_k.weight"),
        ("time_embed.0.weight", "time_embed.0.weight"),
        ("label_emb.0.0.weight", "label_emb.0.0.weight"),
    ],
};

/// They see neither prompt nor noise.
const ADAPTERS: Steers = Steers {
    columns: &[],
    ..NETS
};

/// What is in a file, if it steers a UNet.
pub(crate) fn find(
    file: &Arc<dyn WeightFile>,
    names: &[String],
    device: &Device,
) -> Result<Option<ControlStore>> {
    if let Some(store) = names::net_store(file, names, device.clone())? {
        ControlNet::verify(&store)?;
        let build = |store: &WeightStore| Ok(Box::new(ControlNet::new(store)?) as Box<_>);
        let store = store.with_units(&UNITS);
        return Ok(Some(ControlStore::new(store, build, NETS)));
    }
    let found = names::adapter_store(file, names, device.clone());
    Ok(found.map(|store| {
        let build: BuildControl = if store.has("body.0.body.0.block1.weight") {
            |store| Ok(Box::new(LightAdapter::new(store)?) as Box<_>)
        } else {
            |store| Ok(Box::new(T2iAdapter::new(store)?) as Box<_>)
        };
        ControlStore::new(store.with_units(&UNITS), build, ADAPTERS)
    }))
}

/// Pixels along a side of a latent's cell.
const CELL: usize = 8;

impl ControlNetwork for ControlNet {
    fn hint_size(&self, columns: usize, rows: usize) -> (usize, usize) {
        (columns * CELL, rows * CELL)
    }

    fn hint_channels(&self) -> usize {
        Self::hint_channels(self)
    }

    fn see(&self, hint: &Tensor, types: &[usize]) -> Result<SeenHint> {
        let seen = self.with_types(&Self::see(self, hint)?, types)?;
        Ok(SeenHint::Map(seen.to(&Device::cpu())?))
    }

    fn features(&self, input: &ControlInput<'_>) -> Result<ControlFeatures> {
        let SeenHint::Map(seen) = input.seen else {
            return Err(ModelError::invalid("control net", "not a control net"));
        };
        let conds = ControlConds::read(input.conds)?;
        self.forward_as(
            input.x,
            seen,
            input.timesteps,
            conds.own_prompt.or(conds.prompt),
            conds.pooled,
            input.types,
        )
    }

    fn rest(&self) {
        Self::rest(self);
    }
}

/// The size of a hint in whole cells of an adapter.
fn whole_cells(columns: usize, rows: usize, unshuffle: usize) -> (usize, usize) {
    let pixels = |cells: usize| (cells * CELL).next_multiple_of(unshuffle);
    (pixels(columns), pixels(rows))
}

/// What an adapter makes of a hint is all of what it adds.
fn kept(features: ControlFeatures) -> Result<SeenHint> {
    let home = |features: Tensor| Ok(features.to(&Device::cpu())?);
    Ok(SeenHint::Features(features.map(home)?))
}

fn again(seen: &SeenHint) -> Result<ControlFeatures> {
    match seen {
        SeenHint::Features(features) => Ok(features.clone()),
        SeenHint::Map(_) => Err(ModelError::invalid("T2I adapter", "not an adapter")),
    }
}

/// Colours of a hint. Adapters for one average them.
const COLOURS: usize = 3;

impl ControlNetwork for T2iAdapter {
    fn hint_size(&self, columns: usize, rows: usize) -> (usize, usize) {
        whole_cells(columns, rows, self.unshuffle())
    }

    fn hint_channels(&self) -> usize {
        COLOURS
    }

    fn see(&self, hint: &Tensor, _types: &[usize]) -> Result<SeenHint> {
        kept(self.forward(hint)?)
    }

    fn features(&self, input: &ControlInput<'_>) -> Result<ControlFeatures> {
        again(input.seen)
    }
}

impl ControlNetwork for LightAdapter {
    fn hint_size(&self, columns: usize, rows: usize) -> (usize, usize) {
        whole_cells(columns, rows, self.hint().unshuffle)
    }

    fn hint_channels(&self) -> usize {
        COLOURS
    }

    fn see(&self, hint: &Tensor, _types: &[usize]) -> Result<SeenHint> {
        kept(self.forward(hint)?)
    }

    fn features(&self, input: &ControlInput<'_>) -> Result<ControlFeatures> {
        again(input.seen)
    }
}
