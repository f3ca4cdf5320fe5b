//! Where the weights of a layer are kept, and how they come to where it computes.
//!
//! A slot owns the weights of one layer. A layer computes where its input is. If its weights are kept there, a use holds on
//! to them; if not, they are copied for the time of the use. Networks use their layers in the same order in every pass, so
//! the copies of the next ones can be made ahead: a [`SlotGroup`] learns that order.
//!
//! Sizes are those of the weights in their file, whatever they take in the order in which kernels read them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::contents::{Content, Contents, MatrixSize, bytes_of};
use crate::buffer::Buffer;
use crate::cancel;
use crate::device::{Allocation, Device, Spare, count_copy};
use crate::error::Result;
use crate::lock::lock;
use crate::recycle::note_dropped;
use crate::stored::Stored;

/// Most steps along the learned order in the search for what comes next.
const MOST_STEPS: usize = 1024;

/// Most copies that are asked of a GPU ahead of their use; the memory for them is the limit mostly.
const MOST_STREAMED: usize = 64;

/// Numbers slots and groups.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

fn number() -> u64 {
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

/// What was done with weights that are kept elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Streamed {
    /// Uses of weights that are kept on another device.
    pub uses: u64,
    /// Those of them whose copy was there before.
    pub ahead: u64,
    /// Bytes copied for uses, also those copied ahead and never used.
    pub bytes: u64,
}

/// The slots of one network. Clones are the same group.
#[derive(Clone)]
pub struct SlotGroup(Arc<Learned>);

struct Learned {
    number: u64,
    ahead: AtomicUsize,
    uses: AtomicU64,
    hits: AtomicU64,
    bytes: AtomicU64,
    /// The slot that was copied from last.
    last: Mutex<Weak<WeightSlot>>,
}

impl Default for SlotGroup {
    fn default() -> Self {
        Self::new()
    }
}

impl SlotGroup {
    pub fn new() -> Self {
        Self(Arc::new(Learned {
            number: number(),
            ahead: AtomicUsize::new(0),
            uses: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            last: Mutex::new(Weak::new()),
        }))
    }

    /// How many of the weights that are used next are copied ahead; 0 for none.
    pub fn set_ahead(&self, count: usize) {
        self.0.ahead.store(count, Ordering::Relaxed);
        if count == 0 {
            self.drop_ahead();
        }
    }

    /// How many are copied ahead.
    pub fn ahead(&self) -> usize {
        self.0.ahead.load(Ordering::Relaxed)
    }

    /// Gives the copies made ahead back.
    pub fn drop_ahead(&self) {
        for device in Device::all() {
            device.with_spare(|spare| spare.retain(|copy| copy.group != self.0.number));
        }
    }

    pub fn stats(&self) -> Streamed {
        Streamed {
            uses: self.0.uses.load(Ordering::Relaxed),
            ahead: self.0.hits.load(Ordering::Relaxed),
            bytes: self.0.bytes.load(Ordering::Relaxed),
        }
    }

    /// Whether both are the same group.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn count_use(&self, ahead: bool) {
        self.0.uses.fetch_add(1, Ordering::Relaxed);
        self.0.hits.fetch_add(ahead.into(), Ordering::Relaxed);
    }

    fn count_copy(&self, from: &Device, to: &Device, bytes: u64) {
        self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
        count_copy(from, to, bytes);
    }
}

impl fmt::Debug for SlotGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotGroup")
            .field("number", &self.0.number)
            .field("ahead", &self.ahead())
            .field("stats", &self.stats())
            .finish()
    }
}

/// The weights of one layer, and where they are kept.
pub struct WeightSlot {
    number: u64,
    bytes: u64,
    group: SlotGroup,
    home: Mutex<Home>,
    /// Held while the weights move, so that one move ends before the next begins.
    moving: Mutex<()>,
    /// The slot that was copied from after this one the last time.
    next: Mutex<Weak<WeightSlot>>,
    /// Whether a copy was ever made ahead.
    ahead: AtomicBool,
    /// Whether copies stay for the next use.
    lasting: bool,
}

