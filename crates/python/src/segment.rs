//! Numbers of tensors on their way between processes: a sealed memory file on Linux, a file of its own elsewhere.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};

use fresco_graph::{Opaque, lock, map};
use fresco_tensor::{Buffer, Device, Tensor};

use crate::channel::Channel;

/// Bytes that are converted at a time.
const CHUNK: usize = 1 << 20;
/// Tensors of so many bytes have a file of their own.
const LARGE: u64 = 64 << 10;
/// So many of them in one message.
const LENT: usize = 32;
/// Bytes of all files of a process that are used again.
const POOL: u64 = 256 << 20;

/// Collects the numbers of one message.
#[derive(Default)]
pub(crate) struct Outgoing {
    pieces: Vec<(u64, Tensor)>,
    size: u64,
    /// Files that are used again and again, with their numbers and sizes.
    lent: Vec<SegmentLoan>,
    pool: Option<Arc<Segments>>,
}

/// Where the numbers of one message are.
#[derive(Default)]
pub(crate) struct Sealed {
    /// In the order in which the message speaks of them.
    #[cfg(target_os = "linux")]
    pub(crate) descriptors: Vec<std::os::fd::OwnedFd>,
    pub(crate) path: Option<PathBuf>,
    /// Number and size of each file that is used again.
    pub(crate) lent: Vec<(u64, u64)>,
}

impl Outgoing {
    /// Numbers for a process with these files.
    pub(crate) fn with(pool: &Arc<Segments>) -> Self {
        Self {
            pool: Some(pool.clone()),
            ..Self::default()
        }
    }

    /// Adds a tensor; gives where it begins.
    pub(crate) fn add(&mut self, tensor: Tensor) -> u64 {
        let offset = self.size.next_multiple_of(64);
        self.size = offset + tensor.len() as u64 * 4;
        self.pieces.push((offset, tensor));
        offset
    }

    /// Adds a tensor that stays as it is for as long as `object` lives: its numbers are written once, and the file's number
    /// is given. None where it goes with the others.
    pub(crate) fn lend(&mut self, object: &Arc<dyn Opaque>, tensor: &Tensor) -> Option<u64> {
        let bytes = tensor.len() as u64 * 4;
        if bytes < LARGE || self.lent.len() >= LENT {
            return None;
        }
        let lent = self.pool.as_ref()?.lend(object, tensor)?;
        let number = lent.number;
        self.lent.push(lent);
        Some(number)
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Nothing was sent: nobody holds what was lent.
    pub(crate) fn take_back(pool: Option<&Arc<Segments>>, lent: &[(u64, u64)]) {
        for (number, _) in lent {
            if let Some(pool) = pool {
                pool.release(*number, 1);
            }
        }
    }

    pub(crate) fn pool(&self) -> Option<Arc<Segments>> {
        self.pool.clone()
    }

    /// Writes everything; from then on nobody can change it.
    pub(crate) fn seal(mut self) -> io::Result<Sealed> {
        let mut sealed = Sealed::default();
        if self.size > 0 {
            #[cfg(target_os = "linux")]
            {
                use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
                let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
                let mut file = File::from(memfd_create("fresco", flags)?);
                self.write(&mut file)?;
                let seals =
                    SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
                fcntl_add_seals(&file, seals)?;
                sealed.descriptors.push(file.into());
            }
            #[cfg(not(target_os = "linux"))]
            {
                let mut name = [0_u8; 12];
                getrandom::fill(&mut name).map_err(|error| io::Error::other(error.to_string()))?;
                let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
                #[expect(
                    clippy::disallowed_methods,
                    reason = "both processes must be able to write there"
                )]
                let path = std::env::temp_dir().join(format!("fresco-{name}"));
                let mut file = File::options().write(true).create_new(true).open(&path)?;
                self.write(&mut file)?;
                sealed.path = Some(path);
            }
        }
        for lent in self.lent.drain(..) {
            sealed.lent.push((lent.number, lent.size));
            #[cfg(target_os = "linux")]
            sealed.descriptors.push(lent.descriptor);
        }
        Ok(sealed)
    }

    fn write(&self, file: &mut File) -> io::Result<()> {
        file.set_len(self.size)?;
        for (offset, tensor) in &self.pieces {
            write_numbers(file, *offset, tensor)?;
        }
        Ok(())
    }
}

