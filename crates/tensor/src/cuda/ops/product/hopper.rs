//! Products on Hopper: what its kernels are told, and those with several weights or inputs, which only they take.

use super::super::plan::{
    self, Boxes, Cut, HOPPER, HOPPER_BYTES, HOPPER_GEGLU, HOPPER_GEGLU_BYTES, HOPPER_ONCE,
    HOPPER_WIDE, Offers, TileCost, Work,
};
use super::super::weights::{self, Elements, Operand};
use super::{Behind, More, Other, Product, Treatment, Window, has_tensor_cores};
use crate::cuda::{
    Address, Args, CudaValue, Format, GpuBuffer, OnCard, Spread, TensorMapSpec, cuda_value,
};
use crate::error::Result;
use crate::gpu::{Finish, WeightWithBias};
use crate::nn::Act;

/// Channels whose mean and spread are told together: as in staged.cuh.
pub(crate) const UNIT: usize = 10;

/// Steps of 64 channels along K of tiles that are made by turns.
const MOST_STEPS_BY_TURNS: usize = 60;

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
        Ok(Other {
            weight: Elements::Kept(cuda_value(*weight)?, format),
            bias: *bias,
            out: device.buffer(rows * shape.out, format)?,
        })
    });
    let others: Vec<Other<'_>> = others.collect::<Result<_>>()?;
    Product {
        device,
        format,
        x: x.address(),
        weight: &Elements::Kept(first.0, format),
        window,
        columns: shape.out,
        geglu: false,
        doubled: false,
        finish: Finish {
            bias: first.1,
            ..Finish::default()
        },
        bytes: None,
        behind: None,
        others: &others,
        more: None,
    }
    .start_hopper(&out)?;
    let others = others.into_iter().map(|other| other.out);
    Ok(Some(std::iter::once(out).chain(others).collect()))
}

/// A product whose last channels are elsewhere.
pub(super) fn of_two(
    weight: &CudaValue,
    (x, behind): (&GpuBuffer, Behind<'_>),
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
        device,
        format,
        x: x.address(),
        weight: &elements,
        window,
        columns: shape.out,
        geglu: false,
        doubled: false,
        finish,
        bytes: None,
        behind: Some(behind),
        others: &[],
        more: None,
    }
    .start_hopper(&out)?;
    Ok(Some(out))
}

/// A convolution of stride 1 whose result has the size of its input, and a layer of single pixels beside it, in one pass. None where no kernel does that.
pub(crate) fn conv_and_more(
    weight: &CudaValue,
    x: &GpuBuffer,
    window: Window,
    finish: Finish<'_>,
    more: More<'_>,
) -> Result<Option<GpuBuffer>> {
    let (device, format) = (x.card(), x.format());
    let beside_weight = cuda_value(more.weight)?;
    let (shape, beside) = (weights::shape(weight)?, weights::shape(beside_weight)?);
    let rows = window.out_rows();
    let behind = more.behind.map_or(0, GpuBuffer::len);
    if rows == 0 || shape.out == 0 {
        return Ok(None);
    }
    let (early, late) = (more.x.len() / rows, behind / rows);
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
    Product {
        device,
        format,
        x: x.address(),
        weight: &Elements::Kept(weight, format),
        window,
        columns: shape.out,
        geglu: false,
        doubled: false,
        finish,
        bytes: None,
        behind: None,
        others: &[],
        more: Some(more),
    }
    .start_hopper(&out)?;
    Ok(Some(out))
}