/// Where the weights of a slot are.
struct Home {
    contents: Arc<Contents>,
    /// Memory of the device they are on their way to, which is their home already: whoever needs them first, or
    /// [`WeightSlot::finish_move`], makes the copy.
    target: Option<Allocation>,
    /// For weights on a GPU that came there straight from their file: the way back, without a copy. The file is read again when they
    /// are needed, from the system's cache mostly.
    in_file: Option<Vec<Content>>,
}

impl Home {
    fn device(&self) -> &Device {
        match &self.target {
            Some(memory) => memory.device(),
            None => self.contents.device(),
        }
    }
}

/// A copy that is to be made before it is needed. The memory for it is taken already.
struct CopyRequest {
    slot: Arc<WeightSlot>,
    memory: Allocation,
}

/// Copies in the order in which they are wanted on a device.
///
/// A simulated device has no copy stream: its queue is worked off by whoever fills it.
struct CopyQueue(VecDeque<CopyRequest>);

impl CopyQueue {
    fn work_off(mut self, device: &Device) {
        while let Some(CopyRequest { slot, memory }) = self.0.pop_front() {
            // Without main memory for it the copy is made when it is needed, or the error is told then.
            let Ok(home) = slot.home_contents() else {
                return;
            };
            let Ok(copy) = home.copied_for_use(memory) else {
                return;
            };
            slot.group.count_copy(home.device(), device, slot.bytes);
            slot.ahead.store(true, Ordering::Relaxed);
            device.with_spare(|spare| spare.push(slot.spare(&Arc::new(copy))));
        }
    }
}

impl WeightSlot {
    /// Keeps the values of a layer, which are in main memory.
    pub(super) fn new(values: Vec<Content>, group: &SlotGroup) -> Result<Arc<Self>> {
        let contents = Contents::in_main_memory(values)?;
        Ok(Self::with(contents, group))
    }

    /// Lets a copy on a device stay there for the next use, until the network rests or its room is needed: for what is small
    /// and used in every pass. For the layer that has just made the slot.
    pub(super) fn keep_copies(self: &mut Arc<Self>) {
        if let Some(slot) = Arc::get_mut(self) {
            slot.lasting = true;
        }
    }

    /// The same on a device: a counted copy from the main memory.
    pub(super) fn on(
        values: Vec<Content>,
        group: &SlotGroup,
        device: &Device,
    ) -> Result<Arc<Self>> {
        let bytes = bytes_of(&values);
        let contents = Contents::in_main_memory(values)?;
        if device.is_cpu() {
            return Ok(Self::with(contents, group));
        }
        let there = contents.copied_into(device.allocate(bytes)?)?;
        count_copy(&Device::Cpu, device, bytes);
        Ok(Self::with(there, group))
    }

