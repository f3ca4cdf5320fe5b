//! Videos that are decoded while somebody takes their frames: an encoder of films, say, which works beside it.

use std::sync::Arc;

use fresco_graph::{Cx, NodeError};
use fresco_memory::Need;
use fresco_models::ModelError;
use fresco_models::network::Lazy;
use fresco_models::vae;
use fresco_tensor::Tensor;

use super::VaeModel;
use crate::frames::{FrameSink, FrameStream};
use crate::resident::{Hold, InUse};
use crate::sampling::run::failure;

/// A latent and the network that makes frames of it, every time they are read.
pub(super) struct DecodedFilm {
    pub(super) network: Arc<Lazy<vae::Vae>>,
    pub(super) hold: Arc<Hold>,
    /// For when there is too little memory for whole frames.
    pub(super) whole: Arc<dyn VaeModel>,
    pub(super) latent: Tensor,
    /// Frames, height, width, channels.
    pub(super) shape: [usize; 4],
    /// What running it at once takes.
    pub(super) bytes: u64,
    /// Of the node that asked for the frames; the prompt it belongs to can be interrupted through it.
    pub(super) cx: Cx,
}

/// Frames on their way to a sink: those that it has seen already are left out when decoding starts over.
struct Delivery<'a, 'b> {
    sink: &'a mut FrameSink<'b>,
    /// Frames that the sink has.
    had: usize,
    /// Frames of this attempt.
    at: usize,
    refused: Option<NodeError>,
}

impl Delivery<'_, '_> {
    fn give(&mut self, frames: &Tensor) -> Result<(), ModelError> {
        let count = frames.dims4()?[0];
        let skip = self.had.saturating_sub(self.at).min(count);
        self.at += count;
        if skip == count {
            return Ok(());
        }
        let fresh = frames.narrow(0, skip, count - skip)?;
        if let Err(error) = (self.sink)(&fresh) {
            self.refused = Some(error);
            return Err(ModelError::Cancelled);
        }
        self.had = self.at;
        Ok(())
    }
}

impl FrameStream for DecodedFilm {
    fn shape(&self) -> [usize; 4] {
        self.shape
    }

    fn read(&self, sink: &mut FrameSink<'_>) -> Result<(), NodeError> {
        let mut delivery = Delivery {
            sink,
            had: 0,
            at: 0,
            refused: None,
        };
        let check = || {
            let stopped = self.cx.check_interrupt();
            stopped.map_err(|_| ModelError::Cancelled)
        };
        let need = Need {
            required: self.bytes,
            ..Need::default()
        };
        let in_use = InUse::of(&self.cx, &[self.hold.handle()], need)?;
        let result = in_use.run(|| {
            delivery.at = 0;
            let network = self.network.get()?;
            let mut give = |frames: Tensor| delivery.give(&frames);
            let streamed = network.decode_each(&self.latent, &check, &mut give);
            streamed.unwrap_or_else(|| {
                let reason = "this VAE makes all frames at once";
                Err(ModelError::invalid("VAE decode", reason))
            })
        });
        drop(in_use);
        if let Some(error) = delivery.refused.take() {
            return Err(error);
        }
        match result {
            Err(ModelError::NoRoom { reason }) => {
                tracing::warn!("not enough memory for whole frames, working in tiles: {reason}");
                delivery.at = 0;
                let all = self.whole.decode(&self.latent, &self.cx)?;
                let given = delivery.give(&all);
                match delivery.refused.take() {
                    Some(error) => Err(error),
                    None => given.map_err(failure),
                }
            }
            other => other.map_err(failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_were_seen_are_not_given_again() {
        let mut seen = Vec::new();
        let mut sink = |frames: &Tensor| -> Result<(), NodeError> {
            seen.extend_from_slice(frames.data());
            Ok(())
        };
        let mut delivery = Delivery {
            sink: &mut sink,
            had: 0,
            at: 0,
            refused: None,
        };
        let frames = |from: usize, count: usize| {
            Tensor::from_fn([count, 1, 1, 1], |i| (from + i) as f32).unwrap()
        };
        delivery.give(&frames(0, 1)).unwrap();
        delivery.give(&frames(1, 4)).unwrap();
        // Memory ran out; it starts over, with pieces of another size.
        delivery.at = 0;
        delivery.give(&frames(0, 3)).unwrap();
        delivery.give(&frames(3, 4)).unwrap();
        assert_eq!(seen, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let mut refusing =
            |_: &Tensor| -> Result<(), NodeError> { Err(NodeError::value_error("no more")) };
        let mut delivery = Delivery {
            sink: &mut refusing,
            had: 0,
            at: 0,
            refused: None,
        };
        assert!(delivery.give(&frames(0, 1)).is_err());
        assert!(delivery.refused.is_some());
    }
}
