//! Weight and bias of a linear layer or a convolution: kept in a slot, or made anew for every use.

use std::sync::Arc;

use super::contents::{Content, Contents, MatrixSize};
use super::slot::{SlotGroup, WeightSlot};
use crate::buffer::Buffer;
use crate::cpu::packed::Weight;
use crate::device::{Device, count_copy};
use crate::dtype::Dtype;
use crate::error::{Result, TensorError};
use crate::gpu::{Format, GpuSlice, GpuWeight, MemoryUse, WeightWithBias};
use crate::stored::Stored;

/// Makes the weight of a layer. It must give the same one every time.
pub type MakeWeight = Arc<dyn Fn() -> Result<Stored> + Send + Sync>;

/// The place of the matrix in the slot of a layer, and that of the bias.
const MATRIX: usize = 0;
const BIAS: usize = 1;

/// What a layer is made of.
#[derive(Clone, Copy)]
pub(super) struct LayerValues<'a> {
    pub(super) weight: &'a Stored,
    pub(super) bias: Option<&'a Stored>,
    /// What the channels of inputs are multiplied with first.
    pub(super) input_scale: Option<&'a Stored>,
}

/// The same for kernels of the processor.
pub(super) struct PackedLayer<'a> {
    pub(super) weight: &'a Weight,
    pub(super) bias: Option<&'a [f32]>,
    input_scale: Option<&'a [f32]>,
}

/// The same for kernels of a GPU.
pub(super) struct GpuLayer<'a> {
    pub(super) weight: &'a dyn GpuWeight,
    /// Floats of 32 bits.
    pub(super) bias: Option<GpuSlice<'a>>,
    pub(super) input_scale: Option<GpuSlice<'a>>,
}

impl PackedLayer<'_> {
    /// Inputs times the layer's scale, in memory of their own; none where it has none.
    pub(super) fn scaled(&self, x: &[f32]) -> Result<Option<Buffer<f32>>> {
        let Some(scale) = self.input_scale.filter(|scale| !scale.is_empty()) else {
            return Ok(None);
        };
        let mut scaled = Buffer::copied(x)?;
        for row in scaled.chunks_exact_mut(scale.len()) {
            for (value, scale) in row.iter_mut().zip(scale) {
                *value *= scale;
            }
        }
        Ok(Some(scaled))
    }
}

/// Clones share the weights.
#[derive(Clone)]
pub(super) struct LayerWeights {
    size: MatrixSize,
    dtype: Dtype,
    source: WeightSource,
    bias: Bias,
    /// The place of what inputs are multiplied with, where there is such.
    input_scale: Option<usize>,
    slot: Arc<WeightSlot>,
}

#[derive(Clone)]
enum WeightSource {
    /// The slot has it.
    Slot,
    /// Nothing is kept.
    Made {
        make: MakeWeight,
        /// Whether it is made from the weights that the slot holds, and not from elsewhere in main memory.
        from_slot: bool,
    },
}

#[derive(Clone)]
enum Bias {
    None,
    /// In the slot of the layer.
    Slot,
    /// In a slot of its own: another than the one that came with the weight.
    Own(Arc<WeightSlot>),
}

/// The values of a layer on a device, for one use.
struct DeviceValues {
    values: Arc<Contents>,
    /// The contents with the bias, if it is not in `values`.
    own: Option<Arc<Contents>>,
    /// The place of the bias in its contents.
    bias: Option<usize>,
}

impl DeviceValues {
    /// The values of which the bias is one.
    fn of_bias(&self) -> &Contents {
        self.own.as_ref().unwrap_or(&self.values)
    }

    fn gpu_bias(&self) -> Result<Option<GpuSlice<'_>>> {
        let bias = self.bias.map(|at| self.of_bias().gpu(at)?.floats());
        bias.transpose()
    }
}