impl Product<'_> {
    /// Channels of the layer beside it, of both its inputs.
    pub(super) fn more_channels(&self) -> usize {
        let [early, late] = self.more_parts();
        early + late
    }

    /// Those of its first input, and those behind.
    fn more_parts(&self) -> [usize; 2] {
        let rows = self.rows().max(1);
        self.more.map_or([0; 2], |more| {
            [
                more.x.len() / rows,
                more.behind.map_or(0, GpuBuffer::len) / rows,
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
        let [early, late] = self.more_parts();
        let more_steps = early.div_ceil(64) + late.div_ceil(64);
        let steps = w.taps() * w.channels.div_ceil(64) + more_steps;
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
        let offers = Offers {
            loops: costs,
            once: if plain { &HOPPER_ONCE } else { &[] },
        };
        let cut = plan::cut(offers, row_tiles, self.columns, steps, slots);
        let sums = self.sums(&cut)?;
        let turns = self.takes_turns(&cut, &boxes, steps);
        let (name, shared) = self.instance(&cut, turns);
        let input = self.device.tensor_map(&self.input_map(&boxes).spec())?;
        // What lies behind, or the first input of the layer beside it.
        let behind = self.behind_map();
        let beside = self
            .more
            .map(|more| self.pixels_map(more.x.address(), (early, 64), &boxes));
        let behind = behind
            .or(beside)
            .map(|map| self.device.tensor_map(&map.spec()));
        let args = Args::new()
            .map(&input)
            .map(&behind.transpose()?.unwrap_or(input));
        let args = self.weight_maps(args, cut.width, &boxes)?;
        let args = if turns {
            self.result_maps(args, out, &boxes)?
        } else {
            args
        };
        let args = self.after(args, out).int(self.columns as i32);
        let args = boxes.arguments(args);
        let args = [
            w.channels,
            w.kernel[0],
            w.kernel[1],
            w.kernel[2],
            w.time_stride,
            w.stride - 1,
        ]
        .iter()
        .fold(args, |args, &n| args.int(n as i32))
        .int(w.time_before)
        .int(w.above as i32)
        .int(w.left as i32)
        .int(self.behind.map_or(i32::MAX, |behind| {
            ((w.channels - behind.columns) / 64) as i32
        }))
        .int(more_steps as i32)
        .int(early.div_ceil(64) as i32);
        let spread = self.spread(&cut, &boxes)?;
        let known = spread.as_ref().map(|spread| &spread.numbers);
        let args = Self::cut_arguments(args, &cut, sums.as_ref().or(known));
        let (module, args) = match self.bytes.map(|by| by.operand) {
            None if turns => ("product_turns", self.others(args, cut.width)),
            None => ("product_hopper", self.others(args, cut.width)),
            Some(Operand::E4m3) => ("product_e4m3", self.scales(args)),
            Some(Operand::E5m2) => ("product_e5m2", self.scales(args)),
            Some(Operand::Whole(_)) => ("product_s8", self.scales(args)),
        };
        let blocks = match cut.work {
            Work::Loop => cut.blocks().min(slots),
            Work::Once(_) => cut.blocks(),
        };
        let grid = [blocks as u32, 1, 1];
        let kernel = self.kernel(module, name);
        self.tell_work();
        self.device.launch(kernel, grid, 384, shared, &args)?;
        if let Some(spread) = spread {
            out.set_spread(spread);
        }
        self.add_parts(&cut, boxes, 16, sums.as_ref(), out)
    }

    /// Room for what a group norm wants to know of the result, where blocks of one tile can tell: of whole tiles, each of pixels of one picture.
    fn spread(&self, cut: &Cut, boxes: &Boxes) -> Result<Option<Spread>> {
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
        Ok(Some(Spread {
            numbers: self.device.scratch(8 * numbers)?,
            channels: self.columns,
            shares,
        }))
    }

    /// Whether tiles are made by turns: where there are many, and nothing but sums after them. In long sums the ends of tiles hardly count,
    /// and more stages help.
    fn takes_turns(&self, cut: &Cut, boxes: &Boxes, steps: usize) -> bool {
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

    /// The kernel for tiles, and the shared memory that it needs.
    fn instance(&self, cut: &Cut, turns: bool) -> (&'static str, u32) {
        if turns {
            let (name, stages, columns) = if self.geglu {
                ("turns_geglu_160", 5, 80)
            } else {
                ("turns_160", 4, 160)
            };
            // Two tiles of results, the barriers, and what is lost until a multiple of 1024.
            let ring = stages * (16384 + 160 * 128) + 16 * stages;
            return (name, ring + 2 * 256 * columns + 32 + 1024);
        }
        let (name, stages) = match (cut.work, cut.width) {
            (Work::Loop, 128) if self.geglu => ("geglu_128", 6),
            (Work::Loop, _) if self.geglu => ("geglu_256", 4),
            (Work::Loop, 64) => ("product_64", 8),
            (Work::Loop, 128) => ("product_128", 6),
            (Work::Loop, 160) => ("product_160", 5),
            (Work::Loop, _) => ("product_256", 4),
            (Work::Once(1), 64) => ("product_64_once", 8),
            (Work::Once(1), 80) => ("product_80_once", 6),
            (Work::Once(1), _) => ("product_160_once", 5),
            (Work::Once(2), 64) => ("product_64_of_2", 8),
            (Work::Once(_), 64) => ("product_64_of_5", 8),
            (Work::Once(_), 80) => ("product_80_of_2", 6),
            (Work::Once(2), _) => ("product_160_of_2", 5),
            (Work::Once(_), _) => ("product_160_of_3", 5),
        };
        let width = cut.width as u32;
        let ring = stages * (16384 + width * 128) + 16 * stages + 1024;
        // What is added to columns, and residuals of the rows of a block; sums of the rows of a tile take the place of its stages.
        let added = match cut.work {
            Work::Loop => 0,
            Work::Once(shares) => 2 * width * 4 + 128_u32.div_ceil(shares as u32) * width * 2,
        };
        (name, ring + added)
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
            address: behind.address(),
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
    fn weight_maps(&self, args: Args, width: usize, boxes: &Boxes) -> Result<Args> {
        let first = self.weight_map(self.weight.address(), width);
        let first = self.device.tensor_map(&first.spec())?;
        if let Some(more) = self.more {
            let [early, late] = self.more_parts();
            let depth = (early + late) as u64;
            let weight = Map {
                address: cuda_value(more.weight)?.address(),
                format: self.format,
                sizes: [depth, self.columns as u64],
                strides: [2 * depth, 0],
                part: [64, width as u32 / 2],
            };
            let weight = self.device.tensor_map(&weight.spec())?;
            let behind = more
                .behind
                .map(|behind| self.pixels_map(behind.address(), (late, 64), boxes));
            let behind = behind.map(|map| self.device.tensor_map(&map.spec()));
            let behind = behind.transpose()?.unwrap_or(first);
            return Ok(args.map(&first).map(&weight).map(&behind));
        }
        (0..2).try_fold(args.map(&first), |args, at| {
            let Some(other) = self.others.get(at) else {
                return Ok(args.map(&first));
            };
            let map = self.weight_map(other.weight.address(), width);
            Ok(args.map(&self.device.tensor_map(&map.spec())?))
        })
    }

    /// Descriptions of the three results that `product_turns.cu` may be told, and of what is added to the first, in pieces of columns as it has
    /// them; the first result in place of those that are not there.
    fn result_maps(&self, args: Args, out: &GpuBuffer, boxes: &Boxes) -> Result<Args> {
        let (columns, wide) = if self.geglu {
            (self.columns / 2, 16)
        } else {
            (self.columns, 32)
        };
        let map = |address: u64| self.pixels_map(address, (columns, wide), boxes);
        let other = |at: usize| self.others.get(at).map(|other| other.out.address());
        let residual = self.finish.residual.map(Address::address);
        [None, other(0), other(1), residual]
            .into_iter()
            .try_fold(args, |args, address| {
                let map = map(address.unwrap_or(out.address()));
                Ok(args.map(&self.device.tensor_map(&map.spec())?))
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
