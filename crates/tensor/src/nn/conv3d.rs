//! Convolution over frames of shape (t, h, w, c) in which a frame sees itself and those before it.
//!
//! The kernel of each time tap is packed by itself, so that taps which would only see frames before the first are left
//! out: a single picture costs what a convolution over pictures costs.

use std::ops::Range;
use std::sync::Arc;

use super::contents::{Content, Contents, MatrixSize};
use super::linear::{After, with_gpu_finish};
use super::slot::{SlotGroup, WeightSlot};
use crate::cpu::finish::Finish;
use crate::cpu::packed::Weight;
use crate::cpu::picture::Picture;
use crate::cpu::product;
use crate::device::Device;
use crate::dtype::Dtype;
use crate::error::{Result, TensorError};
use crate::gpu::{GpuWeight, Treatment, Window};
use crate::stored::Stored;
use crate::tensor::Tensor;

/// Kernels over time, height and width in their storage format, and a bias. Height and width keep their sizes.
pub struct Conv3d {
    size: MatrixSize,
    /// Time, height and width.
    kernel: [usize; 3],
    dtype: Dtype,
    biased: bool,
    /// One matrix for each time tap, then the bias.
    slot: Arc<WeightSlot>,
}

const OP: &str = "conv3d";

/// For which rows and columns outputs are made: every `stride`-th, of frames with so many zeros around them.
#[derive(Clone, Copy)]
struct Places {
    stride: usize,
    zeros: (usize, usize),
}

/// How a convolution goes along a film of which a piece after the other is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeping {
    /// The frames are kept, and all taps see all of theirs at once.
    Frames,
    /// The same, but those before a single frame are seen first, so that one of them can be given up for it.
    FramesInTurn,
    /// Not the frames are kept, but what they bring to the next ones, which is smaller.
    Sums,
}

impl Conv3d {
    /// `weight` is (out, in, time, height, width), the last two odd, or without the time, which is then one tap. In main
    /// memory.
    pub fn new(weight: &Stored, bias: Option<&Stored>) -> Result<Self> {
        Self::in_group(weight, bias, &SlotGroup::new())
    }

    /// The same, used together with other layers.
    pub fn in_group(weight: &Stored, bias: Option<&Stored>, group: &SlotGroup) -> Result<Self> {
        let (size, kernel) = kernels(weight.shape())?;
        let taps = taps(weight, kernel)?;
        let dtype = taps.first().map_or(weight.dtype(), Stored::dtype);
        let mut values: Vec<Content> = taps.iter().map(|tap| Content::matrix(tap, size)).collect();
        if let Some(bias) = bias {
            if bias.len() != size.out {
                return Err(TensorError::mismatch(OP, bias.shape(), &[size.out]));
            }
            values.push(Content::channels(bias));
        }
        Ok(Self {
            size,
            kernel,
            dtype,
            biased: bias.is_some(),
            slot: WeightSlot::new(values, group)?,
        })
    }

    /// Lets the kernels keep sixteen bits of an input: see [`Conv2d::shortened`](super::Conv2d::shortened).
    #[must_use]
    pub fn shortened(mut self) -> Self {
        self.slot.set_matrices(|size| size.short = true);
        self
    }

    pub fn in_channels(&self) -> usize {
        self.size.channels
    }

    pub fn out_channels(&self) -> usize {
        self.size.out
    }

    /// Time, height and width of the kernels.
    pub fn kernel(&self) -> [usize; 3] {
        self.kernel
    }

    /// How many frames before an output's own it sees.
    pub fn reach(&self) -> usize {
        self.kernel[0] - 1
    }

    /// Where the weights are.
    pub fn slot(&self) -> &Arc<WeightSlot> {
        &self.slot
    }

    /// The format the weight is kept in.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// What the layer keeps, by its size in a file.
    pub fn bytes(&self) -> u64 {
        self.slot.bytes()
    }

