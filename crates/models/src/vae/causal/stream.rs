//! What is still to be seen of frames that were worked on before.

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Conv3d, Keeping};

use super::model::joined;
use crate::error::Result;

/// One pass over a video in pieces: the last frames that each convolution saw, in the order in which they run.
#[derive(Default)]
pub(super) struct Stream {
    kept: Vec<Vec<Tensor>>,
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

    /// Runs the rest of the network on one frame of a piece after the other. Each finds what the frame before it left.
    pub(super) fn frame_by_frame(
        &mut self,
        x: Tensor,
        mut rest: impl FnMut(Tensor, &mut Self) -> Result<()>,
    ) -> Result<()> {
        let (frames, place, more) = (x.dim(0)?, self.at, self.more);
        let single = |frame: usize| Ok(x.narrow(0, frame, 1)?);
        let singles = (0..frames).map(single).collect::<Result<Vec<Tensor>>>()?;
        drop(x);
        for (frame, one) in singles.into_iter().enumerate() {
            self.at = place;
            self.more = more || frame + 1 < frames;
            rest(one, self)?;
        }
        self.more = more;
        Ok(())
    }

    /// Whether this is the first piece.
    pub(super) fn is_first(&self) -> bool {
        self.first
    }

    /// The frames that are kept for whoever asks now, and its place.
    fn take(&mut self) -> (usize, Vec<Tensor>) {
        let place = self.at;
        self.at += 1;
        if self.kept.len() <= place {
            self.kept.resize(place + 1, Vec::new());
        }
        (place, std::mem::take(&mut self.kept[place]))
    }

    /// Keeps the last frames of those before and these, one by one, so that none has to be moved when the next comes.
    fn keep(
        &mut self,
        place: usize,
        count: usize,
        mut before: Vec<Tensor>,
        x: &Tensor,
    ) -> Result<()> {
        if !self.more || count == 0 {
            return Ok(());
        }
        let here = x.dim(0)?;
        let own = count.min(here);
        for frame in here - own..here {
            before.push(x.narrow(0, frame, 1)?.to_keep()?);
        }
        let old = before.len().saturating_sub(count);
        self.kept[place] = before.split_off(old);
        Ok(())
    }

    /// A convolution that sees the frames before these, plus `add`, which becomes the result.
    pub(super) fn causal(
        &mut self,
        conv: &Conv3d,
        x: &Tensor,
        add: Option<Tensor>,
    ) -> Result<Tensor> {
        let (place, before) = self.take();
        let out = conv.forward(x, &before, add)?;
        self.keep(place, conv.reach(), before, x)?;
        Ok(out)
    }

    /// The same of frames that `make` makes of `from`. A single one is made when those before it have been seen, so that the first of
    /// them can be given up for it.
    pub(super) fn causal_of(
        &mut self,
        conv: &Conv3d,
        from: &Tensor,
        make: impl FnOnce() -> Result<Tensor>,
        add: Option<Tensor>,
    ) -> Result<Tensor> {
        match conv.keeping(from, add.as_ref())? {
            Keeping::Frames => return self.causal(conv, &make()?, add),
            Keeping::Sums => return self.narrowing(conv, &make()?),
            Keeping::FramesInTurn => {}
        }
        let (place, mut before) = self.take();
        let sum = conv.begun(&before, add)?;
        let seen_again = before.len().min(conv.reach().saturating_sub(1));
        before.drain(..before.len() - seen_again);
        let x = make()?;
        let out = conv.ended(&x, sum)?;
        self.keep(place, conv.reach(), before, &x)?;
        Ok(out)
    }

    /// A convolution that makes fewer channels than it sees: what is kept is not the frames but what they bring to the next
    /// ones.
    fn narrowing(&mut self, conv: &Conv3d, x: &Tensor) -> Result<Tensor> {
        let (place, mut sums) = self.take();
        let frames = x.dim(0)?;
        let mut made = Vec::with_capacity(frames);
        for frame in 0..frames {
            let one = x.narrow(0, frame, 1)?;
            let sum = (!sums.is_empty()).then(|| sums.remove(0));
            made.push(conv.ended(&one, sum)?);
            if self.more || frame + 1 < frames {
                sums = conv.ahead(&one, sums)?;
            }
        }
        if self.more {
            self.kept[place] = sums;
        }
        joined(made, 0)
    }

    /// Half as many frames, each of those two and the one before. The first piece passes as it is.
    pub(super) fn halve(&mut self, conv: &Conv3d, x: Tensor) -> Result<Tensor> {
        let (place, before) = self.take();
        let all: Vec<&Tensor> = before.iter().chain([&x]).collect();
        let joined = Tensor::cat(&all, 0)?;
        self.keep(place, 1, Vec::new(), &x)?;
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

#[cfg(test)]
mod tests {
    use fresco_tensor::Stored;

    use super::*;

    fn conv(seed: usize, out: usize) -> Conv3d {
        let wave = |i: usize| ((i * (seed + 3)) as f32 * 0.37).sin() * 0.2;
        let weight = Tensor::from_fn([out, 4, 3, 3, 3], wave).unwrap();
        Conv3d::new(&Stored::from(&weight), None).unwrap()
    }

    /// Convolutions in a row over pieces of one, three and two frames. The last makes fewer channels.
    fn run(convs: &[Conv3d; 3], video: &Tensor, by_frame: bool) -> Vec<f32> {
        let mut stream = Stream::default();
        let pieces = [(0, 1), (1, 3), (4, 2)];
        let mut all = Vec::new();
        for (number, (start, len)) in pieces.into_iter().enumerate() {
            stream.begin(number == 0, number + 1 < pieces.len());
            let x = video.narrow(0, start, len).unwrap();
            let x = stream.causal(&convs[0], &x, None).unwrap();
            let rest = |x: Tensor, stream: &mut Stream| {
                let inner = stream.causal_of(&convs[1], &x, || Ok(x.clone()), None)?;
                let sum = stream.causal(&convs[0], &inner, Some(x))?;
                stream.causal_of(&convs[2], &sum, || Ok(sum.clone()), None)
            };
            let mut give = |x: Tensor, stream: &mut Stream| -> Result<()> {
                all.extend_from_slice(rest(x, stream)?.data());
                Ok(())
            };
            if by_frame {
                stream.frame_by_frame(x, give).unwrap();
            } else {
                give(x, &mut stream).unwrap();
            }
        }
        assert!(stream.kept.iter().all(Vec::is_empty), "something is kept");
        all
    }

    #[test]
    fn frames_one_by_one_are_those_of_the_piece() {
        let convs = [conv(1, 4), conv(2, 4), conv(3, 2)];
        let video = Tensor::from_fn([6, 5, 7, 4], |i| (i as f32 * 0.11).cos()).unwrap();
        assert_eq!(run(&convs, &video, true), run(&convs, &video, false));
    }

    #[test]
    fn sums_that_are_kept_make_what_the_frames_make() {
        let narrow = conv(3, 2);
        let video = Tensor::from_fn([6, 5, 7, 4], |i| (i as f32 * 0.11).cos()).unwrap();
        let mut stream = Stream::default();
        let mut made = Vec::new();
        for (start, len, more) in [(0, 1, true), (1, 3, true), (4, 2, false)] {
            stream.begin(start == 0, more);
            let piece = video.narrow(0, start, len).unwrap();
            made.push(stream.narrowing(&narrow, &piece).unwrap());
        }
        let all = narrow.forward(&video, &[], None).unwrap();
        assert_eq!(joined(made, 0).unwrap().data(), all.data());
    }
}
