//! Memory on a GPU through which weights stream that are kept elsewhere.
//!
//! The program runs ahead of the GPU. Were each copy given memory of its own, the copies of a whole step would be asked for
//! before the first of them was used, and take as much memory as the weights that were to be kept off the device. So they go
//! around in a ring: what comes next waits, on the GPU, until the work that used its place before is done. Nobody waits in
//! the program.

use std::sync::{Arc, Mutex};

use super::device::CudaDevice;
use super::driver::Shared;
use super::{Address, OnCard, steps};
use crate::error::Result;
use crate::gpu::{GpuMemory, MemoryLender};
use crate::lock::lock;

/// What a ring takes where there is room: some ten milliseconds of copying.
const WANTED: u64 = 1 << 30;
/// Where a copy may begin.
const ALIGNMENT: u64 = 256;

/// The ring of a device, made when weights first stream.
#[derive(Default)]
pub(super) struct DeviceRing(Mutex<RingState>);

struct RingState {
    ring: Option<Arc<Ring>>,
    /// The most that the next one takes: less where it was in the way.
    most: u64,
}

impl Default for RingState {
    fn default() -> Self {
        Self {
            ring: None,
            most: WANTED,
        }
    }
}

#[derive(Debug)]
pub(super) struct Ring {
    bytes: u64,
    places: Mutex<Places>,
    block: GpuMemory,
}

/// Which parts of a ring are taken. `E` is what tells when the last user of a part is done.
#[derive(Debug)]
struct Places<E = Shared> {
    bytes: u64,
    head: u64,
    next: u64,
    taken: Vec<Place<E>>,
}

#[derive(Debug)]
struct Place<E> {
    number: u64,
    start: u64,
    end: u64,
    /// Given back, and free when this has passed.
    free: Option<E>,
}

impl<E> Places<E> {
    fn new(bytes: u64) -> Self {
        Self {
            bytes,
            head: 0,
            next: 0,
            taken: Vec::new(),
        }
    }

    /// The number and the start of a new part, and what has to pass first. None where somebody still has what would come next.
    fn take(&mut self, bytes: u64) -> Option<(u64, u64, Vec<E>)> {
        let bytes = bytes.next_multiple_of(ALIGNMENT);
        if bytes > self.bytes {
            return None;
        }
        let start = if self.head + bytes > self.bytes {
            0
        } else {
            self.head
        };
        let end = start + bytes;
        let in_the_way = |place: &Place<E>| place.start < end && place.end > start;
        if self
            .taken
            .iter()
            .any(|place| in_the_way(place) && place.free.is_none())
        {
            return None;
        }
        let gone = self.taken.extract_if(.., |place| in_the_way(place));
        let first = gone.filter_map(|place| place.free).collect();
        let number = self.next;
        self.next += 1;
        self.head = end;
        self.taken.push(Place {
            number,
            start,
            end,
            free: None,
        });
        Some((number, start, first))
    }

    /// Gives a part back; it can be had again when the event has passed.
    fn give(&mut self, number: u64, event: E) {
        if let Some(place) = self.taken.iter_mut().find(|place| place.number == number) {
            place.free = Some(event);
        }
    }
}

impl DeviceRing {
    /// Lets go of it: now, or when the last copy in it is used.
    pub(super) fn clear(&self) {
        let ring = lock(&self.0).ring.take();
        drop(ring);
    }

    /// The same because its room is needed: the next one is smaller.
    pub(super) fn give_up(&self) {
        let mut state = lock(&self.0);
        let ring = state.ring.take();
        if let Some(ring) = &ring {
            state.most = ring.bytes / 2;
        }
        drop(state);
        drop(ring);
    }

    /// The ring for copies of a size. None where there is no room for two of them.
    fn get(&self, device: &CudaDevice, bytes: u64) -> Option<Arc<Ring>> {
        let mut state = lock(&self.0);
        if let Some(ring) = &state.ring {
            return (ring.bytes >= 2 * bytes).then(|| Arc::clone(ring));
        }
        // Most of what is free is for computing.
        let free = device.free();
        let size = state.most.min(free / 4).max(2 * bytes);
        if size > free / 2 {
            return None;
        }
        let size = size.next_multiple_of(ALIGNMENT);
        let block = device.take_arena(size).ok()?;
        // Copies come after the memory is there.
        let event = device.marked(device.compute).ok()?;
        device.after(device.copies, event).ok()?;
        let ring = Arc::new(Ring {
            bytes: size,
            places: Mutex::new(Places::new(size)),
            block,
        });
        state.ring = Some(Arc::clone(&ring));
        Some(ring)
    }
}

