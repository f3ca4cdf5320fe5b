//! Networks that steer a UNet with a picture: control nets and T2I adapters.

mod adapter;
mod names;
mod net;

use std::sync::Arc;

use fresco_tensor::{Device, Tensor, WeightFile};

use crate::control::{ControlInput, ControlNetwork, ControlStore, SeenHint};
use crate::denoise::hooks::ControlFeatures;
use crate::error::{ModelError, Result};
use crate::sd::UNITS;

pub use adapter::T2iAdapter;
pub use net::ControlNet;

/// What is in a file, if it steers a UNet.
pub(crate) fn find(
    file: &Arc<dyn WeightFile>,
    names: &[String],
    device: &Device,
) -> Result<Option<ControlStore>> {
    if let Some(store) = names::net_store(file, names, device.clone())? {
        ControlNet::verify(&store)?;
        return Ok(Some(ControlStore {
            store: store.with_units(&UNITS),
            build: |store| Ok(Box::new(ControlNet::new(store)?)),
        }));
    }
    let found = names::adapter_store(file, names, device.clone());
    Ok(found.map(|store| ControlStore {
        store: store.with_units(&UNITS),
        build: |store| Ok(Box::new(T2iAdapter::new(store)?)),
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

    fn see(&self, hint: &Tensor) -> Result<SeenHint> {
        Ok(SeenHint::Map(Self::see(self, hint)?.to(&Device::cpu())?))
    }

    fn features(&self, input: &ControlInput<'_>) -> Result<ControlFeatures> {
        let SeenHint::Map(seen) = input.seen else {
            return Err(ModelError::invalid("control net", "not a control net"));
        };
        let own = input.conds.tensor("crossattn_controlnet");
        self.forward(
            input.x,
            seen,
            input.timesteps,
            own.or_else(|| input.conds.tensor("c_crossattn")),
            input.conds.tensor("y"),
        )
    }

    fn rest(&self) {
        Self::rest(self);
    }
}

impl ControlNetwork for T2iAdapter {
    fn hint_size(&self, columns: usize, rows: usize) -> (usize, usize) {
        let pixels = |cells: usize| (cells * CELL).next_multiple_of(self.unshuffle());
        (pixels(columns), pixels(rows))
    }

    fn hint_channels(&self) -> usize {
        // Those with one average the colours.
        3
    }

    fn see(&self, hint: &Tensor) -> Result<SeenHint> {
        let features = self.forward(hint)?;
        let home = |features: Tensor| Ok(features.to(&Device::cpu())?);
        Ok(SeenHint::Features(features.map(home)?))
    }

    fn features(&self, input: &ControlInput<'_>) -> Result<ControlFeatures> {
        match input.seen {
            SeenHint::Features(features) => Ok(features.clone()),
            SeenHint::Map(_) => Err(ModelError::invalid("T2I adapter", "not an adapter")),
        }
    }
}
