//! Products and convolutions on a GPU: which kernel, in which tiles.
//!
//! Three kinds of kernels mean the same: `product_hopper` (wgmma and the copy engine), `product_mma` (mma.sync, from 8.0 on) and
//! `product_plain` (no tensor cores: f32, 7.5, odd sizes). A matrix is a picture of one row for all of them.

use std::ops::Deref;

use super::norm::row_norm;
use super::plan::{self, Boxes, Cut};
use super::weights::{self, Elements, Operand, Prepared};
use crate::cuda::{
    Address, Args, CudaDevice, CudaValue, Format, GpuBuffer, Kernel, OnCard, Scratch, cuda_value,
};
use crate::error::{Result, TensorError};
pub(crate) use crate::gpu::{Behind, More, Treatment, Window};
use crate::gpu::{Finish, GpuSlice, GpuWeight, RowNorm};

mod bytes;
mod few;
mod hopper;

use bytes::Input;
pub(crate) use few::few_rows;
pub(crate) use hopper::{UNIT, conv_and_more, each};

const OP: &str = "product";

/// Pixels of a result from which on adding weights costs less than it saves.
const DOUBLED: usize = 8192;

/// Positions of kernels over all pixels, of few channels, that are put together.
const SMALL: usize = 1 << 21;

impl Window {
    /// Rows of a matrix.
    fn rows(rows: usize, channels: usize) -> Self {
        Self {
            frames: 1,
            size: (1, rows),
            enlarged: (1, rows),
            channels,
            out: [1, 1, rows],
            kernel: [1, 1, 1],
            time_stride: 1,
            stride: 1,
            time_before: 0,
            above: 0,
            left: 0,
        }
    }

    fn is_plain(&self) -> bool {
        self.kernel == [1, 1, 1]
            && (self.stride, self.time_stride) == (1, 1)
            && (self.above, self.left, self.time_before) == (0, 0, 0)
            && self.enlarged == self.size
            && self.out == [self.frames, self.size.0, self.size.1]
    }

    /// Whether 3x3 kernels see pairs of equal pixels of a picture of twice the size, and the picture is so large that it is worth adding weights of
    /// equal pixels for each use: less than half of the work then.
    fn is_doubled(&self) -> bool {
        self.enlarged == (2 * self.size.0, 2 * self.size.1)
            && self.kernel == [1, 3, 3]
            && (self.stride, self.time_stride) == (1, 1)
            && (self.above, self.left, self.time_before) == (1, 1, 0)
            && self.out == [self.frames, self.enlarged.0, self.enlarged.1]
            && self.out_rows() >= DOUBLED
    }

    /// Whether kernels of several positions see so few channels that products of each position alone would be of zeros mostly: what they see is put together then.
    fn is_small(&self, padded: usize) -> bool {
        padded <= 8
            && self.taps() > 1
            && (self.kernel[0], self.time_stride, self.time_before) == (1, 1, 0)
            && self.out[0] == self.frames
            && self.enlarged == self.size
            && self.out_rows() * self.taps() <= SMALL
    }

    fn taps(&self) -> usize {
        self.kernel.iter().product()
    }

    fn out_rows(&self) -> usize {
        self.out.iter().product()
    }
}

impl Behind<'_> {
    fn address(&self) -> u64 {
        self.wide.slice_at(self.first).address()
    }
}

/// Where the numbers are that sums of bytes are multiplied with.
#[derive(Clone, Copy)]
struct Scales {
    operand: Operand,
    rows: u64,
    columns: u64,
}

/// A weight of the same size beside the first one of a product, and where its result goes.
struct Other<'a> {
    weight: Elements<'a>,
    bias: Option<GpuSlice<'a>>,
    out: GpuBuffer,
}

/// One product: everything that the kernels are told.
struct Product<'a> {
    device: &'a CudaDevice,
    format: Format,
    x: u64,
    weight: &'a Elements<'a>,
    window: Window,
    /// Rows of the weight.
    columns: usize,
    geglu: bool,
    /// Whether the weight has four kernels for the four pixels over each of the input.
    doubled: bool,
    finish: Finish<'a>,
    /// Whether both operands are bytes.
    bytes: Option<Scales>,
    /// Channels behind those of the input, the window having all of them.
    behind: Option<Behind<'a>>,
    others: &'a [Other<'a>],
    /// What is added to the sums, where there are no others.
    more: Option<More<'a>>,
}