    /// The weight as it was given, (out, in, time, height, width).
    pub fn weight(&self) -> Result<Stored> {
        let [time, height, width] = self.kernel;
        let taps: Vec<Stored> = (0..time)
            .map(|tap| self.slot.stored(tap))
            .collect::<Result<_>>()?;
        let plane = height * width * self.dtype.size();
        let total = taps.iter().map(|tap| tap.bytes().len()).sum();
        let _claim = crate::room::claim(total as u64)?;
        let mut bytes = Vec::with_capacity(total);
        for pair in 0..self.size.out * self.size.channels {
            for tap in &taps {
                bytes.extend_from_slice(&tap.bytes()[pair * plane..][..plane]);
            }
        }
        let shape = [self.size.out, self.size.channels, time, height, width];
        Stored::new(self.dtype, shape, bytes)
    }

    /// The bias as it was given.
    pub fn bias(&self) -> Result<Option<Stored>> {
        let bias = self.biased.then(|| self.slot.stored(self.kernel[0]));
        bias.transpose()
    }

    /// One output for each frame of `x`, plus `add`, which is where the sum is made if nobody else holds it. The frames before
    /// `x` are those in `before`, the last ones next to it; where there are none it is as if they were zero.
    pub fn forward(&self, x: &Tensor, before: &[Tensor], add: Option<Tensor>) -> Result<Tensor> {
        let [t, h, w, _] = self.check(x)?;
        let shape = [t, h, w, self.out_channels()];
        if let Some(add) = &add {
            x.check_device(OP, add)?;
            if add.shape() != shape {
                return Err(TensorError::mismatch(OP, &shape, add.shape()));
            }
        }
        let mut seen = 0;
        for one in before {
            seen += self.check(one)?[0];
            x.check_device(OP, one)?;
            if one.shape()[1..] != x.shape()[1..] {
                return Err(TensorError::mismatch(OP, x.shape(), one.shape()));
            }
        }
        let known = seen.min(self.reach());
        if t == 1 && x.gpu().is_none() {
            return self.single(x, before, known, add);
        }
        let joined = if known > 0 {
            let last = last_frames(before, known)?;
            let all: Vec<&Tensor> = last.iter().chain([x]).collect();
            Some(Tensor::cat(&all, 0)?)
        } else {
            None
        };
        let frames = joined.as_ref().unwrap_or(x);
        let here = self.slot.at(&x.device())?;
        if frames.gpu().is_some() {
            if t == 0 {
                return Tensor::zeros_on(&x.device(), shape);
            }
            // Taps that would see nothing but frames before the first for every output are left out.
            let missing = self.reach() - known;
            let first = missing.saturating_sub(t - 1);
            return self.on_gpu(
                &here,
                frames,
                first,
                (1, missing - first),
                (self.everywhere(), add.as_ref()),
                shape,
            );
        }
        // The first outputs lack some frames, each another number of them.
        let lacking = (self.reach() - known).min(t);
        if lacking == 0 {
            return self.outputs(&here, frames, known, 0..t, 0, add);
        }
        let part = |add: &Option<Tensor>, outputs: Range<usize>| {
            let add = add.as_ref();
            add.map(|add| add.narrow(0, outputs.start, outputs.len()))
                .transpose()
        };
        let mut parts = Vec::new();
        for output in 0..lacking {
            let first = self.reach() - known - output;
            let add = part(&add, output..output + 1)?;
            parts.push(self.outputs(&here, frames, known, output..output + 1, first, add)?);
        }
        if lacking < t {
            let add = part(&add, lacking..t)?;
            parts.push(self.outputs(&here, frames, known, lacking..t, 0, add)?);
        }
        if parts.len() == 1 {
            return Ok(parts.remove(0));
        }
        Tensor::cat(&parts.iter().collect::<Vec<_>>(), 0)
    }

    /// What is best kept of frames that are seen again, when `x` is next and `add` is added to the result.
    pub fn keeping(&self, x: &Tensor, add: Option<&Tensor>) -> Result<Keeping> {
        let frames = x.dim(0)?;
        Ok(if x.device().is_gpu() {
            Keeping::Frames
        } else if add.is_none() && self.out_channels() < self.in_channels() {
            Keeping::Sums
        } else if frames > 1 {
            Keeping::Frames
        } else {
            Keeping::FramesInTurn
        })
    }