/// Bytes of a matrix, by its size in a file.
fn matrix_bytes(size: MatrixSize, dtype: Dtype) -> u64 {
    let elements = size.out * size.channels * size.taps;
    dtype.bytes_for(elements).map_or(0, |bytes| bytes as u64)
}

fn check_bias(op: &'static str, bias: &Stored, out: usize) -> Result<()> {
    if bias.len() == out {
        return Ok(());
    }
    Err(TensorError::mismatch(op, bias.shape(), &[out]))
}

/// The values of a layer for its slot.
fn values(op: &'static str, of: LayerValues<'_>, size: MatrixSize) -> Result<Vec<Content>> {
    Weight::check(of.weight, size.channels * size.taps)?;
    let mut values = vec![Content::matrix(of.weight, size)];
    if let Some(bias) = of.bias {
        check_bias(op, bias, size.out)?;
        values.push(Content::channels(bias));
    }
    if let Some(scale) = of.input_scale {
        check_bias(op, scale, size.channels)?;
        values.push(Content::channels(scale));
    }
    Ok(values)
}

impl LayerWeights {
    /// In a slot of their own on a device.
    pub(super) fn on(
        op: &'static str,
        of: LayerValues<'_>,
        size: MatrixSize,
        device: &Device,
    ) -> Result<Self> {
        let slot = WeightSlot::on(values(op, of, size)?, &SlotGroup::new(), device)?;
        Ok(Self::in_slot(of, size, slot))
    }

    /// In a slot in main memory, used together with the others of a group.
    pub(super) fn in_group(
        op: &'static str,
        of: LayerValues<'_>,
        size: MatrixSize,
        group: &SlotGroup,
    ) -> Result<Self> {
        let slot = WeightSlot::new(values(op, of, size)?, group)?;
        Ok(Self::in_slot(of, size, slot))
    }

    fn in_slot(of: LayerValues<'_>, size: MatrixSize, slot: Arc<WeightSlot>) -> Self {
        let behind = BIAS + usize::from(of.bias.is_some());
        Self {
            size,
            dtype: of.weight.dtype(),
            source: WeightSource::Slot,
            bias: of.bias.map_or(Bias::None, |_| Bias::Slot),
            input_scale: of.input_scale.map(|_| behind),
            slot,
        }
    }

    /// A weight that a slot has, and a bias behind it.
    pub(super) fn kept_in(
        slot: Arc<WeightSlot>,
        size: MatrixSize,
        dtype: Dtype,
        bias: bool,
    ) -> Self {
        Self {
            size,
            dtype,
            source: WeightSource::Slot,
            bias: if bias { Bias::Slot } else { Bias::None },
            input_scale: None,
            slot,
        }
    }

    /// The slot of a weight that is nothing but what the slot has.
    pub(super) fn plain(&self) -> Option<&Arc<WeightSlot>> {
        let plain = matches!(self.source, WeightSource::Slot) && self.input_scale.is_none();
        plain.then_some(&self.slot)
    }

    /// Without a weight of their own: it is made for every use, from what a slot holds.
    pub(super) fn made_from(
        op: &'static str,
        (dtype, make): (Dtype, MakeWeight),
        bias: Option<&Stored>,
        size: MatrixSize,
        slot: Arc<WeightSlot>,
    ) -> Result<Self> {
        Ok(Self {
            bias: Self::other_bias(op, bias, size.out, &slot)?,
            size,
            dtype,
            source: WeightSource::Made {
                make,
                from_slot: true,
            },
            input_scale: None,
            slot,
        })
    }