/// `rows` rows of the weight's channels, treated as the layer wants.
pub(crate) fn linear(
    weight: &CudaValue,
    x: &GpuBuffer,
    rows: usize,
    treatment: Treatment<'_>,
    finish: Finish<'_>,
) -> Result<GpuBuffer> {
    let shape = weights::shape(weight)?;
    let window = Window::rows(rows, shape.channels * shape.taps);
    single(weight, x, window, treatment, finish, false)
}

/// The same for the norm of rows.
pub(crate) fn linear_of_norm(
    weight: &CudaValue,
    x: &GpuBuffer,
    norm: RowNorm<'_>,
    treatment: Treatment<'_>,
    finish: Finish<'_>,
) -> Result<GpuBuffer> {
    let shape = weights::shape(weight)?;
    let rows = x.len() / norm.width;
    let window = Window::rows(rows, shape.channels * shape.taps);
    let input = Input::Normed(x, norm);
    if let Some(found) = bytes::single(weight, input, &window, treatment, finish, false)? {
        return Ok(found);
    }
    linear(weight, &row_norm(x, norm)?, rows, treatment, finish)
}

/// The same for rows whose last channels are elsewhere. None where no kernel reads two places.
pub(crate) fn linear_of_two(
    weight: &CudaValue,
    (x, behind): (&GpuBuffer, Behind<'_>),
    rows: usize,
    treatment: Treatment<'_>,
    finish: Finish<'_>,
) -> Result<Option<GpuBuffer>> {
    let shape = weights::shape(weight)?;
    let window = Window::rows(rows, shape.channels * shape.taps);
    let input = Input::Matrix(x, Some(behind));
    if let Some(found) = bytes::single(weight, input, &window, treatment, finish, false)? {
        return Ok(Some(found));
    }
    hopper::of_two(weight, (x, behind), window, treatment, finish)
}

/// `a * gelu(g)` of the halves of the outputs.
pub(crate) fn geglu(
    weight: &CudaValue,
    x: &GpuBuffer,
    rows: usize,
    treatment: Treatment<'_>,
    bias: Option<GpuSlice<'_>>,
) -> Result<GpuBuffer> {
    let shape = weights::shape(weight)?;
    let window = Window::rows(rows, shape.channels * shape.taps);
    let finish = Finish {
        bias,
        ..Finish::default()
    };
    single(weight, x, window, treatment, finish, true)
}

/// A convolution over pictures.
pub(crate) fn conv(
    weight: &CudaValue,
    x: &GpuBuffer,
    window: Window,
    treatment: Treatment<'_>,
    finish: Finish<'_>,
) -> Result<GpuBuffer> {
    let window = if window.is_plain() {
        Window::rows(window.out_rows(), window.channels)
    } else if weights::rotation(weight) > 0 {
        let reason = "a rotated weight of single pixels works on all of them only";
        return Err(TensorError::invalid("conv", reason));
    } else {
        window
    };
    single(weight, x, window, treatment, finish, false)
}

/// A convolution over frames with one weight for each tap of time. They are put together for the one use, so that sums are rounded once.
pub(crate) fn conv3d(
    taps: &[&dyn GpuWeight],
    x: &GpuBuffer,
    window: Window,
    treatment: Treatment<'_>,
    finish: Finish<'_>,
) -> Result<GpuBuffer> {
    if let [one] = taps {
        return conv(cuda_value(*one)?, x, window, treatment, finish);
    }
    let Some(first) = taps.first() else {
        return Err(TensorError::invalid("conv3d", "a kernel without taps"));
    };
    let columns = weights::shape(cuda_value(*first)?)?.out;
    let padded = padded(x, window.channels);
    let weight = weights::joined(taps, x.card(), x.format(), padded)?;
    run(
        &Elements::Made(weight),
        columns,
        x,
        (window, padded, treatment),
        finish,
        false,
    )
}

/// Channels as the kernels for this format want them.
fn padded(x: &GpuBuffer, channels: usize) -> usize {
    if has_tensor_cores(x.card(), x.format()) {
        channels.next_multiple_of(8)
    } else {
        channels
    }
}

pub(crate) fn has_tensor_cores(device: &CudaDevice, format: Format) -> bool {
    format != Format::F32 && device.arch() >= 80
}

fn single(
    weight: &CudaValue,
    x: &GpuBuffer,
    window: Window,
    treatment: Treatment<'_>,
    finish: Finish<'_>,
    geglu: bool,
) -> Result<GpuBuffer> {
    let input = Input::Matrix(x, None);
    if let Some(found) = bytes::single(weight, input, &window, treatment, finish, geglu)? {
        return Ok(found);
    }
    let shape = weights::shape(weight)?;
    let group = weights::rotation(weight);
    let levels = weights::input_levels(weight).filter(|_| !treatment.exact && window.is_plain());
    let channels = window.channels;
    // Scales come before rotations, and these before rounding.
    let early = group > 0 || levels.is_some();
    let mut x = Treated::Given(x);
    let scale = treatment.scale.map(|scale| scale.address());
    if let Some(scale) = scale.filter(|_| early) {
        let how = as_rows(&x, channels, channels, Some(scale));
        x = Treated::Made(weights::prepared(&x, &how)?);
    }
    if group > 0 {
        x = Treated::Made(weights::rotated(&x, group)?);
    }
    if let Some(levels) = levels {
        x = Treated::Made(weights::rounded(&x, channels, levels)?);
    }
    let scale = treatment.scale.filter(|_| !early);
    let channels = padded(&x, channels);
    // Without tensor cores a weight of another format is converted while it is read.
    let plain = !has_tensor_cores(x.card(), x.format());
    let elements = match weights::in_place(weight)? {
        Some(format) if plain => Elements::Kept(weight, format),
        _ => weights::elements(weight, x.format(), channels)?,
    };
    let how = (window, channels, Treatment { scale, ..treatment });
    run(&elements, shape.out, &x, how, finish, geglu)
}

/// An input as it was given, or changed.
enum Treated<'a> {
    Given(&'a GpuBuffer),
    Made(GpuBuffer),
}

impl Deref for Treated<'_> {
    type Target = GpuBuffer;

    fn deref(&self) -> &GpuBuffer {
        match self {
            Self::Given(buffer) => buffer,
            Self::Made(buffer) => buffer,
        }
    }
}