fn write_numbers(file: &mut File, offset: u64, tensor: &Tensor) -> io::Result<()> {
    let mut room = vec![0_u8; CHUNK.min(tensor.len() * 4)];
    file.seek(SeekFrom::Start(offset))?;
    for numbers in tensor.data().chunks(CHUNK / 4) {
        let bytes = &mut room[..numbers.len() * 4];
        // Written so that the compiler makes one copy of it.
        for (place, number) in bytes.chunks_exact_mut(4).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        file.write_all(bytes)?;
    }
    Ok(())
}

/// A file of the pool on its way.
struct SegmentLoan {
    number: u64,
    size: u64,
    #[cfg(target_os = "linux")]
    descriptor: std::os::fd::OwnedFd,
}

/// Memory files of large tensors that a process was given. What the file of a living value holds is sent again without
/// writing it, and the memory of a dead one's is written anew: fresh memory costs ten times as much as the copy.
#[derive(Default)]
pub(crate) struct Segments(Mutex<Pool>);

#[derive(Default)]
struct Pool {
    next: u64,
    clock: u64,
    bytes: u64,
    written: u64,
    files: BTreeMap<u64, Segment>,
    by_address: HashMap<usize, u64>,
}

struct Segment {
    #[cfg_attr(
        not(target_os = "linux"),
        expect(dead_code, reason = "only Linux has such files")
    )]
    file: File,
    capacity: u64,
    address: usize,
    of: Weak<dyn Opaque>,
    /// How many messages with it the process has not let go of.
    loans: u64,
    used: u64,
}

impl Segments {
    /// Bytes of all files, and how often one was written.
    pub(crate) fn usage(&self) -> (u64, u64) {
        let pool = lock(&self.0);
        (pool.bytes, pool.written)
    }

    /// The process holds so many fewer.
    pub(crate) fn release(&self, number: u64, count: u64) {
        if let Some(segment) = lock(&self.0).files.get_mut(&number) {
            segment.loans = segment.loans.saturating_sub(count);
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn lend(&self, _: &Arc<dyn Opaque>, _: &Tensor) -> Option<SegmentLoan> {
        None
    }

    #[cfg(target_os = "linux")]
    fn lend(&self, object: &Arc<dyn Opaque>, tensor: &Tensor) -> Option<SegmentLoan> {
        let size = tensor.len() as u64 * 4;
        let address = Arc::as_ptr(object).cast::<()>() as usize;
        let mut pool = lock(&self.0);
        pool.clock += 1;
        let clock = pool.clock;
        let known = pool.by_address.get(&address).copied();
        let alive = |segment: &Segment| {
            let same = segment.of.upgrade();
            same.is_some_and(|same| Arc::ptr_eq(&same, object))
        };
        if let Some(number) = known
            && let Some(segment) = pool.files.get_mut(&number)
            && alive(segment)
        {
            segment.loans += 1;
            segment.used = clock;
            return readable(&segment.file).map(|descriptor| SegmentLoan {
                number,
                size,
                descriptor,
            });
        }
        let number = pool.free_file(size)?;
        let old = pool.files.get(&number).map(|segment| segment.address);
        if let Some(old) = old
            && pool.by_address.get(&old) == Some(&number)
        {
            pool.by_address.remove(&old);
        }
        pool.by_address.insert(address, number);
        pool.written += 1;
        let segment = pool.files.get_mut(&number)?;
        segment.address = address;
        segment.of = Arc::downgrade(object);
        segment.loans = 1;
        segment.used = clock;
        if write_numbers(&mut segment.file, 0, tensor).is_err() {
            pool.forget(number);
            return None;
        }
        let descriptor = readable(&segment.file)?;
        Some(SegmentLoan {
            number,
            size,
            descriptor,
        })
    }
}

impl Pool {
    /// A file with room for so much that nobody uses: one whose value is gone, a fresh one, or the longest unused one.
    #[cfg(target_os = "linux")]
    fn free_file(&mut self, size: u64) -> Option<u64> {
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
        let fits = |segment: &Segment| {
            segment.loans == 0 && segment.capacity >= size && segment.capacity / 2 <= size
        };
        let dead = self
            .files
            .iter()
            .find(|(_, s)| fits(s) && s.of.strong_count() == 0);
        if let Some((number, _)) = dead {
            return Some(*number);
        }
        if self.bytes + size > POOL {
            let idle = self.files.iter().filter(|(_, s)| fits(s));
            if let Some((number, _)) = idle.min_by_key(|(_, s)| s.used) {
                return Some(*number);
            }
            while self.bytes + size > POOL {
                let idle = self.files.iter().filter(|(_, s)| s.loans == 0);
                let number = idle.min_by_key(|(_, s)| s.used).map(|(n, _)| *n)?;
                self.forget(number);
            }
        }
        let capacity = size.next_multiple_of(4096);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create("fresco", flags).ok()?);
        file.set_len(capacity).ok()?;
        // Its size is certain from now on; what it holds only we can change: the process gets it for reading.
        fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL).ok()?;
        self.next += 1;
        self.bytes += capacity;
        let nobody: Weak<NoObject> = Weak::new();
        self.files.insert(
            self.next,
            Segment {
                file,
                capacity,
                address: 0,
                of: nobody,
                loans: 0,
                used: 0,
            },
        );
        Some(self.next)
    }

