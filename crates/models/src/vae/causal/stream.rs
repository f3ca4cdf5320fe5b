//! What is still to be seen of frames that were worked on before.

use fresco_tensor::Tensor;
use fresco_tensor::nn::Conv3d;

use crate::error::Result;

/// One pass over a video in pieces: the last frames that each convolution saw, in the order in which they run.
#[derive(Default)]
pub(super) struct Stream {
    kept: Vec<Option<Tensor>>,
    at: usize,
    /// Whether this is the first piece, which is one frame, and whether another follows.
    first: bool,
    more: bool,
}

impl Stream {
    /// Begins the next piece.
    pub(super) fn begin(&mut self, first: bool, more: bool) {
        self.at = 0;
        self.first = first;
        self.more = more;
    }

    /// Whether this is the first piece.
    pub(super) fn is_first(&self) -> bool {
        self.first
    }

    /// The frames that are kept for whoever asks now, and its place.
    fn take(&mut self) -> (usize, Option<Tensor>) {
        let place = self.at;
        self.at += 1;
        if self.kept.len() <= place {
            self.kept.resize(place + 1, None);
        }
        (place, self.kept[place].take())
    }

    fn keep(
        &mut self,
        place: usize,
        count: usize,
        before: Option<&Tensor>,
        x: &Tensor,
    ) -> Result<()> {
        if !self.more || count == 0 {
            return Ok(());
        }
        let here = x.dim(0)?;
        let own = count.min(here);
        let last = x.narrow(0, here - own, own)?;
        let kept = match before {
            Some(before) if own < count => {
                let have = before.dim(0)?;
                let old = (count - own).min(have);
                Tensor::cat(&[&before.narrow(0, have - old, old)?, &last], 0)?
            }
            _ => last,
        };
        self.kept[place] = Some(kept);
        Ok(())
    }

    /// A convolution that sees the frames before these, plus `add`.
    pub(super) fn causal(
        &mut self,
        conv: &Conv3d,
        x: &Tensor,
        add: Option<&Tensor>,
    ) -> Result<Tensor> {
        let (place, before) = self.take();
        let out = conv.forward(x, before.as_ref(), add)?;
        self.keep(place, conv.reach(), before.as_ref(), x)?;
        Ok(out)
    }

    /// Half as many frames, each of those two and the one before. The first piece passes as it is.
    pub(super) fn halve(&mut self, conv: &Conv3d, x: Tensor) -> Result<Tensor> {
        let (place, before) = self.take();
        let joined = match &before {
            Some(before) => Tensor::cat(&[before, &x], 0)?,
            None => x.clone(),
        };
        self.keep(place, 1, None, &x)?;
        if self.first {
            return Ok(x);
        }
        Ok(conv.strided(&joined, 2)?)
    }

    /// Twice as many frames: a convolution makes two of each. The first piece passes as it is, and is not seen later.
    pub(super) fn double(&mut self, conv: &Conv3d, x: Tensor) -> Result<Tensor> {
        if self.first {
            self.at += 1;
            return Ok(x);
        }
        let both = self.causal(conv, &x, None)?;
        drop(x);
        let [t, h, w, c] = both.dims4()?;
        let pairs = both.reshape([t, h, w, 2, c / 2])?;
        let frames = pairs.permute(&[0, 3, 1, 2, 4])?;
        Ok(frames.reshape([2 * t, h, w, c / 2])?)
    }
}
