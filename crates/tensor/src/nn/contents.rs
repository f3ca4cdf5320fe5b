//! The values of a layer in the memory of one device, in the forms that its kernels read.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use super::merge::{Growth, MergedAs};
use super::prepare;
use crate::buffer::Buffer;
use crate::cancel;
use crate::cpu::packed::Weight;
use crate::device::{Allocation, Device};
use crate::error::{Result, TensorError};
use crate::gpu::{
    ArrivedWeight, CopyEnd, FoldedWeight, GpuMemory, GpuValue, GpuWeight, LARGE, MatrixShape,
    MemoryUse, MergedWeight, Transfer,
};
use crate::lock::lock;
use crate::narrow::Narrow;
use crate::stored::Stored;

/// Sizes of a matrix, or of kernels, of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MatrixSize {
    pub(super) out: usize,
    pub(super) channels: usize,
    /// Values for one pair of an output and an input: one for a matrix, one per position of a kernel.
    pub(super) taps: usize,
    /// Whether products may keep sixteen bits of an input.
    pub(super) short: bool,
    /// Whether products must keep all of an input, also where the format would have it rounded.
    pub(super) exact: bool,
}

impl MatrixSize {
    pub(super) fn new(out: usize, channels: usize, taps: usize) -> Self {
        Self {
            out,
            channels,
            taps,
            short: false,
            exact: false,
        }
    }

    /// The sizes, as GPUs know them.
    pub(super) fn shape(self) -> MatrixShape {
        MatrixShape {
            out: self.out,
            channels: self.channels,
            taps: self.taps,
        }
    }

    /// A weight in the order in which the processor's kernels read it.
    pub(super) fn pack(self, stored: &Stored) -> Result<Weight> {
        let elements = self.out * self.channels * self.taps;
        if stored.shape().first() != Some(&self.out) || stored.len() != elements {
            let size = [self.out, self.channels, self.taps];
            return Err(TensorError::mismatch("weight", stored.shape(), &size));
        }
        let mut weight = Weight::new(stored, self.out, self.channels, self.taps)?;
        if self.short {
            weight.shorten();
        }
        if self.exact {
            weight.set_exact();
        }
        Ok(weight)
    }
}

/// One value of a layer.
#[derive(Debug)]
pub(super) enum Content {
    Matrix(Matrix),
    Channels(Channels),
    /// Rows that are looked up, or numbers that are taken as they are.
    Plain(Stored),
    /// Any of them on a GPU.
    Gpu(GpuValue, ValueKind),
    /// A matrix on a GPU, on its way into the form that kernels read.
    Folded(Box<dyn FoldedWeight>, ValueKind),
}

/// What a value on a GPU is in main memory.
#[derive(Debug, Clone, Copy)]
pub(super) enum ValueKind {
    Matrix(MatrixSize),
    Channels,
    Plain,
}

impl ValueKind {
    /// The sizes of a matrix, as GPUs know them.
    fn matrix(self) -> Option<MatrixShape> {
        match self {
            Self::Matrix(size) => Some(size.shape()),
            Self::Channels | Self::Plain => None,
        }
    }
}

/// For who asks for a value that is on its way to a GPU.
fn not_yet() -> TensorError {
    TensorError::invalid("weight", "it is on its way to a GPU")
}

/// A matrix as it was read, or in the order in which kernels read it.
#[derive(Debug)]
pub(super) struct Matrix {
    size: MatrixSize,
    bytes: u64,
    form: Arc<Mutex<Form>>,
    /// How often it has streamed straight from its file.
    from_file: AtomicU32,
}

#[derive(Debug, Clone)]
pub(super) enum Form {
    /// As in the file. The processor's order is made from it when the processor first needs it.
    Read(Stored),
    Packed(Arc<Weight>),
    /// Shorter, for the way to a GPU that is made again and again; no less exact.
    Narrow(Arc<Narrow>),
}