    /// What single frames bring to the output of the frame behind them, plus `add`, which is where the sum is made if nobody else
    /// holds it. [`Self::ended`] brings the rest, so that a frame that is not seen again can be given up before the next is
    /// made. In main memory and on simulated devices.
    pub fn begun(&self, before: &[Tensor], add: Option<Tensor>) -> Result<Option<Tensor>> {
        let known = before.len().min(self.reach());
        let mut sum = add;
        let taps = self.reach() - known..self.reach();
        for (tap, frame) in taps.zip(&before[before.len() - known..]) {
            sum = Some(self.single_tap(tap, frame, sum)?);
        }
        Ok(sum)
    }

    /// The output for a single frame after [`Self::begun`].
    pub fn ended(&self, x: &Tensor, sum: Option<Tensor>) -> Result<Tensor> {
        self.single_tap(self.reach(), x, sum)
    }

    /// What a single frame brings to the outputs of those behind it, added to `sums`, which are those of frames before it, the
    /// next one's first. What [`Self::begun`] makes of the frames themselves, for layers that make fewer channels than they
    /// see: sums are then smaller than frames.
    pub fn ahead(&self, x: &Tensor, sums: Vec<Tensor>) -> Result<Vec<Tensor>> {
        let mut sums = sums.into_iter();
        let taps = (0..self.reach()).rev();
        taps.map(|tap| self.single_tap(tap, x, sums.next()))
            .collect()
    }

    /// What one tap makes of one frame, plus `sum`.
    fn single_tap(&self, tap: usize, frame: &Tensor, sum: Option<Tensor>) -> Result<Tensor> {
        let [t, h, w, _] = self.check(frame)?;
        let shape = [1, h, w, self.out_channels()];
        if t != 1 {
            return Err(TensorError::invalid(
                OP,
                format!("{t} frames in place of one"),
            ));
        }
        if let Some(sum) = &sum {
            frame.check_device(OP, sum)?;
            if sum.shape() != shape {
                return Err(TensorError::mismatch(OP, &shape, sum.shape()));
            }
        }
        let here = self.slot.at(&frame.device())?;
        self.tap(&here, tap, frame, 0, shape, sum)
    }

    /// The output for a single frame: each tap sees one frame where it is.
    fn single(
        &self,
        x: &Tensor,
        before: &[Tensor],
        known: usize,
        add: Option<Tensor>,
    ) -> Result<Tensor> {
        let [_, h, w, _] = x.dims4()?;
        let shape = [1, h, w, self.out_channels()];
        let here = self.slot.at(&x.device())?;
        // From the last one back.
        let places = |tensor: &'_ Tensor| (0..tensor.shape()[0]).rev();
        let known_frames = before.iter().rev();
        let known_frames = known_frames.flat_map(|one| places(one).map(move |place| (one, place)));
        let mut frames: Vec<(&Tensor, usize)> = known_frames.take(known).collect();
        frames.reverse();
        frames.push((x, 0));
        let first = self.reach() - known;
        let mut sum = add;
        for (tap, (frame, place)) in (first..self.kernel[0]).zip(frames) {
            sum = Some(self.tap(&here, tap, frame, place, shape, sum)?);
        }
        sum.ok_or_else(|| TensorError::invalid(OP, "a kernel without taps"))
    }