    #[cfg(target_os = "linux")]
    fn forget(&mut self, number: u64) {
        if let Some(segment) = self.files.remove(&number) {
            self.bytes -= segment.capacity;
            if self.by_address.get(&segment.address) == Some(&number) {
                self.by_address.remove(&segment.address);
            }
        }
    }
}

/// Nothing; a file belongs to it until it has a value.
#[cfg(target_os = "linux")]
struct NoObject;

#[cfg(target_os = "linux")]
impl Opaque for NoObject {
    fn describe(&self) -> String {
        "nothing".to_owned()
    }
}

/// The same file for reading only.
#[cfg(target_os = "linux")]
fn readable(file: &File) -> Option<std::os::fd::OwnedFd> {
    use std::os::fd::AsRawFd as _;

    use rustix::fs::{Mode, OFlags, open};
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// A tensor whose numbers this room can read.
pub(crate) fn in_main_memory(tensor: &Tensor) -> Result<Tensor, fresco_tensor::TensorError> {
    tensor.to(&Device::Cpu)
}

/// Numbers that came with a message.
pub(crate) struct Incoming {
    file: File,
    size: u64,
    /// Who is told that the file can be written again, and its number there.
    done: Option<(Weak<Channel>, u64)>,
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let Some((channel, number)) = self.done.take()
            && let Some(channel) = channel.upgrade()
        {
            channel.event("written", map! {"file" => number});
        }
    }
}

