//! Products on Hopper: what its kernels are told, and those with several weights or inputs, which only they take.

use super::super::plan::{self, Boxes, KernelCosts, TilePlan, Work};
use super::super::weights::{self, Elements, Operand};
use super::{
    OtherWeight, Product, SkipLayer, TrailingColumns, Treatment, Window, has_tensor_cores,
};
use crate::cuda::driver::TensorMap;
use crate::cuda::launches::product_hopper::{
    ByteProduct, ByteProductKernel, ByteProductModule, Product as HopperProduct, ProductKernel,
};
use crate::cuda::launches::product_turns::{Turns, TurnsKernel};
use crate::cuda::launches::{ProductMaps, ResultMaps, StepWindow};
use crate::cuda::tuned::{
    HOPPER, HOPPER_BYTES, HOPPER_GEGLU, HOPPER_GEGLU_BYTES, HOPPER_ONCE, HOPPER_WIDE,
    MOST_STEPS_BY_TURNS, TileCost,
};
use crate::cuda::{
    Address, CudaValue, Format, GpuBuffer, OnCard, Scratch, Shape, SideResult, TensorMapSpec,
    cuda_value,
};
use crate::error::Result;
use crate::gpu::{Finish, WeightWithBias};
use crate::nn::Act;

/// Channels that have one sum and one sum of squares: as in staged.cuh.
pub(crate) const UNIT: usize = 10;

/// Sums of the channels of a picture and of their squares, as the product that made it left them for a group norm.
#[derive(Clone, Copy)]
pub(crate) struct ChannelSums<'a> {
    pub(crate) numbers: &'a Scratch,
    /// Channels of a pixel.
    pub(crate) channels: usize,
    /// In how many parts the pixels of a tile are cut.
    pub(crate) shares: usize,
}

impl<'a> ChannelSums<'a> {
    pub(crate) fn of(buffer: &'a GpuBuffer) -> Option<Self> {
        let SideResult { numbers, sizes } = buffer.side_result()?;
        let [channels, shares] = *sizes;
        Some(Self {
            numbers,
            channels,
            shares,
        })
    }
}