fn as_rows(x: &GpuBuffer, channels: usize, padded: usize, scale: Option<u64>) -> Prepared {
    let rows = x.len() / channels.max(1);
    Prepared {
        pictures: rows,
        from: (1, 1),
        to: (1, 1),
        channels,
        padded,
        scale,
    }
}

/// The product of an input with elements of `columns` rows, whose channels are padded.
fn run(
    weight: &Elements<'_>,
    columns: usize,
    x: &GpuBuffer,
    (mut window, padded, Treatment { scale, stays, .. }): (Window, usize, Treatment<'_>),
    finish: Finish<'_>,
    geglu: bool,
) -> Result<GpuBuffer> {
    let (device, format) = (x.card(), x.format());
    let rows = window.out_rows();
    let out_columns = if geglu { columns / 2 } else { columns };
    check(&window, x, columns, padded)?;
    let out = device.buffer(rows * out_columns, format)?;
    if out.len() == 0 {
        return Ok(out);
    }
    if window.is_small(padded) && scale.is_none() && has_tensor_cores(device, format) {
        let gathered = weights::gathered(x, &window)?;
        let depth = window.taps() * padded;
        let product = Product {
            device,
            format,
            x: gathered.address(),
            weight,
            window: Window::rows(rows, depth),
            columns,
            geglu,
            doubled: false,
            finish,
            bytes: None,
            behind: None,
            others: &[],
            more: None,
        };
        if device.hopper() && (!geglu || out_columns % 8 == 0) {
            product.start_hopper(&out)?;
        } else {
            product.start_mma(&out)?;
        }
        return Ok(out);
    }
    let scale = scale.map(|scale| scale.address());
    let wide = (padded != window.channels || scale.is_some())
        .then(|| weights::prepared(x, &as_rows(x, window.channels, padded, scale)));
    let wide = wide.transpose()?;
    let x = wide.as_ref().unwrap_or(x);
    window.channels = padded;
    let product = |x: &GpuBuffer, window: Window| Product {
        device,
        format,
        x: x.address(),
        weight,
        window,
        columns,
        geglu,
        doubled: false,
        finish,
        bytes: None,
        behind: None,
        others: &[],
        more: None,
    };
    if !has_tensor_cores(device, format) {
        product(x, window).start_plain(&out)?;
        return Ok(out);
    }
    if device.hopper() && window.is_doubled() {
        let halved = weights::halved(weight, device, [columns, padded], stays)?;
        let phase = Window {
            enlarged: window.size,
            out: [window.frames, window.size.0, window.size.1],
            kernel: [1, 2, 2],
            ..window
        };
        let product = Product {
            weight: &halved,
            doubled: true,
            ..product(x, phase)
        };
        product.start_hopper(&out)?;
        return Ok(out);
    }
    // Its kernels write whole pieces of 16 bytes of gated outputs.
    if device.hopper() && (!geglu || out_columns % 8 == 0) {
        // The copy engine cannot repeat pixels. Without room for a larger picture the other kernel does.
        let larger =
            (window.enlarged != window.size).then(|| weights::prepared(x, &enlarged(&window)));
        match larger {
            None if fits_hopper(&window) => {
                product(x, window).start_hopper(&out)?;
                return Ok(out);
            }
            Some(Ok(larger)) if fits_hopper(&window.of_enlarged()) => {
                product(&larger, window.of_enlarged()).start_hopper(&out)?;
                return Ok(out);
            }
            _ => {}
        }
    }
    product(x, window).start_mma(&out)?;
    Ok(out)
}

fn enlarged(window: &Window) -> Prepared {
    Prepared {
        pictures: window.frames,
        from: window.size,
        to: window.enlarged,
        channels: window.channels,
        padded: window.channels,
        scale: None,
    }
}

impl Window {
    fn of_enlarged(self) -> Self {
        let large = Self {
            size: self.enlarged,
            ..self
        };
        if large.is_plain() {
            return Self::rows(large.out_rows(), large.channels);
        }
        large
    }
}

/// Stride 2 is pairs of pixels for the copy engine, whose channels must not mix in a step.
fn fits_hopper(window: &Window) -> bool {
    match window.stride {
        1 => true,
        2 => {
            window.channels.is_multiple_of(64)
                && window.size.0.is_multiple_of(2)
                && window.size.1.is_multiple_of(2)
        }
        _ => false,
    }
}

/// Kernels count rows, pixels and columns in 32 bits.
fn check(window: &Window, x: &GpuBuffer, columns: usize, padded: usize) -> Result<()> {
    let pixels = window.frames * window.size.0 * window.size.1;
    let large = window.frames * window.enlarged.0 * window.enlarged.1;
    let most = i32::MAX as usize;
    let depth = window.taps() * padded;
    if [pixels, large, window.out_rows(), columns, depth]
        .iter()
        .any(|&n| n > most - 4096)
    {
        return Err(TensorError::invalid(OP, "too large for a GPU"));
    }
    if x.len() != pixels * window.channels {
        let reason = format!(
            "{} elements for {pixels} pixels of {}",
            x.len(),
            window.channels
        );
        return Err(TensorError::invalid(OP, reason));
    }
    Ok(())
}

fn address(buffer: Option<&GpuBuffer>) -> u64 {
    buffer.map_or(0, Address::address)
}

impl Product<'_> {
    fn rows(&self) -> usize {
        self.window.out_rows()
    }

    /// The parameters of `AFTER_PARAMETERS` in finish.cuh.
    fn after(&self, args: Args, out: &GpuBuffer) -> Args {
        args.pointer(self.finish.bias.map_or(0, |bias| bias.address()))
            .pointer(address(self.finish.per_item))
            .pointer(address(self.finish.gate))
            .pointer(address(self.finish.residual))
            .pointer(out.address())
            .int(self.finish.act as i32)
            .int(self.finish.rows_per_item.max(1) as i32)
            .int(self.finish.act_from as i32)
    }

    /// The parameters of `SCALES_PARAMETERS` there.
    fn scales(&self, args: Args) -> Args {
        let (rows, columns) = self.bytes.map_or((0, 0), |by| (by.rows, by.columns));
        args.pointer(rows).pointer(columns)
    }

    /// The parameters of `OTHERS_PARAMETERS` there, for tiles of a width.
    fn others(&self, args: Args, width: usize) -> Args {
        let args = (0..2).fold(args, |args, at| {
            let other = self.others.get(at);
            let more = self.more.filter(|_| at == 0).and_then(|more| more.bias);
            args.pointer(
                other
                    .and_then(|other| other.bias)
                    .or(more)
                    .map_or(0, |bias| bias.address()),
            )
            .pointer(other.map_or(0, |other| other.out.address()))
        });
        args.int(self.columns.div_ceil(width) as i32)
    }

    /// The sizes of `Window` in product_mma.cu and product_plain.cu.
    fn window(&self, args: Args) -> Args {
        let w = &self.window;
        [
            w.frames,
            w.size.0,
            w.size.1,
            w.channels,
            w.enlarged.0,
            w.enlarged.1,
            w.out[1],
            w.out[2],
            w.kernel[0],
            w.kernel[1],
            w.kernel[2],
            w.time_stride,
            w.stride,
        ]
        .iter()
        .fold(args, |args, &n| args.int(n as i32))
        .int(w.time_before)
        .int(w.above as i32)
        .int(w.left as i32)
    }

    /// Tells what the next kernel has to do.
    fn tell_work(&self) {
        let (rows, columns) = (self.rows() as f64, self.columns as f64);
        let columns = columns * (1 + self.others.len()) as f64;
        let depth = self.window.taps() * self.window.channels + self.more_channels();
        let depth = depth as f64;
        let phases = if self.doubled { 4.0 } else { 1.0 };
        let inside = self.window.frames * self.window.size.0 * self.window.size.1;
        let input = (inside * self.window.channels) as f64;
        let elements = input + columns * depth * phases + rows * columns * phases;
        let pair = if self.bytes.is_some() { 2.0 } else { 1.0 };
        let size = self.format.size() as f64;
        let operations = 2.0 * rows * columns * depth * phases * pair;
        crate::cuda::work(operations, elements * size);
    }

    fn start_plain(&self, out: &GpuBuffer) -> Result<()> {
        let (rows, columns) = (self.rows(), self.columns);
        let tiles = |n: usize| rows.div_ceil(n) * columns.div_ceil(n);
        // Small tiles where large ones would leave multiprocessors without work.
        let large = !self.geglu && tiles(128) >= 2 * self.device.multiprocessors() as usize;
        let matrix = self.window.is_plain();
        let name = match (matrix, self.geglu, large) {
            (_, true, _) => "geglu_64",
            (true, _, false) => "rows_64",
            (true, _, true) => "rows_128",
            (false, _, false) => "picture_64",
            (false, _, true) => "picture_128",
        };
        let kind = match self.weight.format() {
            Format::F32 => 0,
            Format::F16 => 1,
            Format::Bf16 => 2,
        };
        let args = Args::new()
            .pointer(self.x)
            .pointer(self.weight.address())
            .int(kind);
        let args = self.after(args, out).int(rows as i32).int(columns as i32);
        let args = if matrix {
            args.int(self.window.channels as i32)
        } else {
            self.window(args)
        };
        let grid = [tiles(if large { 128 } else { 64 }) as u32, 1, 1];
        self.device
            .launch(self.kernel("product_plain", name), grid, 256, 0, &args)
    }

    fn kernel(&self, module: &'static str, name: &'static str) -> Kernel {
        Kernel {
            module,
            format: self.format,
            name,
        }
    }

    fn start_mma(&self, out: &GpuBuffer) -> Result<()> {
        let rows = self.rows();
        let steps = (self.window.taps() * self.window.channels).div_ceil(32);
        let costs = plan::mma_costs(self.device.arch());
        let slots = self.device.multiprocessors() as usize;
        let offers = plan::Offers {
            loops: &costs,
            ..plan::Offers::default()
        };
        let cut = plan::cut(offers, rows.div_ceil(128), self.columns, steps, slots);
        let sums = self.sums(&cut)?;
        let args = Args::new().pointer(self.x).pointer(self.weight.address());
        let args = self
            .after(args, out)
            .int(rows as i32)
            .int(self.columns as i32);
        let args = self.scales(Self::cut_arguments(self.window(args), &cut, sums.as_ref()));
        let name = match (self.geglu, cut.width) {
            (false, 128) => "product_128",
            (false, _) => "product_256",
            (true, 128) => "geglu_128",
            (true, _) => "geglu_256",
        };
        let (threads, shared) = if cut.width == 128 {
            (128, 3 * 16384)
        } else {
            (256, 4 * 24576)
        };
        let grid = [cut.blocks() as u32, 1, 1];
        let module = match self.bytes.map(|by| by.operand) {
            None => "product_mma",
            Some(Operand::E4m3) => "product_mma_e4m3",
            Some(Operand::E5m2) => "product_mma_e5m2",
            Some(Operand::Whole(_)) => "product_mma_s8",
        };
        let kernel = self.kernel(module, name);
        self.tell_work();
        self.device.launch(kernel, grid, threads, shared, &args)?;
        self.add_parts(&cut, Boxes::rows(rows), 8, sums.as_ref(), out)
    }

    fn cut_arguments(args: Args, cut: &Cut, sums: Option<&Scratch>) -> Args {
        args.int(cut.full as i32)
            .int(cut.parts as i32)
            .pointer(sums.map_or(0, Address::address))
    }

    /// Room for the sums of tiles that are cut.
    fn sums(&self, cut: &Cut) -> Result<Option<Scratch>> {
        let cut_tiles = cut.tiles - cut.full;
        let bytes = cut_tiles * cut.parts * 128 * cut.width * 4;
        (cut_tiles > 0)
            .then(|| self.device.scratch(bytes))
            .transpose()
    }

    fn add_parts(
        &self,
        cut: &Cut,
        boxes: Boxes,
        group: i32,
        sums: Option<&Scratch>,
        out: &GpuBuffer,
    ) -> Result<()> {
        let Some(sums) = sums else {
            return Ok(());
        };
        let args = self.after(Args::new().pointer(sums.address()), out);
        let args = boxes
            .arguments(args.int(self.columns as i32))
            .int(group)
            .int(cut.full as i32)
            .int(cut.parts as i32)
            .int(cut.width as i32)
            .int(i32::from(self.geglu));
        let args = self.others(self.scales(args), cut.width);
        let grid = [(cut.tiles - cut.full) as u32, 16, 1];
        let kernel = self.kernel("product_finish", "finish_parts");
        self.device.launch(kernel, grid, 256, 0, &args)
    }
}

/// (items, rows, inner) times (items, inner, columns), item by item.
pub(crate) fn matmul(
    a: &GpuBuffer,
    b: &GpuBuffer,
    [items, rows, inner, columns]: [usize; 4],
) -> Result<GpuBuffer> {
    let device = a.card();
    let most = i32::MAX as usize - 4096;
    if [items, rows, inner, columns].iter().any(|&n| n > most) {
        return Err(TensorError::invalid("matmul", "too large for a GPU"));
    }
    let out = device.buffer(items * rows * columns, a.format())?;
    if out.len() > 0 {
        let args = [a.address(), b.address(), out.address()]
            .iter()
            .fold(Args::new(), |args, &address| args.pointer(address));
        let args = [items, rows, columns, inner]
            .iter()
            .fold(args, |args, &n| args.int(n as i32));
        let kernel = Kernel {
            module: "product_plain",
            format: a.format(),
            name: "matmul",
        };
        let tiles = rows.div_ceil(64) * columns.div_ceil(64);
        let grid = [tiles as u32, items.min(65535) as u32, 1];
        device.launch(kernel, grid, 256, 0, &args)?;
    }
    Ok(out)
}

#[cfg(test)]
#[path = "product_tuning.rs"]
mod tuning;