impl Incoming {
    /// Takes a descriptor, but only of a file whose size nobody can change any more.
    #[cfg(target_os = "linux")]
    pub(crate) fn sealed(fd: std::os::fd::OwnedFd, size: u64) -> io::Result<Self> {
        use rustix::fs::{SealFlags, fcntl_get_seals};
        if !fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK) {
            return Err(io::Error::other("the numbers of a message are not sealed"));
        }
        Self::new(File::from(fd), size)
    }

    /// Takes a file, which is removed at once.
    #[cfg_attr(
        target_os = "linux",
        expect(dead_code, reason = "the way of other systems")
    )]
    pub(crate) fn file(path: &std::path::Path, size: u64) -> io::Result<Self> {
        let file = File::open(path)?;
        let _ = std::fs::remove_file(path);
        Self::new(file, size)
    }

    /// The process writes the file again once this is gone.
    pub(crate) fn used_again(mut self, channel: Weak<Channel>, number: u64) -> Self {
        self.done = Some((channel, number));
        self
    }

    fn new(file: File, size: u64) -> io::Result<Self> {
        if file.metadata()?.len() < size {
            return Err(io::Error::other("a message has fewer numbers than it says"));
        }
        Ok(Self {
            file,
            size,
            done: None,
        })
    }

    /// Reads one tensor.
    pub(crate) fn tensor(&self, offset: u64, shape: Vec<usize>) -> Result<Tensor, String> {
        let count = shape
            .iter()
            .try_fold(1_usize, |product, side| product.checked_mul(*side))
            .ok_or("a tensor is too large")?;
        let bytes = (count as u64).saturating_mul(4);
        if offset.checked_add(bytes).is_none_or(|end| end > self.size) {
            return Err("a tensor lies outside of its message".to_owned());
        }
        let mut numbers = Buffer::with_room(count).map_err(|error| error.to_string())?;
        let mut file = &self.file;
        let text = |error: io::Error| format!("cannot read a tensor: {error}");
        file.seek(SeekFrom::Start(offset)).map_err(text)?;
        let mut chunk = vec![0_u8; CHUNK.min(bytes as usize)];
        let mut left = bytes as usize;
        while left > 0 {
            let part = &mut chunk[..left.min(CHUNK)];
            file.read_exact(part).map_err(text)?;
            numbers.extend(
                part.chunks_exact(4)
                    .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
            );
            left -= part.len();
        }
        Tensor::from_buffer(shape, numbers).map_err(|error| error.to_string())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn numbers_travel_and_hostile_places_are_refused() {
        let mut out = Outgoing::default();
        let first = out.add(Tensor::from_slice(&[1.0, 2.0, 3.0]));
        let second = out.add(Tensor::from_slice(&[4.0]));
        let size = out.size();
        let fd = out.seal().unwrap().descriptors.remove(0);
        let incoming = Incoming::sealed(fd, size).unwrap();
        assert_eq!(
            incoming.tensor(first, vec![3]).unwrap().data(),
            [1.0, 2.0, 3.0]
        );
        assert_eq!(incoming.tensor(second, vec![1, 1]).unwrap().data(), [4.0]);
        for (offset, shape) in [
            (first, vec![1000]),
            (u64::MAX, vec![1]),
            (0, vec![usize::MAX, 2]),
            (second, vec![2]),
        ] {
            assert!(incoming.tensor(offset, shape).is_err());
        }
        let open = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(Incoming::sealed(open, 0).is_err());
    }

    struct Picture;

    impl Opaque for Picture {
        fn describe(&self) -> String {
            "a picture".to_owned()
        }
    }

    #[test]
    fn a_living_value_is_written_once_and_a_dead_ones_file_again() {
        let pool = Arc::new(Segments::default());
        let tensor = Tensor::full([1, 64, 64, 8], 0.5).unwrap();
        let first: Arc<dyn Opaque> = Arc::new(Picture);
        let send = |object: &Arc<dyn Opaque>| {
            let mut out = Outgoing::with(&pool);
            let number = out.lend(object, &tensor).unwrap();
            let sealed = out.seal().unwrap();
            assert_eq!(sealed.descriptors.len(), 1);
            (number, sealed)
        };
        let (number, sealed) = send(&first);
        assert_eq!(send(&first).0, number);
        assert_eq!(pool.usage().1, 1);
        // Whoever has the file cannot write it.
        let file = File::from(sealed.descriptors.into_iter().next().unwrap());
        assert!((&file).write_all(b"x").is_err());
        // Still lent: a dead value's file is not written again.
        drop(first);
        let second: Arc<dyn Opaque> = Arc::new(Picture);
        assert_ne!(send(&second).0, number);
        pool.release(number, 2);
        let third: Arc<dyn Opaque> = Arc::new(Picture);
        assert_eq!(send(&third).0, number);
        assert_eq!(pool.usage().1, 3);
        // Small ones go with the message.
        let small = Tensor::from_slice(&[1.0]);
        assert!(Outgoing::with(&pool).lend(&third, &small).is_none());
    }
}
