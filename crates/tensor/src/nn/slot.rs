//! Where the weights of a layer are kept, and how they come to where it computes.
//!
//! A layer computes where its input is. If its weights are kept there, a use holds on to them; if not, memory for a copy
//! is taken for the time of the use. Networks use their layers in the same order in every pass, so the copies of the next
//! ones can be made ahead: a [`Group`] learns that order.
//!
//! Sizes are those of the weights in their file, whatever they take in the order in which kernels read them.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::device::{Allocation, Device, Spare, count_copy};
use crate::error::Result;
use crate::recycle::note_dropped;

/// Most steps along the learned order in the search for what comes next.
const MOST_STEPS: usize = 1024;

/// Numbers slots and groups.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

fn number() -> u64 {
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

/// Nothing is done under these locks that could leave anything half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
pub struct Group(Arc<Learned>);

struct Learned {
    number: u64,
    ahead: AtomicUsize,
    uses: AtomicU64,
    hits: AtomicU64,
    bytes: AtomicU64,
    /// The slot that was copied from last.
    last: Mutex<Weak<Slot>>,
}

impl Default for Group {
    fn default() -> Self {
        Self::new()
    }
}

impl Group {
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

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("number", &self.0.number)
            .field("ahead", &self.ahead())
            .field("stats", &self.stats())
            .finish()
    }
}

/// The place of one layer's weights.
pub struct Slot {
    number: u64,
    bytes: u64,
    group: Group,
    home: Mutex<Arc<Allocation>>,
    /// The slot that was copied from after this one the last time.
    next: Mutex<Weak<Slot>>,
    /// Whether a copy was ever made ahead.
    ahead: AtomicBool,
}

/// The weights of a slot on a device, for one use.
#[derive(Debug)]
pub(crate) struct Here {
    _memory: Arc<Allocation>,
}

impl Slot {
    /// For weights of so many bytes, in main memory.
    pub fn new(bytes: u64, group: &Group) -> Arc<Self> {
        let memory = Device::cpu().allocate(bytes);
        Self::with(memory.expect("the main memory is not counted"), group)
    }

    /// The same on a device: a counted copy from the main memory.
    pub fn on(bytes: u64, group: &Group, device: &Device) -> Result<Arc<Self>> {
        Ok(Self::with(device.upload(bytes)?, group))
    }

    fn with(memory: Allocation, group: &Group) -> Arc<Self> {
        Arc::new(Self {
            number: number(),
            bytes: memory.bytes(),
            group: group.clone(),
            home: Mutex::new(Arc::new(memory)),
            next: Mutex::new(Weak::new()),
            ahead: AtomicBool::new(false),
        })
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Where the weights are kept.
    pub fn home(&self) -> Device {
        lock(&self.home).device().clone()
    }

    /// Keeps the weights on another device from now on: a counted copy. If there is no room they stay where they are.
    /// Uses that have begun end with the memory they have.
    pub fn move_to(&self, device: &Device) -> Result<()> {
        if self.home() == *device {
            return Ok(());
        }
        self.discard();
        let memory = Arc::new(device.allocate(self.bytes)?);
        let before = std::mem::replace(&mut *lock(&self.home), memory);
        count_copy(before.device(), device, self.bytes);
        Ok(())
    }

    /// The weights on a device, for one use.
    pub(crate) fn at(self: &Arc<Self>, device: &Device) -> Result<Here> {
        let home = Arc::clone(&lock(&self.home));
        if home.device() == device || self.bytes == 0 {
            return Ok(Here { _memory: home });
        }
        let fetched = if self.ahead.load(Ordering::Relaxed) {
            device.with_spare(|spare| {
                let at = spare.iter().position(|copy| copy.slot == self.number)?;
                Some(spare.remove(at).memory)
            })
        } else {
            None
        };
        self.group.count_use(fetched.is_some());
        let memory = match fetched {
            Some(memory) => memory,
            None => self.copy(home.device(), device, self.bytes)?,
        };
        let count = self.group.ahead();
        if count > 0 {
            self.learn();
            self.fetch_next(device, count);
        }
        Ok(Here {
            _memory: Arc::new(memory),
        })
    }

    /// A part of the weights on a device, for one use: where a layer does not need all of them.
    pub(crate) fn part(&self, device: &Device, bytes: u64) -> Result<Here> {
        let home = Arc::clone(&lock(&self.home));
        if home.device() == device {
            return Ok(Here { _memory: home });
        }
        self.group.count_use(false);
        Ok(Here {
            _memory: Arc::new(self.copy(home.device(), device, bytes)?),
        })
    }

    fn copy(&self, from: &Device, to: &Device, bytes: u64) -> Result<Allocation> {
        let memory = to.allocate(bytes)?;
        self.group.count_copy(from, to, bytes);
        Ok(memory)
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
        let wanted = self.following(device, count);
        let group = &self.group;
        let missing: Vec<&Arc<Self>> = device.with_spare(|spare| {
            let is_wanted = |copy: &Spare| wanted.iter().any(|slot| slot.number == copy.slot);
            spare.retain(|copy| copy.group != group.0.number || is_wanted(copy));
            let is_there = |slot: &Arc<Self>| spare.iter().any(|copy| copy.slot == slot.number);
            wanted.iter().filter(|slot| !is_there(slot)).collect()
        });
        for slot in missing {
            // Without room the copy is made when it is needed.
            let Ok(memory) = device.take(slot.bytes) else {
                break;
            };
            group.count_copy(&slot.home(), device, slot.bytes);
            slot.ahead.store(true, Ordering::Relaxed);
            let copy = Spare {
                slot: slot.number,
                group: group.0.number,
                memory,
            };
            device.with_spare(|spare| spare.push(copy));
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

impl Drop for Slot {
    fn drop(&mut self) {
        note_dropped(self.bytes);
        self.discard();
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({} bytes on {})", self.bytes, self.home())
    }
}
