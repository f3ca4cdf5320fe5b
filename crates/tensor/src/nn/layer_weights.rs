//! Weight and bias of a linear layer or a convolution: kept in a slot, or made anew for every use.

use std::sync::Arc;

use super::contents::{Content, MatrixSize};
use super::slot::{SlotGroup, WeightSlot};
use crate::cpu::packed::Weight;
use crate::device::{Device, count_copy};
use crate::dtype::Dtype;
use crate::error::{Result, TensorError};
use crate::stored::Stored;

/// Makes the weight of a layer. It must give the same one every time.
pub type MakeWeight = Arc<dyn Fn() -> Result<Stored> + Send + Sync>;

/// The place of the matrix in the slot of a layer, and that of the bias.
const MATRIX: usize = 0;
const BIAS: usize = 1;

/// Clones share the weights.
#[derive(Clone)]
pub(super) struct LayerWeights {
    size: MatrixSize,
    dtype: Dtype,
    source: WeightSource,
    bias: Bias,
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
fn values(
    op: &'static str,
    weight: &Stored,
    bias: Option<&Stored>,
    size: MatrixSize,
) -> Result<Vec<Content>> {
    Weight::check(weight, size.channels * size.taps)?;
    let mut values = vec![Content::matrix(weight, size)];
    if let Some(bias) = bias {
        check_bias(op, bias, size.out)?;
        values.push(Content::channels(bias));
    }
    Ok(values)
}

impl LayerWeights {
    /// In a slot of their own on a device.
    pub(super) fn on(
        op: &'static str,
        (weight, bias): (&Stored, Option<&Stored>),
        size: MatrixSize,
        device: &Device,
    ) -> Result<Self> {
        let slot = WeightSlot::on(values(op, weight, bias, size)?, &SlotGroup::new(), device)?;
        Ok(Self::in_slot(weight, bias, size, slot))
    }

    /// In a slot in main memory, used together with the others of a group.
    pub(super) fn in_group(
        op: &'static str,
        (weight, bias): (&Stored, Option<&Stored>),
        size: MatrixSize,
        group: &SlotGroup,
    ) -> Result<Self> {
        let slot = WeightSlot::new(values(op, weight, bias, size)?, group)?;
        Ok(Self::in_slot(weight, bias, size, slot))
    }

    fn in_slot(
        weight: &Stored,
        bias: Option<&Stored>,
        size: MatrixSize,
        slot: Arc<WeightSlot>,
    ) -> Self {
        Self {
            size,
            dtype: weight.dtype(),
            source: WeightSource::Slot,
            bias: bias.map_or(Bias::None, |_| Bias::Slot),
            slot,
        }
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
        if matches!(self.source, WeightSource::Slot) {
            self.slot.shorten();
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
        weight + bias
    }

    /// Calls with the weight in the order of the processor's kernels, and the bias, on a device. What was copied or made for
    /// this goes afterwards, and takes memory there until then.
    pub(super) fn with_packed<R>(
        &self,
        device: &Device,
        body: impl FnOnce(&Weight, Option<&[f32]>) -> Result<R>,
    ) -> Result<R> {
        let here = self.slot.at(device)?;
        let own = match &self.bias {
            Bias::Own(slot) if !Arc::ptr_eq(slot, &self.slot) => Some(slot.at(device)?),
            _ => None,
        };
        let bias = match (&self.bias, &own) {
            (Bias::None, _) => None,
            (Bias::Slot, _) => Some(here.channels(BIAS)?),
            (Bias::Own(_), own) => Some(own.as_ref().unwrap_or(&here).channels(0)?),
        };
        match &self.source {
            WeightSource::Slot => body(&*here.packed(MATRIX)?, bias),
            WeightSource::Made { make, from_slot } => {
                let bytes = matrix_bytes(self.size, self.dtype);
                let _memory = device.allocate(bytes)?;
                let weight = self.size.pack(&make()?)?;
                if !from_slot {
                    count_copy(&Device::Cpu, device, bytes);
                }
                body(&weight, bias)
            }
        }
    }
}