impl Matrix {
    fn new(size: MatrixSize, stored: &Stored) -> Self {
        Self {
            size,
            bytes: stored.byte_len() as u64,
            form: Arc::new(Mutex::new(Form::Read(stored.clone()))),
            from_file: AtomicU32::new(0),
        }
    }

    /// For kernels of the processor. Made at the first use; what was read goes then.
    fn packed(&self) -> Result<Arc<Weight>> {
        // Held while packing: whoever comes meanwhile needs the same weight.
        let mut form = cancel::lock(&self.form)?;
        let stored = match &*form {
            Form::Packed(weight) => return Ok(Arc::clone(weight)),
            Form::Read(stored) => stored.clone(),
            Form::Narrow(narrow) => narrow.stored()?,
        };
        let weight = Arc::new(self.size.pack(&stored)?);
        *form = Form::Packed(Arc::clone(&weight));
        Ok(weight)
    }

    fn stored(&self) -> Result<Stored> {
        let form = cancel::lock(&self.form)?.clone();
        match form {
            Form::Read(stored) => Ok(stored),
            Form::Packed(weight) => weight.unpack(),
            Form::Narrow(narrow) => narrow.stored(),
        }
    }

    /// As it streams to a GPU: straight from its file at first. From the second time on it is brought into main memory meanwhile, in a
    /// shorter form; the first step would wait for that work.
    fn transfer(&self) -> Result<Transfer> {
        let mut form = cancel::lock(&self.form)?;
        if let Form::Read(stored) = &*form
            && stored.byte_len() >= LARGE
            && stored.is_direct()
        {
            if self.from_file.fetch_add(1, Ordering::Relaxed) == 1 {
                prepare::prepare(&self.form, self.size.taps);
            }
            return Ok(Transfer::File(stored.clone()));
        }
        let stored = match &*form {
            Form::Narrow(narrow) => return Ok(Transfer::Narrow(Arc::clone(narrow))),
            Form::Read(stored) => stored.clone(),
            Form::Packed(weight) => weight.unpack()?,
        };
        // Kernels of convolutions are put into another order there, which is done with whole elements.
        let narrow = match self.size.taps {
            1 => Narrow::new(&stored)?,
            _ => None,
        };
        let Some(narrow) = narrow else {
            *form = Form::Read(stored.clone());
            return Ok(Transfer::Whole(stored));
        };
        let narrow = Arc::new(narrow);
        *form = Form::Narrow(Arc::clone(&narrow));
        Ok(Transfer::Narrow(narrow))
    }

    /// The same numbers in other memory, in the order in which kernels read them if that was made, or if `packed`.
    fn copied(&self, packed: bool) -> Result<Self> {
        let form = cancel::lock(&self.form)?.clone();
        let form = match form {
            Form::Packed(weight) => Form::Packed(Arc::new(weight.copied()?)),
            Form::Read(stored) if packed => Form::Packed(Arc::new(self.size.pack(&stored)?)),
            Form::Read(stored) => Form::Read(stored.copied()?),
            Form::Narrow(narrow) if packed => {
                Form::Packed(Arc::new(self.size.pack(&narrow.stored()?)?))
            }
            Form::Narrow(narrow) => Form::Read(narrow.stored()?),
        };
        Ok(Self {
            size: self.size,
            bytes: self.bytes,
            form: Arc::new(Mutex::new(form)),
            from_file: AtomicU32::new(0),
        })
    }
}

/// One number per channel: as in the file, and as kernels read them from the first use on.
#[derive(Debug)]
pub(super) struct Channels {
    stored: Stored,
    values: OnceLock<Buffer<f32>>,
}

impl Channels {
    fn values(&self) -> Result<&[f32]> {
        if self.values.get().is_none() {
            let mut values = Buffer::filled(self.stored.len(), 0.0)?;
            self.stored
                .dtype()
                .to_f32_into(self.stored.read()?, &mut values);
            // Another thread may have been faster, with the same numbers.
            let _ = self.values.set(values);
        }
        Ok(self.values.get().map_or(&[], |values| values))
    }
}