    /// Outputs for every `stride`-th frame, each of the frames from it on as long as the kernel is; none where there are not
    /// enough frames.
    pub fn strided(&self, x: &Tensor, stride: usize) -> Result<Tensor> {
        let [t, h, w, _] = self.check(x)?;
        if stride == 0 {
            return Err(TensorError::invalid(OP, "the stride is 0"));
        }
        let count = match t.checked_sub(self.kernel[0]) {
            Some(rest) => rest / stride + 1,
            None => 0,
        };
        let shape = [count, h, w, self.out_channels()];
        if count == 0 {
            return Tensor::zeros_on(&x.device(), shape);
        }
        let here = self.slot.at(&x.device())?;
        if x.gpu().is_some() {
            return self.on_gpu(&here, x, 0, (stride, 0), (self.everywhere(), None), shape);
        }
        let mut sum: Option<Tensor> = None;
        for tap in 0..self.kernel[0] {
            let places: Vec<usize> = (0..count).map(|i| i * stride + tap).collect();
            let frames = x.index_select(0, &places)?;
            sum = Some(self.tap(&here, tap, &frames, 0, shape, sum)?);
        }
        sum.ok_or_else(|| TensorError::invalid(OP, "a kernel without taps"))
    }

    /// Outputs only where the kernel lies inside of `x`, for every so many frames, and rows and columns, plus `add`. For frames that
    /// bring what they want to be seen around them.
    pub fn inside(
        &self,
        x: &Tensor,
        (frames, cells): (usize, usize),
        add: Option<&Tensor>,
    ) -> Result<Tensor> {
        let [t, h, w, _] = self.check(x)?;
        if frames == 0 || cells == 0 {
            return Err(TensorError::invalid(OP, "the stride is 0"));
        }
        let count = |size: usize, kernel: usize, stride: usize| match size.checked_sub(kernel) {
            Some(rest) => rest / stride + 1,
            None => 0,
        };
        let [time, kh, kw] = self.kernel;
        let count_frames = count(t, time, frames);
        let shape = [
            count_frames,
            count(h, kh, cells),
            count(w, kw, cells),
            self.out_channels(),
        ];
        if let Some(add) = add {
            x.check_device(OP, add)?;
            if add.shape() != shape {
                return Err(TensorError::mismatch(OP, &shape, add.shape()));
            }
        }
        if shape.contains(&0) {
            return Tensor::zeros_on(&x.device(), shape);
        }
        let here = self.slot.at(&x.device())?;
        let places = Places {
            stride: cells,
            zeros: (0, 0),
        };
        if x.gpu().is_some() {
            return self.on_gpu(&here, x, 0, (frames, 0), (places, add), shape);
        }
        let mut sum = add.cloned();
        for tap in 0..time {
            let chosen: Vec<usize> = (0..count_frames).map(|i| i * frames + tap).collect();
            let seen = if frames == 1 {
                None
            } else {
                Some(x.index_select(0, &chosen)?)
            };
            let (seen, from) = seen.as_ref().map_or((x, tap), |seen| (seen, 0));
            sum = Some(self.tap_at(&here, tap, (seen, from), places, shape, sum)?);
        }
        sum.ok_or_else(|| TensorError::invalid(OP, "a kernel without taps"))
    }

    /// Outputs where the frames have cells, with zeros around them.
    fn everywhere(&self) -> Places {
        let [_, kh, kw] = self.kernel;
        Places {
            stride: 1,
            zeros: (kh / 2, kw / 2),
        }
    }

    /// The frames' sizes, if the layer can see them.
    fn check(&self, x: &Tensor) -> Result<[usize; 4]> {
        let sizes = x.dims4()?;
        let [_, h, w, c] = sizes;
        if c != self.in_channels() {
            let [time, height, width] = self.kernel;
            let weight = [self.out_channels(), self.in_channels(), time, height, width];
            return Err(TensorError::mismatch(OP, x.shape(), &weight));
        }
        if h == 0 || w == 0 {
            return Err(TensorError::invalid(OP, "frames without pixels"));
        }
        Ok(sizes)
    }

