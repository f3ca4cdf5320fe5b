//! A card as the rest of the crate sees it: its books, its memory, and what is copied there.

use std::sync::Arc;

use super::device::{self, CudaDevice};
use super::memory::{self, convert};
use super::ops::merge;
use super::{Address, Arrived, CudaValue, Folded, Transfer, cuda_value, steps};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::gpu::{
    ArrivedWeight, Backend, FoldedWeight, Format, GpuBuffer, GpuDevice, GpuId, GpuMemory, GpuOps,
    GpuSettings, GpuSlice, GpuState, GpuValue, GpuWeight, KernelTime, MatrixShape, MemoryPurpose,
    MemoryUse, MergedWeight, WhenFull,
};
use crate::nn::Growth;
use crate::stored::Stored;

/// The name of this back end in names of devices.
const NAME: &str = "cuda";

pub(crate) const BACKEND: Backend = Backend {
    name: NAME,
    open: |number| Ok(device::open(number)? as Arc<dyn GpuOps>),
    opened: || {
        let all = device::opened().into_iter();
        all.map(|device| device as Arc<dyn GpuOps>).collect()
    },
    pin: memory::pin,
    unpin: memory::unpin,
};

impl GpuDevice for CudaDevice {
    fn id(&self) -> GpuId {
        GpuId {
            backend: NAME,
            number: self.number(),
        }
    }

    fn state(&self) -> GpuState {
        self.state()
    }

    fn settings(&self) -> &GpuSettings {
        &self.settings
    }

    fn has_bf16(&self) -> bool {
        self.has_bf16()
    }

    fn failure(&self) -> Option<String> {
        self.failure()
    }

    fn discrepancy(&self) -> Option<String> {
        self.discrepancy()
    }

    fn capacity(&self) -> u64 {
        self.capacity()
    }

    fn used(&self) -> u64 {
        self.used()
    }

    fn free(&self) -> u64 {
        self.free()
    }

    fn peak(&self) -> u64 {
        self.peak()
    }

    fn reset_peak(&self) {
        self.reset_peak();
    }

    fn reserve(&self, bytes: u64) {
        self.reserve(bytes);
    }

    fn synchronize(&self) -> Result<()> {
        self.synchronize()
    }

    fn trim(&self) {
        self.trim();
    }

    fn measured_link(&self) -> Result<f64> {
        self.measured_link()
    }

    fn profile(&self, body: &mut dyn FnMut()) -> Result<Vec<KernelTime>> {
        self.profiled(body)
    }

    fn allocate(&self, bytes: u64, by: MemoryUse, full: WhenFull) -> Result<GpuMemory> {
        match (by, full) {
            (MemoryUse::Work, WhenFull::MakeRoom) => self.block(bytes),
            (MemoryUse::Work, WhenFull::Refuse) => self.take(bytes),
            (MemoryUse::Copies, WhenFull::MakeRoom) => self.block_ahead(bytes),
            (MemoryUse::Copies, WhenFull::Refuse) => self.take_ahead(bytes),
        }
    }

    fn release(&self, memory: GpuSlice<'_>, bytes: u64, purpose: MemoryPurpose) {
        self.give_back(memory.address(), bytes, purpose);
    }

    fn buffer(&self, len: usize, format: Format) -> Result<GpuBuffer> {
        self.buffer(len, format)
    }

    fn offer_passing_memory(&self, bytes: u64) -> Result<Option<GpuMemory>> {
        self.block_in_ring(bytes)
    }

    fn record(&self, key: u64, step: &mut dyn FnMut()) {
        steps::repeated(self, key, step);
    }

    fn step_apart(&self) {
        steps::apart(self);
    }

    fn outside_of_step(&self, body: &mut dyn FnMut()) {
        steps::aside(body);
    }

    fn upload(&self, values: &[f32], format: Format) -> Result<GpuBuffer> {
        self.upload_values(values, format)
    }

    fn read(&self, from: &GpuBuffer, out: &mut [f32]) -> Result<()> {
        self.read_values(from, out)
    }

    fn fetch(&self, from: &GpuBuffer) -> Result<GpuBuffer> {
        self.fetch_values(from)
    }

    fn convert(&self, (from, format): (GpuSlice<'_>, Format), to: &GpuBuffer) -> Result<()> {
        convert((from.address(), format), to)
    }

    fn upload_weight(
        &self,
        stored: &Stored,
        matrix: Option<MatrixShape>,
        (to, by): (&GpuMemory, MemoryUse),
        place: &mut u64,
    ) -> Result<GpuValue> {
        let ahead = by == MemoryUse::Copies;
        Ok(Box::new(CudaValue::upload(
            stored,
            matrix,
            (to, ahead),
            place,
        )?))
    }

    fn stream_weight(
        &self,
        from: Transfer,
        matrix: Option<MatrixShape>,
        to: &GpuMemory,
        place: &mut u64,
    ) -> Result<ArrivedWeight> {
        Ok(match CudaValue::stream(from, matrix, to, place)? {
            Arrived::Value(value) => ArrivedWeight::Value(Box::new(value)),
            Arrived::Folded(folded) => ArrivedWeight::Folded(Box::new(folded)),
        })
    }

    fn mark_copies(&self) -> Result<u64> {
        self.mark_of_copies()
    }

    fn wait_for_copies(&self, mark: u64) -> Result<()> {
        self.after_copies(mark)
    }

    fn drop_mark(&self, mark: u64) {
        self.forget_copies(mark);
    }

    fn merges_into(&self, dtype: Dtype) -> bool {
        merge::can_write(dtype)
    }

    fn merges(&self, weight: &dyn GpuWeight) -> bool {
        cuda_value(weight).is_ok_and(merge::can_read)
    }

    fn offer_merged_weight(
        &self,
        weight: &dyn GpuWeight,
        growths: &[Growth],
        how: MergedWeight,
        to: &GpuMemory,
        place: &mut u64,
    ) -> Result<GpuValue> {
        let sum = merge::grown(cuda_value(weight)?, growths)?;
        let shape = vec![how.matrix.out, how.matrix.channels];
        let value = CudaValue::place(how.dtype, shape, Some(how.matrix), to, place);
        merge::write(&sum, value.address(), how.dtype, how.seed)?;
        Ok(Box::new(value))
    }
}

impl GpuWeight for CudaValue {
    fn len(&self) -> usize {
        self.len()
    }

    fn bytes(&self) -> u64 {
        self.bytes()
    }

    fn floats(&self) -> Result<GpuSlice<'_>> {
        Ok(GpuSlice::new(self.floats()?, 0))
    }

    fn stored(&self) -> Result<Stored> {
        self.stored()
    }

    fn part(&self, from: usize, out: &mut [u8]) -> Result<()> {
        self.part(from, out)
    }

    fn again(&self) -> GpuValue {
        Box::new(self.again())
    }

    fn stream_to(&self, memory: &GpuMemory, place: &mut u64) -> Result<GpuValue> {
        Ok(Box::new(self.stream_from(memory, place)?))
    }
}

impl FoldedWeight for Folded {
    fn bytes(&self) -> u64 {
        self.bytes()
    }

    fn unfolded(&self, memory: &GpuMemory, place: &mut u64) -> Result<GpuValue> {
        Ok(Box::new(self.unfolded(memory, place)?))
    }
}