impl Content {
    pub(super) fn matrix(stored: &Stored, size: MatrixSize) -> Self {
        Self::Matrix(Matrix::new(size, stored))
    }

    pub(super) fn channels(stored: &Stored) -> Self {
        Self::Channels(Channels {
            stored: stored.clone(),
            values: OnceLock::new(),
        })
    }

    pub(super) fn plain(stored: &Stored) -> Self {
        Self::Plain(stored.clone())
    }

    /// By the size in a file.
    fn bytes(&self) -> u64 {
        match self {
            Self::Matrix(matrix) => matrix.bytes,
            Self::Channels(Channels { stored, .. }) | Self::Plain(stored) => {
                stored.byte_len() as u64
            }
            Self::Gpu(value, _) => value.bytes(),
            Self::Folded(folded, _) => folded.bytes(),
        }
    }

    /// Bytes that are still in their file, and take no memory.
    fn unread_bytes(&self) -> u64 {
        let unread = |stored: &Stored| match stored.in_file() {
            Some(_) => stored.byte_len() as u64,
            None => 0,
        };
        match self {
            // A locked form is being read.
            Self::Matrix(matrix) => match matrix.form.try_lock().as_deref() {
                Ok(Form::Read(stored)) => unread(stored),
                _ => 0,
            },
            Self::Channels(Channels { stored, .. }) | Self::Plain(stored) => unread(stored),
            Self::Gpu(..) | Self::Folded(..) => 0,
        }
    }

    /// The same value as its file has it. None where it is elsewhere, or was changed since it was read.
    fn in_file(&self) -> Option<Self> {
        Some(match self {
            Self::Matrix(matrix) => match &*lock(&matrix.form) {
                Form::Read(stored) => Self::matrix(&stored.in_file_again()?, matrix.size),
                Form::Packed(_) | Form::Narrow(_) => return None,
            },
            Self::Channels(Channels { stored, .. }) => Self::channels(&stored.in_file_again()?),
            Self::Plain(stored) => Self::plain(&stored.in_file_again()?),
            Self::Gpu(..) | Self::Folded(..) => return None,
        })
    }

    fn stored(&self) -> Result<Stored> {
        match self {
            Self::Matrix(matrix) => matrix.stored(),
            Self::Channels(Channels { stored, .. }) | Self::Plain(stored) => Ok(stored.clone()),
            Self::Gpu(value, _) => value.stored(),
            Self::Folded(..) => Err(not_yet()),
        }
    }

    fn kind(&self) -> ValueKind {
        match self {
            Self::Matrix(matrix) => ValueKind::Matrix(matrix.size),
            Self::Channels(_) => ValueKind::Channels,
            Self::Plain(_) => ValueKind::Plain,
            Self::Gpu(_, kind) | Self::Folded(_, kind) => *kind,
        }
    }

    /// As it streams to a GPU; none for what is on one already.
    fn transfer(&self) -> Result<Option<Transfer>> {
        Ok(match self {
            Self::Matrix(matrix) => Some(matrix.transfer()?),
            Self::Channels(Channels { stored, .. }) | Self::Plain(stored) => {
                Some(Transfer::Whole(stored.clone()))
            }
            Self::Gpu(..) => None,
            Self::Folded(..) => return Err(not_yet()),
        })
    }

    /// A copy in the memory of a GPU, at a place that moves behind it.
    fn uploaded(&self, to: (&GpuMemory, MemoryUse), place: &mut u64) -> Result<Self> {
        let kind = self.kind();
        let matrix = kind.matrix();
        let gpu = to.0.device();
        let value = gpu.upload_weight(&self.stored()?, matrix, to, place)?;
        Ok(Self::Gpu(value, kind))
    }