    /// All outputs on a GPU, of the taps from `first` on: every `stride`-th, with so many frames of zeros before.
    fn on_gpu(
        &self,
        here: &Contents,
        frames: &Tensor,
        first: usize,
        (stride, zeros): (usize, usize),
        (places, add): (Places, Option<&Tensor>),
        shape: [usize; 4],
    ) -> Result<Tensor> {
        let [count, h, w, channels] = frames.dims4()?;
        let [time, kh, kw] = self.kernel;
        let window = Window {
            frames: count,
            size: (h, w),
            enlarged: (h, w),
            channels,
            out: [shape[0], shape[1], shape[2]],
            kernel: [time - first, kh, kw],
            time_stride: stride,
            stride: places.stride,
            time_before: zeros as i32,
            above: places.zeros.0,
            left: places.zeros.1,
        };
        let taps: Vec<&dyn GpuWeight> = (first..time)
            .map(|tap| here.gpu(tap))
            .collect::<Result<_>>()?;
        let bias = self.biased.then(|| here.gpu(time)?.floats()).transpose()?;
        let after = After {
            add,
            ..After::default()
        };
        let y = with_gpu_finish(OP, frames, &shape, 1, bias, after, |x, finish| {
            x.device()
                .conv(&taps, x, window, Treatment::default(), finish)
        })?;
        Ok(Tensor::from_gpu(shape, y))
    }

    /// Some outputs, of the taps from `first` on. `known` frames stand before that of output 0.
    fn outputs(
        &self,
        here: &Contents,
        frames: &Tensor,
        known: usize,
        outputs: Range<usize>,
        first: usize,
        add: Option<Tensor>,
    ) -> Result<Tensor> {
        let [_, h, w, _] = frames.dims4()?;
        let shape = [outputs.len(), h, w, self.out_channels()];
        let mut sum = add;
        for tap in first..self.kernel[0] {
            let from = outputs.start + known + tap - self.reach();
            sum = Some(self.tap(here, tap, frames, from, shape, sum)?);
        }
        sum.ok_or_else(|| TensorError::invalid(OP, "a kernel without taps"))
    }

    /// One time tap over the frames from `from` on, added to `sum`. The last tap, which no sum lacks, brings the bias.
    fn tap(
        &self,
        here: &Contents,
        tap: usize,
        frames: &Tensor,
        from: usize,
        shape: [usize; 4],
        sum: Option<Tensor>,
    ) -> Result<Tensor> {
        self.tap_at(here, tap, (frames, from), self.everywhere(), shape, sum)
    }

    /// The same for outputs at other places.
    fn tap_at(
        &self,
        here: &Contents,
        tap: usize,
        (frames, from): (&Tensor, usize),
        places: Places,
        shape: [usize; 4],
        sum: Option<Tensor>,
    ) -> Result<Tensor> {
        let [_, h, w, _] = frames.dims4()?;
        let count = shape[0];
        let [_, kh, kw] = self.kernel;
        let frame = h * w * self.in_channels();
        match frames.device() {
            Device::Gpu(_) => crate::gpu::has_its_own_way(),
            Device::Cpu | Device::Sim(_) => {
                let weight: &Weight = &*here.packed(tap)?;
                let last = tap + 1 == self.kernel[0];
                let bias = (self.biased && last).then(|| here.channels(self.kernel[0]));
                let bias = bias.transpose()?;
                let picture = Picture {
                    data: &frames.values()[from * frame..][..count * frame],
                    batch: count,
                    size: (h, w),
                    channels: self.in_channels(),
                    enlarged: (h, w),
                    kernel: (kh, kw),
                    stride: places.stride,
                    before: places.zeros,
                    behind: places.zeros,
                };
                if let Some(mut sum) = sum {
                    product::conv_onto(weight, &picture, &shape, bias, sum.values_mut()?)?;
                    return Ok(sum);
                }
                let room = frames.room_for(&shape)?;
                let values = product::conv(weight, &picture, &shape, &Finish::plain(bias))?;
                Ok(Tensor::kept(shape, room, values))
            }
        }
    }
}

/// The last `count` frames of a list.
fn last_frames(list: &[Tensor], count: usize) -> Result<Vec<Tensor>> {
    let mut missing = count;
    let mut found = Vec::new();
    for one in list.iter().rev() {
        let here = one.shape()[0];
        let taken = missing.min(here);
        if taken > 0 {
            found.push(one.narrow(0, here - taken, taken)?);
        }
        missing -= taken;
    }
    found.reverse();
    Ok(found)
}