/// The rows of an input times each of several weights of one size, in one pass. None where no kernel does that.
pub(crate) fn each(
    weights: &[WeightWithBias<'_>],
    x: &GpuBuffer,
    rows: usize,
) -> Result<Option<Vec<GpuBuffer>>> {
    let (device, format) = (x.card(), x.format());
    let Some((first, rest)) = weights.split_first() else {
        return Ok(None);
    };
    let first = (cuda_value(first.0)?, first.1);
    let shape = weights::shape(first.0)?;
    let mut fits = device.hopper() && has_tensor_cores(device, format) && rest.len() <= 2;
    for (weight, _) in weights {
        let weight = cuda_value(*weight)?;
        let placed = weights::in_place(weight)? == Some(format);
        fits &= placed && weights::shape(weight)? == shape && shape.taps == 1;
    }
    let window = Window::rows(rows, shape.channels);
    let whole = shape.channels.is_multiple_of(8) && shape.out.is_multiple_of(8);
    if !fits || !whole || rows == 0 {
        return Ok(None);
    }
    super::check(&window, x, shape.out, shape.channels)?;
    let out = device.buffer(rows * shape.out, format)?;
    let others = rest.iter().map(|(weight, bias)| {
        Ok(OtherWeight {
            weight: Elements::Kept(cuda_value(*weight)?, format),
            bias: *bias,
            out: device.buffer(rows * shape.out, format)?,
        })
    });
    let others: Vec<OtherWeight<'_>> = others.collect::<Result<_>>()?;
    let weight = Elements::Kept(first.0, format);
    let finish = Finish {
        bias: first.1,
        ..Finish::default()
    };
    Product {
        others: &others,
        ..Product::of(x, (&weight, shape.out), window, finish)
    }
    .start_hopper(&out)?;
    let others = others.into_iter().map(|other| other.out);
    Ok(Some(std::iter::once(out).chain(others).collect()))
}

/// A product whose last channels are elsewhere.
pub(super) fn of_two(
    weight: &CudaValue,
    (x, behind): (&GpuBuffer, TrailingColumns<'_>),
    window: Window,
    treatment: Treatment<'_>,
    finish: Finish<'_>,
) -> Result<Option<GpuBuffer>> {
    let (device, format) = (x.card(), x.format());
    let shape = weights::shape(weight)?;
    let (rows, channels) = (window.out_rows(), window.channels);
    let early = channels - behind.columns.min(channels);
    let whole = early.is_multiple_of(64)
        && [behind.columns, behind.row, behind.first, shape.out]
            .iter()
            .all(|n| n.is_multiple_of(8));
    let fits = device.hopper()
        && has_tensor_cores(device, format)
        && treatment.scale.is_none()
        && weights::rotation(weight) == 0
        && (treatment.exact || weights::input_levels(weight).is_none())
        && (x.len(), behind.wide.format()) == (rows * early, format);
    if !whole || !fits || rows == 0 || early == 0 {
        return Ok(None);
    }
    let elements = weights::elements(weight, format, channels)?;
    let out = device.buffer(rows * shape.out, format)?;
    Product {
        behind: Some(behind),
        ..Product::of(x, (&elements, shape.out), window, finish)
    }
    .start_hopper(&out)?;
    Ok(Some(out))
}

/// A convolution of stride 1 whose result has the size of its input, and a layer of single pixels beside it, in one pass. None where no kernel does that.
pub(crate) fn conv_with_skip(
    weight: &CudaValue,
    x: &GpuBuffer,
    window: Window,
    finish: Finish<'_>,
    skip: SkipLayer<'_>,
) -> Result<Option<GpuBuffer>> {
    let (device, format) = (x.card(), x.format());
    let beside_weight = cuda_value(skip.weight)?;
    let (shape, beside) = (weights::shape(weight)?, weights::shape(beside_weight)?);
    let rows = window.out_rows();
    let behind = skip.behind.map_or(0, GpuBuffer::len);
    if rows == 0 || shape.out == 0 {
        return Ok(None);
    }
    let (early, late) = (skip.x.len() / rows, behind / rows);
    let simple = (window.stride, window.time_stride, window.time_before) == (1, 1, 0)
        && (window.kernel[0], window.enlarged) == (1, window.size)
        && window.out == [window.frames, window.size.0, window.size.1]
        && !window.is_plain();
    let placed = weights::in_place(weight)? == Some(format)
        && weights::in_place(beside_weight)? == Some(format)
        && (beside.taps, beside.out, beside.channels) == (1, shape.out, early + late);
    let whole = (late == 0 || early.is_multiple_of(64))
        && [early, late, shape.out, shape.channels]
            .iter()
            .all(|n| n.is_multiple_of(8));
    let fits = device.hopper() && has_tensor_cores(device, format);
    if !simple || !placed || !whole || !fits || early == 0 || window.channels != shape.channels {
        return Ok(None);
    }
    super::check(&window, x, shape.out, shape.channels)?;
    let out = device.buffer(rows * shape.out, format)?;
    let weight = Elements::Kept(weight, format);
    Product {
        skip: Some(skip),
        ..Product::of(x, (&weight, shape.out), window, finish)
    }
    .start_hopper(&out)?;
    Ok(Some(out))
}

impl Product<'_> {
    /// Channels of the layer beside it, of both its inputs.
    pub(super) fn skip_channels(&self) -> usize {
        let [early, late] = self.skip_parts();
        early + late
    }

    /// Those of its first input, and those behind.
    fn skip_parts(&self) -> [usize; 2] {
        let rows = self.rows().max(1);
        self.skip.map_or([0; 2], |skip| {
            [
                skip.x.len() / rows,
                skip.behind.map_or(0, GpuBuffer::len) / rows,
            ]
        })
    }

    /// Starts it, with the results of other weights beside it.
    pub(super) fn start_hopper(&self, out: &GpuBuffer) -> Result<()> {
        let w = &self.window;
        let boxes = if w.is_plain() {
            Boxes::rows(self.rows())
        } else {
            Boxes::pictures(w.out, w.time_stride == 1)
        };
        let boxes = if self.doubled { boxes.doubled() } else { boxes };
        let [early, late] = self.skip_parts();
        let skip_steps = early.div_ceil(64) + late.div_ceil(64);
        let steps = w.taps() * w.channels.div_ceil(64) + skip_steps;
        let costs: &[TileCost] = match (self.geglu, self.columns % 8) {
            (true, _) if self.bytes.is_some() || !self.columns.is_multiple_of(16) => {
                &HOPPER_GEGLU_BYTES
            }
            (true, _) => &HOPPER_GEGLU,
            (false, 0) if self.finish.act_from > 0 => &HOPPER_WIDE,
            (false, 0) if self.bytes.is_some() => &HOPPER_BYTES,
            (false, 0) => &HOPPER,
            // Only the narrowest tiles can write rows that are no multiple of 16 bytes.
            (false, _) => &HOPPER[..1],
        };
        let slots = self.device.multiprocessors() as usize;
        // Other weights are more tiles of rows to the plan; they are more columns to the kernel.
        let row_tiles = boxes.tiles() * (1 + self.others.len());
        // Their ends are written for halves, and for one value of each output.
        let plain = !self.geglu && self.bytes.is_none() && self.finish.act_from == 0;
        let offers = KernelCosts {
            loops: costs,
            once: if plain { &HOPPER_ONCE } else { &[] },
        };
        let cut = plan::cut(offers, row_tiles, self.columns, steps, slots);
        let sums = self.sums(&cut)?;
        let turns = self.takes_turns(&cut, &boxes, steps);
        let input = self.device.tensor_map(&self.input_map(&boxes).spec())?;
        // What lies behind, or the first input of the layer beside it.
        let behind = self.behind_map();
        let beside = self
            .skip
            .map(|skip| self.pixels_map(skip.x.address(), (early, 64), &boxes));
        let behind = behind
            .or(beside)
            .map(|map| self.device.tensor_map(&map.spec()));
        let [tb, tb1, tb2] = self.weight_maps(cut.width, &boxes)?;
        let product_maps = ProductMaps {
            ta: input,
            ta1: behind.transpose()?.unwrap_or(input),
            tb,
            tb1,
            tb2,
        };
        let [time, height, width] = w.kernel.map(|n| n as i32);
        let step_window = StepWindow {
            channels: w.channels as i32,
            time,
            height,
            width,
            time_stride: w.time_stride as i32,
            shift: (w.stride - 1) as i32,
            time_before: w.time_before,
            above: w.above as i32,
            left: w.left as i32,
            split: self.behind.map_or(i32::MAX, |behind| {
                ((w.channels - behind.columns) / 64) as i32
            }),
            more: skip_steps as i32,
            more_split: early.div_ceil(64) as i32,
        };
        let channel_sums = self.channel_sums(&cut, &boxes)?;
        let known = channel_sums.as_ref().map(|sums| &sums.numbers);
        let product_parts = Self::parts(&cut, sums.as_ref().or(known));
        let (after_product, n) = (self.after(out), self.columns as i32);
        let pixel_boxes = boxes.parameters();
        let blocks = match cut.work {
            Work::Loop => cut.blocks().min(slots),
            Work::Once(_) => cut.blocks(),
        };
        let shape = Shape::row(blocks as u32, 384);
        self.tell_work();
        if let Some(bytes) = self.bytes {
            let (kernel, stages) = byte_kernel(self.geglu, cut.width);
            let product = ByteProduct {
                module: match bytes.operand {
                    Operand::E4m3 => ByteProductModule::ProductE4m3,
                    Operand::E5m2 => ByteProductModule::ProductE5m2,
                    Operand::Whole(_) => ByteProductModule::ProductS8,
                },
                kernel,
                maps: product_maps,
                after: after_product,
                n,
                boxes: pixel_boxes,
                window: step_window,
                cut: product_parts,
                scales: self.scales(),
            };
            let shape = shape.with_shared(shared(stages, &cut));
            self.device.launch(self.format, shape, product)?;
        } else if turns {
            let (kernel, shared) = self.turns_kernel();
            let product = Turns {
                kernel,
                maps: product_maps,
                results: self.result_maps(out, &boxes)?,
                after: after_product,
                n,
                boxes: pixel_boxes,
                window: step_window,
                cut: product_parts,
                others: self.other_results(cut.width),
            };
            let shape = shape.with_shared(shared);
            self.device.launch(self.format, shape, product)?;
        } else {
            let (kernel, stages) = self.product_kernel(&cut);
            let product = HopperProduct {
                kernel,
                maps: product_maps,
                after: after_product,
                n,
                boxes: pixel_boxes,
                window: step_window,
                cut: product_parts,
                others: self.other_results(cut.width),
            };
            let shape = shape.with_shared(shared(stages, &cut));
            self.device.launch(self.format, shape, product)?;
        }
        if let Some(sums) = channel_sums {
            out.set_side_result(sums);
        }
        self.add_parts(&cut, boxes, 16, sums.as_ref(), out)
    }

    /// Room for what a group norm wants to know of the result, where blocks of one tile can tell: of whole tiles, each of pixels of one picture.
    fn channel_sums(&self, cut: &TilePlan, boxes: &Boxes) -> Result<Option<SideResult>> {
        let Work::Once(shares) = cut.work else {
            return Ok(None);
        };
        let f = &self.finish;
        let [width, height, _] = boxes.sizes();
        let whole = width.is_multiple_of(1 << boxes.wlog)
            && height.is_multiple_of(1 << boxes.hlog)
            && boxes.deep() == 1
            && !self.doubled
            && self.columns.is_multiple_of(cut.width)
            && cut.width.is_multiple_of(UNIT);
        let plain = f.act == Act::None && f.gate.is_none() && self.others.is_empty();
        if !f.for_norm || !whole || !plain {
            return Ok(None);
        }
        let numbers = boxes.tiles() * shares * (self.columns / UNIT);
        Ok(Some(SideResult {
            numbers: self.device.scratch(8 * numbers)?,
            sizes: [self.columns, shares],
        }))
    }

    /// Whether tiles are made by turns: where there are many, and nothing but sums after them. In long sums the ends of tiles hardly count,
    /// and more stages help.
    fn takes_turns(&self, cut: &TilePlan, boxes: &Boxes, steps: usize) -> bool {
        let f = &self.finish;
        let [width, height, _] = boxes.sizes();
        // A tile has rows of one item then.
        let whole_items = if self.window.is_plain() {
            f.rows_per_item.is_multiple_of(128)
        } else {
            boxes.deep() == 1 && f.rows_per_item.is_multiple_of(width * height)
        };
        let only_sums = f.act == Act::None
            && f.gate.is_none()
            && (f.per_item.is_none() || whole_items)
            && !self.doubled
            && self.columns.is_multiple_of(8);
        let short = steps <= MOST_STEPS_BY_TURNS;
        let many = (cut.work, cut.width) == (Work::Loop, 160) && self.bytes.is_none();
        many && (self.geglu || (only_sums && short))
    }

    /// The kernel for tiles that are made by turns, and the shared memory that it needs.
    fn turns_kernel(&self) -> (TurnsKernel, u32) {
        let (kernel, stages, columns) = if self.geglu {
            (TurnsKernel::TurnsGeglu160, 5, 80)
        } else {
            (TurnsKernel::Turns160, 4, 160)
        };
        // Two tiles of results, the barriers, and what is lost until a multiple of 1024.
        let ring = stages * (16384 + 160 * 128) + 16 * stages;
        (kernel, ring + 2 * 256 * columns + 32 + 1024)
    }

    /// The kernel for other tiles, and the stages of what it reads.
    fn product_kernel(&self, cut: &TilePlan) -> (ProductKernel, u32) {
        match (cut.work, cut.width) {
            (Work::Loop, 128) if self.geglu => (ProductKernel::Geglu128, 6),
            (Work::Loop, _) if self.geglu => (ProductKernel::Geglu256, 4),
            (Work::Loop, 64) => (ProductKernel::Product64, 8),
            (Work::Loop, 128) => (ProductKernel::Product128, 6),
            (Work::Loop, 160) => (ProductKernel::Product160, 5),
            (Work::Loop, _) => (ProductKernel::Product256, 4),
            (Work::Once(1), 64) => (ProductKernel::Product64Once, 8),
            (Work::Once(1), 80) => (ProductKernel::Product80Once, 6),
            (Work::Once(1), _) => (ProductKernel::Product160Once, 5),
            (Work::Once(2), 64) => (ProductKernel::Product64Of2, 8),
            (Work::Once(_), 64) => (ProductKernel::Product64Of5, 8),
            (Work::Once(_), 80) => (ProductKernel::Product80Of2, 6),
            (Work::Once(2), _) => (ProductKernel::Product160Of2, 5),
            (Work::Once(_), _) => (ProductKernel::Product160Of3, 5),
        }
    }

    /// The input as (channels, x, half of y, y, frame): with stride 2 pairs of pixels are one of twice the channels.
    fn input_map(&self, boxes: &Boxes) -> Map<5> {
        let w = &self.window;
        let (height, width, channels) = (w.size.0 as u64, w.size.1 as u64, w.channels as u64);
        let stride = w.stride as u64;
        // Those behind are elsewhere.
        let channels = channels - self.behind.map_or(0, |behind| behind.columns as u64);
        let pixel = 2 * channels;
        let line = width * pixel;
        Map {
            address: self.x,
            format: self.format,
            sizes: [
                channels * stride,
                width / stride,
                stride,
                height / stride,
                w.frames as u64,
            ],
            strides: [pixel * stride, line, line * stride, line * height, 0],
            part: [64, 1 << boxes.wlog, 1, 1 << boxes.hlog, boxes.deep()],
        }
    }

    /// The channels behind, of a matrix.
    fn behind_map(&self) -> Option<Map<5>> {
        let behind = self.behind?;
        let row = 2 * behind.row as u64;
        let all = row * self.rows() as u64;
        Some(Map {
            address: behind.slice().address(),
            format: self.format,
            sizes: [behind.columns as u64, self.rows() as u64, 1, 1, 1],
            strides: [row, all, all, all, 0],
            part: [64, 128, 1, 1, 1],
        })
    }

    /// So many channels of every pixel of the result, of which `wide` are copied at once.
    fn pixels_map(&self, address: u64, (channels, wide): (usize, u32), boxes: &Boxes) -> Map<5> {
        let [width, height, count] = boxes.sizes().map(|n| n as u64);
        let (pixel, line) = (2 * channels as u64, 2 * channels as u64 * width);
        Map {
            address,
            format: self.format,
            sizes: [channels as u64, width, 1, height, count],
            strides: [pixel, line, line, line * height, 0],
            part: [wide, 1 << boxes.wlog, 1, 1 << boxes.hlog, boxes.deep()],
        }
    }

    /// Descriptions of the three weights that a kernel may be told, or of one, that of the layer beside it, and what lies behind the input of that; the first one
    /// in place of those that are not there.
    fn weight_maps(&self, width: usize, boxes: &Boxes) -> Result<[TensorMap; 3]> {
        let first = self.weight_map(self.weight.address(), width);
        let first = self.device.tensor_map(&first.spec())?;
        if let Some(skip) = self.skip {
            let [early, late] = self.skip_parts();
            let depth = (early + late) as u64;
            let weight = Map {
                address: cuda_value(skip.weight)?.address(),
                format: self.format,
                sizes: [depth, self.columns as u64],
                strides: [2 * depth, 0],
                part: [64, width as u32 / 2],
            };
            let weight = self.device.tensor_map(&weight.spec())?;
            let behind = skip
                .behind
                .map(|behind| self.pixels_map(behind.address(), (late, 64), boxes));
            let behind = behind.map(|map| self.device.tensor_map(&map.spec()));
            let behind = behind.transpose()?.unwrap_or(first);
            return Ok([first, weight, behind]);
        }
        let other = |at: usize| {
            self.others.get(at).map_or(Ok(first), |other| {
                let map = self.weight_map(other.weight.address(), width);
                self.device.tensor_map(&map.spec())
            })
        };
        Ok([first, other(0)?, other(1)?])
    }

    /// Descriptions of the three results that `product_turns.cu` may be told, and of what is added to the first, in pieces of columns as it has
    /// them; the first result in place of those that are not there.
    fn result_maps(&self, out: &GpuBuffer, boxes: &Boxes) -> Result<ResultMaps> {
        let (columns, wide) = if self.geglu {
            (self.columns / 2, 16)
        } else {
            (self.columns, 32)
        };
        let map = |buffer: &GpuBuffer| {
            let map = self.pixels_map(buffer.address(), (columns, wide), boxes);
            self.device.tensor_map(&map.spec())
        };
        let other = |at: usize| map(self.others.get(at).map_or(out, |other| &other.out));
        Ok(ResultMaps {
            to: map(out)?,
            to1: other(0)?,
            to2: other(1)?,
            tr: map(self.finish.residual.unwrap_or(out))?,
        })
    }

    /// A weight as (taps * channels, outputs), half of a tile's columns at a time.
    fn weight_map(&self, address: u64, width: usize) -> Map<2> {
        let depth = (self.window.taps() * self.window.channels) as u64;
        Map {
            address,
            format: self.format,
            sizes: [
                depth,
                self.columns as u64 * if self.doubled { 4 } else { 1 },
            ],
            strides: [2 * depth, 0],
            part: [64, width as u32 / 2],
        }
    }
}

/// The kernel for tiles of bytes, and the stages of what it reads.
fn byte_kernel(geglu: bool, width: usize) -> (ByteProductKernel, u32) {
    match (geglu, width) {
        (true, 128) => (ByteProductKernel::Geglu128, 6),
        (true, _) => (ByteProductKernel::Geglu256, 4),
        (false, 128) => (ByteProductKernel::Product128, 6),
        (false, _) => (ByteProductKernel::Product256, 4),
    }
}

/// Shared memory of a kernel for tiles that reads so many stages ahead.
fn shared(stages: u32, cut: &TilePlan) -> u32 {
    let width = cut.width as u32;
    let ring = stages * (16384 + width * 128) + 16 * stages + 1024;
    // What is added to columns, and residuals of the rows of a block; sums of the rows of a tile take the place of its stages.
    let added = match cut.work {
        Work::Loop => 0,
        Work::Once(shares) => 2 * width * 4 + 128_u32.div_ceil(shares as u32) * width * 2,
    };
    ring + added
}

/// What a bulk copy sees; the last stride is not used.
struct Map<const N: usize> {
    address: u64,
    format: Format,
    sizes: [u64; N],
    strides: [u64; N],
    part: [u32; N],
}

impl<const N: usize> Map<N> {
    fn spec(&self) -> TensorMapSpec<'_> {
        TensorMapSpec {
            address: self.address,
            format: self.format,
            sizes: &self.sizes,
            strides: &self.strides[..N - 1],
            part: &self.part,
        }
    }
}