    fn copied(&self, packed: bool) -> Result<Self> {
        Ok(match self {
            Self::Matrix(matrix) => Self::Matrix(matrix.copied(packed)?),
            Self::Channels(channels) => Self::channels(&channels.stored.copied()?),
            Self::Plain(stored) => Self::Plain(stored.copied()?),
            Self::Gpu(value, kind) => {
                let stored = value.stored()?;
                match kind {
                    ValueKind::Matrix(size) => Self::Matrix(Matrix::new(*size, &stored)),
                    ValueKind::Channels => Self::channels(&stored),
                    ValueKind::Plain => Self::Plain(stored),
                }
            }
            Self::Folded(..) => return Err(not_yet()),
        })
    }
}

/// Bytes of values, by their size in a file.
pub(super) fn bytes_of(values: &[Content]) -> u64 {
    values.iter().map(Content::bytes).sum()
}

/// All values of a layer in one memory, which goes with them.
#[derive(Debug)]
pub(super) struct Contents {
    values: Vec<Content>,
    /// Where they are copied beside the work of a GPU: what it waits for. It goes before the memory does.
    copied: Option<CopyEnd>,
    memory: Allocation,
    /// What some of them are still in.
    _source: Option<Arc<Self>>,
}

impl Contents {
    /// Values that are in main memory.
    pub(super) fn in_main_memory(values: Vec<Content>) -> Result<Self> {
        let memory = Device::Cpu.allocate(bytes_of(&values))?;
        Ok(Self::in_memory(values, memory))
    }

    /// The same in main memory that was asked for.
    pub(super) fn in_memory(values: Vec<Content>, memory: Allocation) -> Self {
        Self {
            values,
            copied: None,
            memory,
            _source: None,
        }
    }

    /// The same values as their file has them. None where they are elsewhere, or were changed since they were read.
    pub(super) fn in_file(&self) -> Option<Vec<Content>> {
        self.values.iter().map(Content::in_file).collect()
    }

    pub(super) fn device(&self) -> &Device {
        self.memory.device()
    }

    /// By the size in a file.
    pub(super) fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// Those of them that are still in their file, and take no memory.
    pub(super) fn unread_bytes(&self) -> u64 {
        self.values.iter().map(Content::unread_bytes).sum()
    }

    /// By the size in a file, of the value at a place.
    pub(super) fn bytes_at(&self, at: usize) -> u64 {
        self.values.get(at).map_or(0, Content::bytes)
    }

    /// A copy in memory that was taken on a device.
    pub(super) fn copied_into(&self, memory: Allocation) -> Result<Self> {
        let packed = match memory.device() {
            // There the order of the kernels is made at the first use.
            Device::Cpu => false,
            // Simulated devices compute with kernels of the processor.
            Device::Sim(_) => true,
            Device::Gpu(_) => return self.uploaded_into(memory, MemoryUse::Work),
        };
        self.device().check_usable()?;
        let values = self.values.iter().map(|value| value.copied(packed));
        Ok(Self {
            values: values.collect::<Result<_>>()?,
            copied: None,
            memory,
            _source: None,
        })
    }

    /// A copy in memory of a GPU, ahead of its use or at once.
    fn uploaded_into(&self, memory: Allocation, by: MemoryUse) -> Result<Self> {
        let Some(block) = memory.block() else {
            return Err(TensorError::invalid("weight", "there is no memory for it"));
        };
        let mut place = 0;
        let values = self.values.iter();
        let values = values.map(|value| value.uploaded((block, by), &mut place));
        let values = values.collect::<Result<_>>()?;
        let copied = match by {
            MemoryUse::Work => None,
            MemoryUse::Copies => Some(CopyEnd::new(Arc::clone(block.device()))?),
        };
        Ok(Self {
            values,
            copied,
            memory,
            _source: None,
        })
    }