/// Sizes of kernels that can be used.
fn kernels(shape: &[usize]) -> Result<(MatrixSize, [usize; 3])> {
    let [out, channels, time, height, width] = match *shape {
        [out, channels, height, width] => [out, channels, 1, height, width],
        [out, channels, time, height, width] => [out, channels, time, height, width],
        _ => return Err(TensorError::rank(OP, "4 or 5", shape)),
    };
    if shape.contains(&0) || height % 2 == 0 || width % 2 == 0 {
        return Err(TensorError::invalid(
            OP,
            format!("a weight of shape {shape:?}"),
        ));
    }
    let size = MatrixSize::new(out, channels, height * width);
    Ok((size, [time, height, width]))
}

/// The kernel of each time tap. Formats whose blocks reach over several taps become f32.
fn taps(weight: &Stored, [time, height, width]: [usize; 3]) -> Result<Vec<Stored>> {
    let whole = if weight.dtype().is_block() {
        Stored::from_f32(&weight.to_f32()?, Dtype::F32)?
    } else {
        weight.clone()
    };
    let shape = [weight.shape()[0], weight.shape()[1], height, width];
    if time == 1 {
        return Ok(vec![whole.reshape(shape)?]);
    }
    let cells = height * width;
    if let Some(taps) = whole.unread_planes(time * cells, time, &shape) {
        return Ok(taps);
    }
    let plane = cells * whole.dtype().size();
    let _claim = crate::room::claim(whole.bytes().len() as u64)?;
    (0..time)
        .map(|tap| {
            let mut bytes = Vec::with_capacity(whole.bytes().len() / time);
            for pair in whole.bytes().chunks_exact(time * plane) {
                bytes.extend_from_slice(&pair[tap * plane..][..plane]);
            }
            Stored::new(whole.dtype(), shape, bytes)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic;

    fn layer(kernel: [usize; 3]) -> (Conv3d, Tensor, Tensor) {
        let [t, h, w] = kernel;
        let weight = synthetic::weight("a.weight", &[5, 3, t, h, w]).unwrap();
        let bias = synthetic::weight("a.bias", &[5]).unwrap();
        let conv = Conv3d::new(&Stored::from(&weight), Some(&Stored::from(&bias))).unwrap();
        (conv, weight, bias)
    }

    /// By the definition.
    fn expected(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Tensor {
        let [t, h, w, c] = x.dims4().unwrap();
        let [out, _, kt, kh, kw] = <[usize; 5]>::try_from(weight.shape()).unwrap();
        Tensor::from_fn([t, h, w, out], |i| {
            let (o, px, py, pt) = (i % out, i / out % w, i / (out * w) % h, i / (out * w * h));
            let mut sum = f64::from(bias.data()[o]);
            for k in 0..kt * kh * kw * c {
                let (channel, dx, dy, dt) =
                    (k % c, k / c % kw, k / (c * kw) % kh, k / (c * kw * kh));
                let place = |p: usize, d: usize, k: usize, n: usize| {
                    (p + d).checked_sub(k).filter(|&at| at < n)
                };
                let at = (
                    place(pt, dt, kt - 1, t),
                    place(py, dy, kh / 2, h),
                    place(px, dx, kw / 2, w),
                );
                if let (Some(ft), Some(fy), Some(fx)) = at {
                    let v = x.data()[((ft * h + fy) * w + fx) * c + channel];
                    let k = weight.data()[(((o * c + channel) * kt + dt) * kh + dy) * kw + dx];
                    sum += f64::from(v) * f64::from(k);
                }
            }
            sum as f32
        })
        .unwrap()
    }

    fn near(a: &Tensor, b: &Tensor) {
        assert_eq!(a.shape(), b.shape());
        for (x, y) in a.data().iter().zip(b.data()) {
            assert!((x - y).abs() < 1e-5, "{x} {y}");
        }
    }

    #[test]
    fn frames_see_those_before() {
        for kernel in [[3, 3, 3], [3, 1, 1], [1, 1, 1], [2, 3, 1]] {
            let (conv, weight, bias) = layer(kernel);
            for t in [1, 2, 3, 6] {
                let x = synthetic::value("x", &[t, 4, 5, 3], 1.0).unwrap();
                let whole = expected(&x, &weight, &bias);
                near(&conv.forward(&x, &[], None).unwrap(), &whole);
                let add = synthetic::value("add", whole.shape(), 1.0).unwrap();
                let sum = conv.forward(&x, &[], Some(add.clone())).unwrap();
                near(&sum, &whole.add(&add).unwrap());
            }
            let back = conv.weight().unwrap();
            assert_eq!(back.to_f32().unwrap(), weight);
            assert_eq!(conv.bias().unwrap().unwrap().to_f32().unwrap(), bias);
        }
    }

    #[test]
    fn pieces_make_the_whole() {
        let (conv, weight, bias) = layer([3, 3, 3]);
        let x = synthetic::value("x", &[7, 4, 5, 3], 1.0).unwrap();
        let whole = expected(&x, &weight, &bias);
        for cuts in [
            vec![1, 4, 2],
            vec![1, 1, 1, 4],
            vec![2, 5],
            vec![1; 7],
            vec![3, 1, 3],
        ] {
            let (mut at, mut before, mut parts) = (0, Vec::new(), Vec::new());
            for len in cuts {
                let part = x.narrow(0, at, len).unwrap();
                parts.push(conv.forward(&part, &before, None).unwrap());
                before.push(part);
                at += len;
            }
            near(
                &Tensor::cat(&parts.iter().collect::<Vec<_>>(), 0).unwrap(),
                &whole,
            );
        }
    }

    #[test]
    fn a_frame_may_be_begun_before_it_is_there() {
        let (conv, ..) = layer([3, 3, 3]);
        let frames: Vec<Tensor> = (0..4)
            .map(|i| synthetic::value(&format!("x{i}"), &[1, 4, 5, 3], 1.0).unwrap())
            .collect();
        let add = synthetic::value("add", &[1, 4, 5, 5], 1.0).unwrap();
        for known in 0..4 {
            let (before, x) = (&frames[..known], &frames[known]);
            for add in [None, Some(add.clone())] {
                let whole = conv.forward(x, before, add.clone()).unwrap();
                let sum = conv.begun(before, add).unwrap();
                assert_eq!(conv.ended(x, sum).unwrap(), whole);
            }
        }
        let two = Tensor::zeros([2, 4, 5, 3]).unwrap();
        assert!(conv.ended(&two, None).is_err() && conv.begun(&[two], None).is_err());
        assert!(conv.ended(&frames[0], Some(frames[0].clone())).is_err());
    }

    #[test]
    fn strides_see_frames_ahead() {
        let (conv, weight, bias) = layer([3, 1, 1]);
        let x = synthetic::value("x", &[7, 2, 2, 3], 1.0).unwrap();
        let all = expected(&x, &weight, &bias);
        let strided = conv.strided(&x, 2).unwrap();
        near(&strided, &all.index_select(0, &[2, 4, 6]).unwrap());
        let few = conv.strided(&x.narrow(0, 0, 2).unwrap(), 2).unwrap();
        assert_eq!(few.shape(), [0, 2, 2, 5]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let weight = |shape: &[usize]| Stored::from(&Tensor::zeros(shape).unwrap());
        assert!(Conv3d::new(&weight(&[2, 2, 3]), None).is_err());
        assert!(Conv3d::new(&weight(&[2, 2, 3, 2, 3]), None).is_err());
        assert!(Conv3d::new(&weight(&[2, 2, 3, 3, 3]), Some(&weight(&[3]))).is_err());
        let (conv, ..) = layer([3, 3, 3]);
        let x = Tensor::zeros([1, 2, 2, 4]).unwrap();
        assert!(conv.forward(&x, &[], None).is_err());
        let x = Tensor::zeros([1, 2, 2, 3]).unwrap();
        assert!(conv.forward(&x, &[], Some(x.clone())).is_err());
        let other = Tensor::zeros([2, 3, 2, 3]).unwrap();
        assert!(conv.forward(&x, &[other], None).is_err());
    }
}
