//! Videos that are decoded while somebody takes their frames: an encoder of films, say, which works beside it.

use std::sync::Arc;

use fresco_graph::{Cx, NodeError};
use fresco_memory::Need;
use fresco_models::ModelError;
use fresco_models::network::Lazy;
use fresco_models::vae::{self, Tiles, TimeTiles};
use fresco_tensor::Tensor;

use crate::frames::{FrameSink, FrameStream};
use crate::resident::{Hold, InUse};
use crate::sampling::run::failure;

use super::loaded::smaller;

/// A latent and the network that makes frames of it, every time they are read.
pub(super) struct DecodedFilm {
    pub(super) network: Arc<Lazy<vae::Vae>>,
    pub(super) hold: Arc<Hold>,
    /// Set where somebody asked for tiles.
    pub(super) tiles: Option<Tiles>,
    /// Pixels along a side of a latent's cell.
    pub(super) ratio: usize,
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
        let mut tiles = self.tiles;
        loop {
            let result = in_use.run(|| {
                delivery.at = 0;
                let network = self.network.get()?;
                let mut give = |frames: Tensor| delivery.give(&frames);
                self.pass(&network, tiles, &check, &mut give)
            });
            if let Some(error) = delivery.refused.take() {
                return Err(error);
            }
            let next = match tiles {
                None => Some(fallback(self.ratio)),
                Some(tiles) => smaller(tiles),
            };
            match (result, next) {
                (Err(ModelError::NoRoom { reason }), Some(next)) => {
                    tracing::warn!(
                        "not enough memory, decoding in tiles of {} by {} cells: {reason}",
                        next.x,
                        next.y
                    );
                    tiles = Some(next);
                }
                (result, _) => return result.map_err(failure),
            }
        }
    }
}

impl DecodedFilm {
    /// All frames, one way or the other.
    fn pass(
        &self,
        network: &vae::Vae,
        tiles: Option<Tiles>,
        check: vae::Check<'_>,
        give: &mut dyn FnMut(Tensor) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        match tiles {
            None => network.decode_each(&self.latent, check, give),
            Some(tiles) => network.decode_tiled_each(&self.latent, tiles, check, give),
        }
    }
}

/// Tiles for when there is too little memory for whole frames: small ones, and few frames of each, so that little of the film
/// is open at a time.
fn fallback(ratio: usize) -> Tiles {
    Tiles {
        time: Some(TimeTiles {
            frames: 8,
            overlap: 2,
        }),
        ..Tiles::decode_video(ratio)
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