    /// A copy for one use on a GPU, made beside its work in the memory through which such copies go. None where that has no
    /// room.
    pub(super) fn streamed(&self, device: &Device) -> Result<Option<Self>> {
        let transfers = self.values.iter().map(Content::transfer);
        let transfers: Vec<Option<Transfer>> = transfers.collect::<Result<_>>()?;
        let sizes = self.values.iter().zip(&transfers);
        let bytes = sizes.map(|(value, transfer)| match transfer {
            Some(transfer) => transfer.len() as u64,
            None => value.bytes(),
        });
        let Some(memory) = device.take_in_ring(bytes.sum())? else {
            return Ok(None);
        };
        let Some(block) = memory.block() else {
            return Ok(None);
        };
        let mut place = 0;
        let mut values = Vec::with_capacity(transfers.len());
        for (value, transfer) in self.values.iter().zip(transfers) {
            let kind = value.kind();
            let arrived = match (transfer, value) {
                (Some(transfer), _) => {
                    let gpu = block.device();
                    gpu.stream_weight(transfer, kind.matrix(), block, &mut place)?
                }
                (None, Content::Gpu(value, _)) => {
                    ArrivedWeight::Value(value.stream_to(block, &mut place)?)
                }
                (None, _) => return Err(not_yet()),
            };
            values.push(match arrived {
                ArrivedWeight::Value(value) => Content::Gpu(value, kind),
                ArrivedWeight::Folded(folded) => Content::Folded(folded, kind),
            });
        }
        let copied = Some(CopyEnd::new(Arc::clone(block.device()))?);
        Ok(Some(Self {
            values,
            copied,
            memory,
            _source: None,
        }))
    }

    /// The matrix of a layer on a GPU with what it grows by, and a bias, in memory that was taken there. None for a matrix that
    /// only the processor can change.
    pub(super) fn merged(
        from: &Self,
        size: MatrixSize,
        growths: &[Growth],
        how: MergedAs<'_>,
        memory: Allocation,
    ) -> Result<Option<Self>> {
        let Some(block) = memory.block() else {
            return Err(TensorError::invalid("weight", "there is no memory for it"));
        };
        let (gpu, weight) = (block.device(), from.gpu(0)?);
        if !gpu.merges(weight) {
            return Ok(None);
        }
        let kind = ValueKind::Matrix(size);
        let mut place = 0;
        let kept = MergedWeight {
            dtype: how.dtype,
            matrix: size.shape(),
            seed: how.seed,
        };
        let value = gpu.offer_merged_weight(weight, growths, kept, block, &mut place)?;
        let mut values = vec![Content::Gpu(value, kind)];
        if let Some(bias) = how.bias {
            let to = (block, MemoryUse::Work);
            let value = gpu.upload_weight(bias, None, to, &mut place)?;
            values.push(Content::Gpu(value, ValueKind::Channels));
        }
        Ok(Some(Self {
            values,
            copied: None,
            memory,
            _source: None,
        }))
    }

    /// Lets the work of a GPU that is asked for next wait for the values, and puts them into the form that kernels read.
    pub(super) fn ready(self: Arc<Self>) -> Result<Arc<Self>> {
        self.wait()?;
        let folded = self.values.iter().filter_map(|value| match value {
            Content::Folded(folded, _) => Some(folded.bytes()),
            _ => None,
        });
        let bytes: u64 = folded.sum();
        if bytes == 0 {
            return Ok(self);
        }
        let memory = self.device().allocate(bytes)?;
        let Some(block) = memory.block() else {
            return Err(TensorError::invalid("weight", "there is no memory for it"));
        };
        let mut place = 0;
        let values = self.values.iter().map(|value| match value {
            Content::Folded(folded, kind) => {
                Ok(Content::Gpu(folded.unfolded(block, &mut place)?, *kind))
            }
            Content::Gpu(value, kind) => Ok(Content::Gpu(value.again(), *kind)),
            Content::Matrix(_) | Content::Channels(_) | Content::Plain(_) => Err(not_yet()),
        });
        let values = values.collect::<Result<_>>()?;
        Ok(Arc::new(Self {
            values,
            copied: None,
            memory,
            _source: Some(self),
        }))
    }