    /// The same from what is elsewhere in main memory. The bias is kept on a device.
    pub(super) fn made_on(
        op: &'static str,
        (dtype, make): (Dtype, MakeWeight),
        bias: Option<&Stored>,
        size: MatrixSize,
        device: &Device,
    ) -> Result<Self> {
        let group = SlotGroup::new();
        let bias = match bias {
            None => Bias::None,
            Some(bias) => {
                check_bias(op, bias, size.out)?;
                Bias::Own(WeightSlot::on(
                    vec![Content::channels(bias)],
                    &group,
                    device,
                )?)
            }
        };
        let slot = match &bias {
            Bias::Own(slot) => Arc::clone(slot),
            Bias::None | Bias::Slot => WeightSlot::new(Vec::new(), &group)?,
        };
        Ok(Self {
            size,
            dtype,
            source: WeightSource::Made {
                make,
                from_slot: false,
            },
            bias,
            input_scale: None,
            slot,
        })
    }

    /// The same weight, shared, with another bias.
    pub(super) fn with_bias(&self, op: &'static str, bias: Option<&Stored>) -> Result<Self> {
        Ok(Self {
            bias: Self::other_bias(op, bias, self.size.out, &self.slot)?,
            ..self.clone()
        })
    }

    /// The bias beside a slot that has a weight: the one in the slot where it is the same.
    fn other_bias(
        op: &'static str,
        bias: Option<&Stored>,
        out: usize,
        slot: &Arc<WeightSlot>,
    ) -> Result<Bias> {
        let Some(bias) = bias else {
            return Ok(Bias::None);
        };
        check_bias(op, bias, out)?;
        if slot.holds(BIAS, bias) {
            return Ok(Bias::Slot);
        }
        let values = vec![Content::channels(bias)];
        Ok(Bias::Own(WeightSlot::new(values, slot.group())?))
    }

    /// Lets products keep sixteen bits of an input. For a layer that has just been made.
    pub(super) fn shorten(&mut self) {
        self.set_matrices(|size| size.short = true);
    }

    /// Keeps products from rounding inputs where the format would have it. For a layer that has just been made.
    pub(super) fn set_exact(&mut self) {
        self.set_matrices(|size| size.exact = true);
    }

    fn set_matrices(&mut self, change: impl Fn(&mut MatrixSize)) {
        change(&mut self.size);
        if matches!(self.source, WeightSource::Slot) {
            self.slot.set_matrices(change);
        }
    }

    /// Lets a copy on a device stay there for the next use. For a layer that has just been made.
    pub(super) fn keep_copies(&mut self) {
        self.slot.keep_copies();
    }

    pub(super) fn size(&self) -> MatrixSize {
        self.size
    }

    pub(super) fn dtype(&self) -> Dtype {
        self.dtype
    }

    pub(super) fn slot(&self) -> &Arc<WeightSlot> {
        &self.slot
    }

    /// The weight as it was given, or as it is made.
    pub(super) fn weight(&self) -> Result<Stored> {
        match &self.source {
            WeightSource::Slot => self.slot.stored(MATRIX),
            WeightSource::Made { make, .. } => make(),
        }
    }

    /// The bias as it was given.
    pub(super) fn bias(&self) -> Result<Option<Stored>> {
        match &self.bias {
            Bias::None => Ok(None),
            Bias::Slot => self.slot.stored(BIAS).map(Some),
            Bias::Own(slot) => slot.stored(0).map(Some),
        }
    }

    /// Memory that is held between uses, by the size in a file.
    pub(super) fn bytes(&self) -> u64 {
        let weight = match self.source {
            WeightSource::Slot => matrix_bytes(self.size, self.dtype),
            WeightSource::Made { .. } => 0,
        };
        let bias = match &self.bias {
            Bias::None => 0,
            Bias::Slot => self.slot.bytes_at(BIAS),
            Bias::Own(slot) => slot.bytes(),
        };
        let scale = self.input_scale.map_or(0, |at| self.slot.bytes_at(at));
        weight + bias + scale
    }

    fn here(&self, device: &Device) -> Result<DeviceValues> {
        let values = self.slot.at(device)?;
        let (bias, own) = match &self.bias {
            Bias::None => (None, None),
            Bias::Slot => (Some(BIAS), None),
            Bias::Own(slot) if Arc::ptr_eq(slot, &self.slot) => (Some(0), None),
            Bias::Own(slot) => (Some(0), Some(slot.at(device)?)),
        };
        Ok(DeviceValues { values, own, bias })
    }

