//! What the kernels of products are told, and the starts of those that no copy engine feeds.

use super::super::plan::{self, Boxes, TilePlan};
use super::super::weights::Operand;
use super::{OtherWeight, Product};
use crate::cuda::launches::product_finish::FinishParts;
use crate::cuda::launches::product_mma::{
    self, ProductKernel as MmaKernel, ProductModule as MmaModule,
};
use crate::cuda::launches::product_plain::{self, MatrixProductKernel, PictureProductKernel};
use crate::cuda::launches::{AfterProduct, ByteScales, OtherResults, ProductParts, ProductWindow};
use crate::cuda::tuned;
use crate::cuda::{Format, GpuBuffer, Pointer, Scratch, Shape};
use crate::error::Result;

impl Product<'_> {
    pub(super) fn rows(&self) -> usize {
        self.window.out_rows()
    }

    pub(super) fn after(&self, out: &GpuBuffer) -> AfterProduct {
        let f = &self.finish;
        AfterProduct {
            bias: f.bias.into(),
            per_item: f.per_item.into(),
            gate: f.gate.into(),
            residual: f.residual.into(),
            out: out.into(),
            act: f.act as i32,
            rows_per_item: f.rows_per_item.max(1) as i32,
            act_from: f.act_from as i32,
        }
    }

    pub(super) fn scales(&self) -> ByteScales {
        let (rows, columns) = self.bytes.map_or((0, 0), |by| (by.rows, by.columns));
        ByteScales {
            row_scale: Pointer::at(rows),
            column_scale: Pointer::at(columns),
        }
    }

    /// The results of other weights, for tiles of a width.
    pub(super) fn other_results(&self, width: usize) -> OtherResults {
        let [first, second] = [self.others.first(), self.others.get(1)];
        let beside = self.skip.and_then(|skip| skip.bias);
        let out = |other: Option<&OtherWeight<'_>>| other.map(|other| &other.out).into();
        OtherResults {
            bias1: first.and_then(|other| other.bias).or(beside).into(),
            out1: out(first),
            bias2: second.and_then(|other| other.bias).into(),
            out2: out(second),
            each: self.columns.div_ceil(width) as i32,
        }
    }

    pub(super) fn window_parameters(&self) -> ProductWindow {
        let w = &self.window;
        let [_, out_height, out_width] = w.out.map(|n| n as i32);
        let [time, height, width] = w.kernel.map(|n| n as i32);
        ProductWindow {
            frames: w.frames as i32,
            in_height: w.size.0 as i32,
            in_width: w.size.1 as i32,
            channels: w.channels as i32,
            large_height: w.enlarged.0 as i32,
            large_width: w.enlarged.1 as i32,
            out_height,
            out_width,
            time,
            height,
            width,
            time_stride: w.time_stride as i32,
            stride: w.stride as i32,
            time_before: w.time_before,
            above: w.above as i32,
            left: w.left as i32,
        }
    }

    /// Tells what the next kernel has to do.
    pub(super) fn tell_work(&self) {
        let (rows, columns) = (self.rows() as f64, self.columns as f64);
        let columns = columns * (1 + self.others.len()) as f64;
        let depth = self.window.taps() * self.window.channels + self.skip_channels();
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

    pub(super) fn start_plain(&self, out: &GpuBuffer) -> Result<()> {
        let (rows, columns) = (self.rows(), self.columns);
        let tiles = |n: usize| rows.div_ceil(n) * columns.div_ceil(n);
        // Small tiles where large ones would leave multiprocessors without work.
        let large = !self.geglu
            && tiles(128) >= tuned::LARGE_TILES * self.device.multiprocessors() as usize;
        let weight_kind = match self.weight.format() {
            Format::F32 => 0,
            Format::F16 => 1,
            Format::Bf16 => 2,
        };
        let (a, weights) = (Pointer::at(self.x), Pointer::at(self.weight.address()));
        let (after_product, m, n) = (self.after(out), rows as i32, columns as i32);
        let shape = Shape::row(tiles(if large { 128 } else { 64 }) as u32, 256);
        if self.geglu || self.window.is_plain() {
            let product = product_plain::MatrixProduct {
                kernel: match (self.geglu, large) {
                    (true, _) => MatrixProductKernel::Geglu64,
                    (false, true) => MatrixProductKernel::Rows128,
                    (false, false) => MatrixProductKernel::Rows64,
                },
                a,
                weights,
                weight_kind,
                after: after_product,
                m,
                n,
                k: self.window.channels as i32,
            };
            return self.device.launch(self.format, shape, product);
        }
        let product = product_plain::PictureProduct {
            kernel: if large {
                PictureProductKernel::Picture128
            } else {
                PictureProductKernel::Picture64
            },
            a,
            weights,
            weight_kind,
            after: after_product,
            m,
            n,
            window: self.window_parameters(),
        };
        self.device.launch(self.format, shape, product)
    }

    pub(super) fn start_mma(&self, out: &GpuBuffer) -> Result<()> {
        let rows = self.rows();
        let steps = (self.window.taps() * self.window.channels).div_ceil(32);
        let costs = tuned::mma_costs(self.device.arch());
        let slots = self.device.multiprocessors() as usize;
        let offers = plan::KernelCosts {
            loops: &costs,
            ..plan::KernelCosts::default()
        };
        let cut = plan::cut(offers, rows.div_ceil(128), self.columns, steps, slots);
        let sums = self.sums(&cut)?;
        let kernel = match (self.geglu, cut.width) {
            (false, 128) => MmaKernel::Product128,
            (false, _) => MmaKernel::Product256,
            (true, 128) => MmaKernel::Geglu128,
            (true, _) => MmaKernel::Geglu256,
        };
        let (threads, shared) = if cut.width == 128 {
            (128, 3 * 16384)
        } else {
            (256, 4 * 24576)
        };
        let product = product_mma::Product {
            module: match self.bytes.map(|by| by.operand) {
                None => MmaModule::ProductMma,
                Some(Operand::E4m3) => MmaModule::ProductMmaE4m3,
                Some(Operand::E5m2) => MmaModule::ProductMmaE5m2,
                Some(Operand::Whole(_)) => MmaModule::ProductMmaS8,
            },
            kernel,
            a: Pointer::at(self.x),
            weights: Pointer::at(self.weight.address()),
            after: self.after(out),
            m: rows as i32,
            n: self.columns as i32,
            window: self.window_parameters(),
            cut: Self::parts(&cut, sums.as_ref()),
            scales: self.scales(),
        };
        let shape = Shape::row(cut.blocks() as u32, threads).with_shared(shared);
        self.tell_work();
        self.device.launch(self.format, shape, product)?;
        self.add_parts(&cut, Boxes::rows(rows), 8, sums.as_ref(), out)
    }

    pub(super) fn parts(cut: &TilePlan, sums: Option<&Scratch>) -> ProductParts {
        ProductParts {
            full_tiles: cut.full as i32,
            parts: cut.parts as i32,
            sums: sums.into(),
        }
    }

    /// Room for the sums of tiles that are cut.
    pub(super) fn sums(&self, cut: &TilePlan) -> Result<Option<Scratch>> {
        let cut_tiles = cut.tiles - cut.full;
        let bytes = cut_tiles * cut.parts * 128 * cut.width * 4;
        (cut_tiles > 0)
            .then(|| self.device.scratch(bytes))
            .transpose()
    }

    pub(super) fn add_parts(
        &self,
        cut: &TilePlan,
        boxes: Boxes,
        group: i32,
        sums: Option<&Scratch>,
        out: &GpuBuffer,
    ) -> Result<()> {
        let Some(sums) = sums else {
            return Ok(());
        };
        let finish = FinishParts {
            sums: sums.into(),
            after: self.after(out),
            n: self.columns as i32,
            boxes: boxes.parameters(),
            group,
            first: cut.full as i32,
            parts: cut.parts as i32,
            columns: cut.width as i32,
            geglu: i32::from(self.geglu),
            scales: self.scales(),
            others: self.other_results(cut.width),
        };
        let shape = Shape::new([(cut.tiles - cut.full) as u32, 16, 1], 256);
        self.device.launch(self.format, shape, finish)
    }
}