impl CudaDevice {
    /// A place for a copy that is asked for next, beside the work: the ring's address and an offset there, the ring, and the number of
    /// the part. None where there is no room in the ring.
    #[expect(clippy::type_complexity, reason = "three things about one part")]
    pub(super) fn ring_part(&self, bytes: u64) -> Result<Option<((u64, u64), Arc<Ring>, u64)>> {
        self.enter()?;
        let Some(ring) = self.ring.get(self, bytes) else {
            return Ok(None);
        };
        let Some((number, start, first)) = lock(&ring.places).take(bytes) else {
            return Ok(None);
        };
        let place = (ring.block.address(), start);
        for event in first {
            if let Err(error) = self.after(self.copies, event) {
                ring.take_back(number);
                return Err(error);
            }
        }
        Ok(Some((place, ring, number)))
    }

    /// An event behind all that was asked of a stream.
    pub(super) fn marked(&self, stream: Shared) -> Result<Shared> {
        let event = self.checked(self.driver.mark())?;
        let recorded = self.checked(self.driver.record(event, stream));
        if recorded.is_err() {
            self.driver.destroy_event(event);
        }
        recorded.map(|()| event)
    }

    /// Lets what is asked of a stream next wait for an event, which is not needed afterwards.
    pub(super) fn after(&self, stream: Shared, event: Shared) -> Result<()> {
        let answer = self.checked(self.driver.wait_for(stream, event));
        self.driver.destroy_event(event);
        answer
    }
}

impl MemoryLender for Ring {
    fn take_back(&self, number: u64) {
        let device = self.block.card();
        // Kernels that a step has asked for and not started may still want it.
        let _ = steps::interrupt(device);
        let event = device.enter().and_then(|()| device.marked(device.compute));
        // Without an event the place stays taken: the device has failed.
        if let Ok(event) = event {
            lock(&self.places).give(number, event);
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let device = self.block.card();
        for place in lock(&self.places).taken.drain(..) {
            if let Some(event) = place.free {
                device.driver.destroy_event(event);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_go_around() {
        let mut places: Places<u32> = Places::new(4 * ALIGNMENT);
        let a = places.take(2 * ALIGNMENT).unwrap();
        let b = places.take(ALIGNMENT + 1).unwrap();
        assert_eq!((a.1, b.1), (0, 2 * ALIGNMENT));
        // Around: its first part is still in use.
        assert_eq!(places.take(1), None);
        places.give(a.0, 7);
        let c = places.take(ALIGNMENT).unwrap();
        assert_eq!((c.1, &c.2[..]), (0, &[7][..]));
        // What was behind the first part was free with it.
        let d = places.take(ALIGNMENT).unwrap();
        assert_eq!((d.1, d.2.len()), (ALIGNMENT, 0));
        assert_eq!(places.take(ALIGNMENT), None);
        places.give(b.0, 8);
        let e = places.take(2 * ALIGNMENT).unwrap();
        assert_eq!((e.1, &e.2[..]), (2 * ALIGNMENT, &[8][..]));
        assert_eq!(places.take(5 * ALIGNMENT), None);
    }

    #[test]
    fn what_does_not_fit_at_the_end_begins_anew() {
        let mut places: Places<u32> = Places::new(4 * ALIGNMENT);
        let a = places.take(3 * ALIGNMENT).unwrap();
        assert_eq!(places.take(2 * ALIGNMENT), None);
        places.give(a.0, 1);
        let b = places.take(2 * ALIGNMENT).unwrap();
        assert_eq!((b.1, &b.2[..]), (0, &[1][..]));
    }

    #[test]
    fn parts_in_use_never_overlap() {
        let mut places: Places<u64> = Places::new(100 * ALIGNMENT);
        let mut held: Vec<(u64, u64, u64)> = Vec::new();
        let mut state = 3_u64;
        let mut taken = 0;
        for i in 0..5000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let bytes = 1 + (state >> 33) % (20 * ALIGNMENT);
            let Some((number, start, _)) = places.take(bytes) else {
                let (number, ..) = held.remove(0);
                places.give(number, i);
                continue;
            };
            taken += 1;
            let end = start + bytes;
            assert!(end <= 100 * ALIGNMENT);
            assert!(held.iter().all(|&(_, s, e)| end <= s || start >= e));
            held.push((number, start, end));
        }
        assert!(taken > 1000);
    }
}