    /// Keeps values where they are.
    pub(super) fn with(contents: Contents, group: &SlotGroup) -> Arc<Self> {
        Arc::new(Self {
            number: number(),
            bytes: contents.bytes(),
            group: group.clone(),
            home: Mutex::new(Home {
                contents: Arc::new(contents),
                target: None,
                in_file: None,
            }),
            moving: Mutex::new(()),
            next: Mutex::new(Weak::new()),
            ahead: AtomicBool::new(false),
            lasting: false,
        })
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that are kept in main memory as far as anybody decides, but are still in their file and take none.
    pub fn unread_bytes(&self) -> u64 {
        let home = lock(&self.home);
        match home.target {
            Some(_) => 0,
            None => home.contents.unread_bytes(),
        }
    }

    pub fn group(&self) -> &SlotGroup {
        &self.group
    }

    /// The weights where they are kept, at the end of their way there.
    fn home_contents(&self) -> Result<Arc<Contents>> {
        {
            let home = lock(&self.home);
            if home.target.is_none() {
                return Ok(Arc::clone(&home.contents));
            }
        }
        self.finish_move()?;
        Ok(Arc::clone(&lock(&self.home).contents))
    }

    /// The weights wherever they are now.
    fn contents(&self) -> Arc<Contents> {
        Arc::clone(&lock(&self.home).contents)
    }

    /// Where the weights are kept.
    pub fn home(&self) -> Device {
        lock(&self.home).device().clone()
    }

    /// Keeps the weights on another device from now on: a counted copy. If there is no room they stay where they are. Uses
    /// that have begun end with the memory they have.
    ///
    /// Out of main memory only the room is taken: the copy is made by [`Self::finish_move`], or by the first who needs it.
    /// So whoever decides what goes where need not wait for it. What leaves a device is copied at once, because its room is
    /// wanted; what is still in its file as it is on the device is left there, and no copy is made.
    pub fn move_to(&self, device: &Device) -> Result<()> {
        let _moving = cancel::lock(&self.moving)?;
        let before = self.home();
        if before == *device {
            return Ok(());
        }
        self.discard();
        let memory = device.allocate(self.bytes)?;
        let contents = self.contents();
        if contents.device() == device {
            // It turns back before it was copied.
            lock(&self.home).target = None;
        } else if contents.device().is_cpu() {
            lock(&self.home).target = Some(memory);
        } else {
            let in_file = lock(&self.home).in_file.take();
            if let (Some(values), true) = (in_file, device.is_cpu()) {
                lock(&self.home).contents = Arc::new(Contents::in_memory(values, memory));
                return Ok(());
            }
            let there = Arc::new(contents.copied_into(memory)?);
            lock(&self.home).contents = there;
        }
        count_copy(&before, device, self.bytes);
        Ok(())
    }

    /// Makes the copy that the last move has left to be made, if any. Without main memory for it the weights stay where they
    /// are.
    pub fn finish_move(&self) -> Result<()> {
        let _moving = cancel::lock(&self.moving)?;
        let (contents, memory) = {
            let mut home = lock(&self.home);
            let Some(memory) = home.target.take() else {
                return Ok(());
            };
            (Arc::clone(&home.contents), memory)
        };
        let there = contents.copied_into(memory)?;
        let in_file = if there.device().is_gpu() {
            contents.in_file()
        } else {
            None
        };
        let mut home = lock(&self.home);
        (home.contents, home.in_file) = (Arc::new(there), in_file);
        Ok(())
    }

    /// The value at a place of the layer as it was given, in main memory: a counted copy where it is kept elsewhere.
    pub(super) fn stored(&self, at: usize) -> Result<Stored> {
        let home = self.contents();
        let stored = home.stored(at)?;
        match home.device() {
            Device::Cpu => Ok(stored),
            device @ Device::Sim(_) => {
                count_copy(device, &Device::Cpu, stored.bytes().len() as u64);
                stored.copied()
            }
            device @ Device::Gpu(_) => {
                count_copy(device, &Device::Cpu, stored.bytes().len() as u64);
                Ok(stored)
            }
        }
    }

    /// Whether the value at a place is this one.
    pub(super) fn holds(&self, at: usize, value: &Stored) -> bool {
        let here = self.contents().stored(at);
        here.is_ok_and(|here| here == *value)
    }

    /// Bytes of the value at a place, by its size in a file.
    pub(super) fn bytes_at(&self, at: usize) -> u64 {
        self.contents().bytes_at(at)
    }

    /// Changes how products treat inputs. For the layer that has just made the slot.
    pub(super) fn set_matrices(self: &mut Arc<Self>, change: impl Fn(&mut MatrixSize)) {
        if let Some(slot) = Arc::get_mut(self)
            && let Ok(home) = slot.home.get_mut()
            && let Some(contents) = Arc::get_mut(&mut home.contents)
        {
            contents.set_matrices(change);
        }
    }

    /// Puts weights in main memory into the order in which the processor reads them, for networks that will compute there.
    /// Nothing happens where they are elsewhere.
    pub fn prepare(&self) -> Result<()> {
        match &*self.contents() {
            contents if contents.device().is_cpu() => contents.prepare(),
            _ => Ok(()),
        }
    }

    /// The weights on a device, for one use.
    pub(super) fn at(self: &Arc<Self>, device: &Device) -> Result<Arc<Contents>> {
        let home = self.home_contents()?;
        if home.device() == device || self.bytes == 0 {
            return Ok(home);
        }
        let fetched = if self.ahead.load(Ordering::Relaxed) {
            device.with_spare(|spare| {
                let at = spare.iter().position(|copy| copy.slot == self.number)?;
                let copy = if self.lasting {
                    Arc::clone(&spare[at].copy)
                } else {
                    spare.remove(at).copy
                };
                copy.downcast::<Contents>().ok()
            })
        } else {
            None
        };
        self.group.count_use(fetched.is_some());
        let there = if let Some(copy) = fetched {
            copy
        } else if let Some(copy) = self.streamed(&home, device)? {
            copy
        } else {
            let memory = device.allocate_for_copy(home.device(), self.bytes)?;
            self.group.count_copy(home.device(), device, self.bytes);
            let copy = Arc::new(home.copied_for_use(memory)?);
            if self.lasting {
                self.ahead.store(true, Ordering::Relaxed);
                device.with_spare(|spare| spare.push(self.spare(&copy)));
            }
            copy
        };
        let there = there.ready()?;
        let count = self.group.ahead();
        if count > 0 && !self.lasting {
            self.learn();
            self.fetch_next(device, count);
        }
        Ok(there)
    }

    /// The weights on a device, in place or as a copy that is not counted among those of uses.
    pub(super) fn copied_at(&self, device: &Device) -> Result<Arc<Contents>> {
        let home = self.home_contents()?;
        if home.device() == device {
            return Ok(home);
        }
        count_copy(home.device(), device, self.bytes);
        Ok(Arc::new(home.copied_into(device.allocate(self.bytes)?)?))
    }

    /// A copy that goes with its use, made beside the work of a GPU. None where there is no room for such.
    fn streamed(&self, home: &Contents, device: &Device) -> Result<Option<Arc<Contents>>> {
        match (home.device(), device) {
            (Device::Cpu | Device::Gpu(_), Device::Gpu(_)) if !self.lasting => {}
            _ => return Ok(None),
        }
        let copy = home.streamed(device)?;
        if copy.is_some() {
            self.group.count_copy(home.device(), device, self.bytes);
        }
        Ok(copy.map(Arc::new))
    }

    /// Some rows of a table on a device, as bytes of the file's format, with the memory they take there if that is not where
    /// the table is kept.
    pub(super) fn rows(
        &self,
        device: &Device,
        rows: impl ExactSizeIterator<Item = usize>,
        row_bytes: usize,
    ) -> Result<(Buffer<u8>, Option<Allocation>)> {
        let home = self.home_contents()?;
        let bytes = rows.len() * row_bytes;
        let memory = if home.device() == device {
            None
        } else {
            self.group.count_use(false);
            let memory = device.allocate(bytes as u64)?;
            self.group.count_copy(home.device(), device, bytes as u64);
            Some(memory)
        };
        let mut found = Buffer::filled(bytes, 0)?;
        let mut rows = rows.peekable();
        let (mut at, mut last) = (0, None);
        while let Some(first) = rows.next() {
            if last == Some(first) {
                // The rest of a text is often one word that fills it.
                found.copy_within(at - row_bytes..at, at);
                at += row_bytes;
                continue;
            }
            // Rows that follow each other come at once: each copy from a GPU is waited for.
            let mut count = 1;
            while rows.next_if_eq(&(first + count)).is_some() {
                count += 1;
            }
            let len = count * row_bytes;
            home.rows(0, first, &mut found[at..at + len], row_bytes)?;
            at += len;
            last = Some(first + count - 1);
        }
        Ok((found, memory))
    }

    /// A copy that is kept on a device for a use to come.
    fn spare(&self, copy: &Arc<Contents>) -> Spare {
        Spare {
            slot: self.number,
            group: self.group.0.number,
            lasting: self.lasting,
            copy: Arc::clone(copy) as _,
        }
    }

    /// Notes that this slot follows the one before.
    fn learn(self: &Arc<Self>) {
        let me = Arc::downgrade(self);
        let before = std::mem::replace(&mut *lock(&self.group.0.last), me.clone());
        if let Some(before) = before.upgrade()
            && !Arc::ptr_eq(&before, self)
        {
            *lock(&before.next) = me;
        }
    }

    /// The next slots in the learned order whose weights are kept on another device.
    fn following(self: &Arc<Self>, device: &Device, count: usize) -> Vec<Arc<Self>> {
        let mut found: Vec<Arc<Self>> = Vec::new();
        let mut next = lock(&self.next).upgrade();
        for _ in 0..MOST_STEPS {
            let Some(slot) = next.take_if(|slot| !Arc::ptr_eq(slot, self)) else {
                break;
            };
            next = lock(&slot.next).upgrade();
            if slot.home() != *device && !found.iter().any(|other| Arc::ptr_eq(other, &slot)) {
                found.push(slot);
            }
            if found.len() >= count {
                break;
            }
        }
        found
    }

    /// Copies the next weights ahead where there is room, and gives up copies of the group that are not among them.
    fn fetch_next(self: &Arc<Self>, device: &Device, count: usize) {
        let count = match device {
            Device::Cpu | Device::Sim(_) => count,
            // As many as there is room for.
            Device::Gpu(_) => MOST_STREAMED,
        };
        let wanted = self.following(device, count);
        let group = &self.group;
        let missing: Vec<&Arc<Self>> = device.with_spare(|spare| {
            let is_wanted = |copy: &Spare| wanted.iter().any(|slot| slot.number == copy.slot);
            let is_other = |copy: &Spare| copy.group != group.0.number || copy.lasting;
            spare.retain(|copy| is_other(copy) || is_wanted(copy));
            let is_there = |slot: &Arc<Self>| spare.iter().any(|copy| copy.slot == slot.number);
            wanted.iter().filter(|slot| !is_there(slot)).collect()
        });
        if let Device::Gpu(_) = device {
            return Self::stream_ahead(missing, device);
        }
        let mut queue = CopyQueue(VecDeque::new());
        for slot in missing {
            // Without room the copy is made when it is needed.
            let Ok(memory) = device.take_for_copy(&slot.home(), slot.bytes) else {
                break;
            };
            let slot = Arc::clone(slot);
            queue.0.push_back(CopyRequest { slot, memory });
        }
        queue.work_off(device);
    }

    /// Asks a GPU to copy the next weights beside its work, as far as there is room.
    fn stream_ahead(slots: Vec<&Arc<Self>>, device: &Device) {
        for slot in slots {
            // What goes wrong is told when they are needed.
            let copy = slot
                .home_contents()
                .and_then(|home| slot.streamed(&home, device));
            let Ok(Some(copy)) = copy else {
                return;
            };
            slot.ahead.store(true, Ordering::Relaxed);
            device.with_spare(|spare| spare.push(slot.spare(&copy)));
        }
    }

    /// Gives copies of these weights that were made ahead back.
    fn discard(&self) {
        if self.ahead.load(Ordering::Relaxed) {
            for device in Device::all() {
                device.with_spare(|spare| spare.retain(|copy| copy.slot != self.number));
            }
        }
    }
}

impl Drop for WeightSlot {
    fn drop(&mut self) {
        note_dropped(self.bytes);
        self.discard();
    }
}

impl fmt::Debug for WeightSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WeightSlot({} bytes on {})", self.bytes, self.home())
    }
}