    /// Whether a GPU multiplies inputs of a format with the weight as it is.
    pub(super) fn is_plain(&self, format: Format) -> bool {
        let dtype = match format {
            Format::F32 => Dtype::F32,
            Format::F16 => Dtype::F16,
            Format::Bf16 => Dtype::Bf16,
        };
        let kept = matches!(self.source, WeightSource::Slot);
        kept && self.dtype == dtype && self.input_scale.is_none()
    }

    /// Whether it is so there already.
    pub(super) fn is_there(&self, format: Format, device: &Device) -> bool {
        self.is_plain(format) && self.slot().home() == *device
    }

    /// Calls with the weights of several layers on a GPU, all of which are plain, and their biases.
    pub(super) fn with_list_on_gpu<R>(
        layers: &[&Self],
        device: &Device,
        body: impl FnOnce(&[WeightWithBias<'_>]) -> Result<R>,
    ) -> Result<R> {
        let here = layers.iter().map(|layer| layer.here(device));
        let here: Vec<DeviceValues> = here.collect::<Result<_>>()?;
        let found = here
            .iter()
            .map(|here| Ok((here.values.gpu(MATRIX)?, here.gpu_bias()?)));
        let found: Vec<_> = found.collect::<Result<_>>()?;
        body(&found)
    }

    /// Calls with the weight in the order of the processor's kernels, and the bias, on a device. What was copied or made for
    /// this goes afterwards, and takes memory there until then.
    pub(super) fn with_packed<R>(
        &self,
        device: &Device,
        body: impl FnOnce(PackedLayer<'_>) -> Result<R>,
    ) -> Result<R> {
        let here = self.here(device)?;
        let bias = here
            .bias
            .map(|at| here.of_bias().channels(at))
            .transpose()?;
        let here = &here.values;
        let input_scale = self.input_scale.map(|at| here.channels(at)).transpose()?;
        match &self.source {
            WeightSource::Slot => body(PackedLayer {
                weight: &*here.packed(MATRIX)?,
                bias,
                input_scale,
            }),
            WeightSource::Made { make, from_slot } => {
                let bytes = matrix_bytes(self.size, self.dtype);
                let _memory = device.allocate(bytes)?;
                let weight = self.size.pack(&make()?)?;
                if !from_slot {
                    count_copy(&Device::Cpu, device, bytes);
                }
                body(PackedLayer {
                    weight: &weight,
                    bias,
                    input_scale,
                })
            }
        }
    }

    /// The same with the weight on a GPU.
    pub(super) fn with_gpu<R>(
        &self,
        device: &Device,
        body: impl FnOnce(GpuLayer<'_>) -> Result<R>,
    ) -> Result<R> {
        let here = self.here(device)?;
        let bias = here.gpu_bias()?;
        let here = &here.values;
        let scale = self.input_scale;
        let input_scale = scale.map(|at| here.gpu(at)?.floats()).transpose()?;
        match &self.source {
            WeightSource::Slot => body(GpuLayer {
                weight: here.gpu(MATRIX)?,
                bias,
                input_scale,
            }),
            WeightSource::Made { make, from_slot } => {
                let bytes = matrix_bytes(self.size, self.dtype);
                let memory = device.allocate(bytes)?;
                let Some(block) = memory.block() else {
                    return Err(TensorError::invalid("weight", "there is no memory for it"));
                };
                let shape = self.size.shape();
                let (to, weight) = ((block, MemoryUse::Work), make()?);
                let weight = block
                    .device()
                    .upload_weight(&weight, Some(shape), to, &mut 0)?;
                if !from_slot {
                    count_copy(&Device::Cpu, device, bytes);
                }
                body(GpuLayer {
                    weight: &*weight,
                    bias,
                    input_scale,
                })
            }
        }
    }
}