    /// Lets the work of a GPU that is asked for next wait for the values.
    pub(super) fn wait(&self) -> Result<()> {
        self.copied.as_ref().map_or(Ok(()), CopyEnd::wait)
    }

    /// The value at a place of the layer, for kernels of a GPU.
    pub(super) fn gpu(&self, at: usize) -> Result<&dyn GpuWeight> {
        match self.values.get(at) {
            Some(Content::Gpu(value, _)) => Ok(&**value),
            _ => Err(TensorError::invalid(
                "weight",
                "the layer has no such value on a GPU",
            )),
        }
    }

    /// Some rows of the table at a place, as in the file. A large table in main memory stays in its file: of a vocabulary a prompt
    /// needs a few hundred rows.
    pub(super) fn rows(&self, at: usize, start: usize, out: &mut [u8], row: usize) -> Result<()> {
        const LARGE: usize = 16 << 20;
        let from = start * row;
        if let Some(Content::Gpu(value, _)) = self.values.get(at) {
            return value.part(from, out);
        }
        let stored = self.stored(at)?;
        if stored.byte_len() > LARGE
            && let Some(rows) = stored.unread_rows(start, out.len() / row.max(1))
        {
            out.copy_from_slice(rows.read()?);
            return Ok(());
        }
        out.copy_from_slice(&stored.read()?[from..from + out.len()]);
        Ok(())
    }

    /// The same for one use of many: what is in main memory is put into the order of the device's kernels once, so that each
    /// use copies and none reorders.
    pub(super) fn copied_for_use(&self, memory: Allocation) -> Result<Self> {
        match (self.device(), memory.device()) {
            (Device::Cpu, Device::Sim(_)) => self.prepare()?,
            // Beside the work: the memory was taken for that.
            (Device::Cpu, Device::Gpu(_)) => return self.uploaded_into(memory, MemoryUse::Copies),
            (Device::Cpu, Device::Cpu) | (Device::Sim(_) | Device::Gpu(_), _) => {}
        }
        self.copied_into(memory)
    }

    /// The matrix at a place of the layer, for kernels of the processor.
    pub(super) fn packed(&self, at: usize) -> Result<Arc<Weight>> {
        match self.values.get(at) {
            Some(Content::Matrix(matrix)) => matrix.packed(),
            _ => Err(TensorError::invalid(
                "weight",
                "the layer has no matrix there",
            )),
        }
    }

    /// One number per channel, for kernels of the processor.
    pub(super) fn channels(&self, at: usize) -> Result<&[f32]> {
        match self.values.get(at) {
            Some(Content::Channels(channels)) => channels.values(),
            _ => Err(TensorError::invalid(
                "weight",
                "the layer has no channels there",
            )),
        }
    }

    /// The value at a place as it was given.
    pub(super) fn stored(&self, at: usize) -> Result<Stored> {
        let value = self.values.get(at);
        value.map_or_else(
            || {
                Err(TensorError::invalid(
                    "weight",
                    "the layer has no such value",
                ))
            },
            Content::stored,
        )
    }

    /// Puts matrices into the order of the processor's kernels, as the first use would, and reads what is still in its file.
    pub(super) fn prepare(&self) -> Result<()> {
        for value in &self.values {
            match value {
                Content::Matrix(matrix) => {
                    matrix.packed()?;
                }
                Content::Channels(Channels { stored, .. }) | Content::Plain(stored) => {
                    stored.read()?;
                }
                Content::Gpu(..) | Content::Folded(..) => {}
            }
        }
        Ok(())
    }

    /// Changes how products treat inputs. For a layer that was not used yet.
    pub(super) fn set_matrices(&mut self, change: impl Fn(&mut MatrixSize)) {
        for value in &mut self.values {
            if let Content::Matrix(matrix) = value {
                change(&mut matrix.size);
            }
        }
    }
}
