//! Bodies of requests while they come in: small ones in memory, large ones in a file, all of them under a common limit.
//!
//! Many clients that send much and finish nothing must not take the memory or the disk from the others. What is held is
//! counted from the first byte until the handler is done with it.

use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::{Bytes, BytesMut};
use flate2::read::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use fresco_files::write::TempFile;
use fresco_files::{Content, FilePart, Scratch};
use http_body_util::BodyExt;
use tokio::time::Instant;

use crate::http::blocking::blocking;
use crate::http::error::{ApiError, Code, disk_error};

/// A body that is larger goes to disk.
const SMALL: u64 = 1 << 20;
/// Bytes of bodies in memory, all together; when they are taken, small ones go to disk too.
const IN_MEMORY: u64 = 64 << 20;

/// How much of a body that is refused for its size is still read, and for how long.
const DRAIN_BYTES: usize = 512 << 20;
const DRAIN_TIME: Duration = Duration::from_secs(10);

/// How long a body may take: a minute, and then as long as it arrives at a modem's speed. A client that sends a byte now
/// and then must not hold its connection for ever.
const BODY_TIME: Duration = Duration::from_mins(1);
const SLOWEST: u64 = 4096;

/// What bodies may take, and take now.
#[derive(Debug)]
pub(crate) struct Bodies {
    /// Where large ones go.
    folder: PathBuf,
    /// Bytes of all that are on disk.
    most: u64,
    memory: AtomicU64,
    disk: AtomicU64,
}

impl Bodies {
    pub(crate) fn new(folder: &Path, most: u64) -> Arc<Self> {
        Arc::new(Self {
            folder: folder.to_path_buf(),
            most,
            memory: AtomicU64::new(0),
            disk: AtomicU64::new(0),
        })
    }

    /// Bytes held now, in memory and on disk.
    pub(crate) fn held(&self) -> (u64, u64) {
        (
            self.memory.load(Ordering::Relaxed),
            self.disk.load(Ordering::Relaxed),
        )
    }
}

/// Takes `bytes` of `most` if there are so many left.
fn take(used: &AtomicU64, bytes: u64, most: u64) -> bool {
    let more = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= most);
    used.try_update(Ordering::Relaxed, Ordering::Relaxed, more)
        .is_ok()
}

/// What one body holds; given back when dropped.
#[derive(Debug)]
struct Held {
    of: Arc<Bodies>,
    memory: u64,
    disk: u64,
}

impl Held {
    fn free_memory(&mut self) {
        self.of.memory.fetch_sub(self.memory, Ordering::Relaxed);
        self.memory = 0;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.free_memory();
        self.of.disk.fetch_sub(self.disk, Ordering::Relaxed);
    }
}

/// A body that has come in whole.
#[derive(Debug)]
pub(crate) struct Stored {
    content: BodyPlace,
    _held: Held,
}

#[derive(Debug)]
enum BodyPlace {
    Memory(Bytes),
    Disk(
        FilePart,
        #[expect(dead_code, reason = "removed when dropped")] Option<TempFile>,
    ),
}

impl Stored {
    pub(crate) fn size(&self) -> u64 {
        match &self.content {
            BodyPlace::Memory(bytes) => bytes.len() as u64,
            BodyPlace::Disk(part, _) => part.size,
        }
    }

    /// The body, if it is in memory.
    pub(crate) fn in_memory(&self) -> Option<&Bytes> {
        match &self.content {
            BodyPlace::Memory(bytes) => Some(bytes),
            BodyPlace::Disk(..) => None,
        }
    }

    /// A part of the body, wherever it is.
    pub(crate) fn part(&self, start: u64, size: u64) -> BodyPart {
        match &self.content {
            BodyPlace::Memory(bytes) => {
                let (start, end) = (start as usize, (start + size) as usize);
                BodyPart::Memory(bytes.slice(start..end))
            }
            BodyPlace::Disk(whole, _) => BodyPart::Disk(FilePart {
                file: whole.file.clone(),
                start,
                size,
            }),
        }
    }

    pub(crate) fn whole(&self) -> BodyPart {
        self.part(0, self.size())
    }
}

/// Bytes of a body.
#[derive(Clone, Debug)]
pub(crate) enum BodyPart {
    Memory(Bytes),
    Disk(FilePart),
}

impl BodyPart {
    /// All of it in memory. Takes time for what is on disk.
    pub(crate) fn load(&self) -> io::Result<Bytes> {
        match self {
            Self::Memory(bytes) => Ok(bytes.clone()),
            Self::Disk(part) => {
                let mut bytes = Vec::with_capacity(part.size as usize);
                part.open()?.read_to_end(&mut bytes)?;
                Ok(bytes.into())
            }
        }
    }
}

impl Content for BodyPart {
    fn size(&self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::Disk(part) => part.size,
        }
    }

    fn open(&self) -> io::Result<Box<dyn Read + '_>> {
        match self {
            Self::Memory(bytes) => Ok(Box::new(&bytes[..])),
            Self::Disk(part) => part.open(),
        }
    }
}

/// Where a body goes while it comes in, or an answer while it is made.
pub(crate) struct Sink {
    held: Held,
    /// Largest body.
    limit: u64,
    total: u64,
    /// Most bodies arrive in one piece, which is then passed on without a copy.
    first: Bytes,
    rest: BytesMut,
    file: Option<Scratch>,
}

impl Sink {
    pub(crate) fn new(bodies: &Arc<Bodies>, limit: u64) -> Self {
        Self {
            held: Held {
                of: bodies.clone(),
                memory: 0,
                disk: 0,
            },
            limit,
            total: 0,
            first: Bytes::new(),
            rest: BytesMut::new(),
            file: None,
        }
    }

    /// Adds bytes. Not for socket threads.
    pub(crate) fn add(&mut self, bytes: &[u8]) -> Result<(), ApiError> {
        if self.count(bytes.len() as u64)? {
            self.write(bytes)
        } else {
            self.keep(Bytes::copy_from_slice(bytes));
            Ok(())
        }
    }

    /// Counts the next bytes; whether they have to go to disk.
    fn count(&mut self, bytes: u64) -> Result<bool, ApiError> {
        self.total += bytes;
        if self.total > self.limit {
            return Err(ApiError::TooLarge { limit: self.limit });
        }
        let bodies = &self.held.of;
        let stays = self.file.is_none() && self.total <= SMALL;
        if stays && take(&bodies.memory, bytes, IN_MEMORY) {
            self.held.memory += bytes;
            return Ok(false);
        }
        let more = self.total - self.held.disk;
        if !take(&bodies.disk, more, bodies.most) {
            return Err(ApiError::later(
                Code::BodiesFull,
                format!(
                    "requests and answers under way take the {} MiB that --max-upload-total allows; try again when some \
                     have ended",
                    bodies.most >> 20
                ),
                5,
            ));
        }
        self.held.disk += more;
        Ok(true)
    }

    fn keep(&mut self, data: Bytes) {
        if self.first.is_empty() && self.rest.is_empty() {
            self.first = data;
            return;
        }
        if self.rest.is_empty() {
            self.rest
                .extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.rest.extend_from_slice(&data);
    }

    /// Appends to the file, after what was in memory so far.
    fn write(&mut self, data: &[u8]) -> Result<(), ApiError> {
        let folder = &self.held.of.folder;
        let failed = |e: io::Error| disk_error("keep the request body in the temp folder", &e);
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(Scratch::create(folder).map_err(failed)?),
        };
        let before = [std::mem::take(&mut self.first), self.rest.split().freeze()];
        for piece in before.iter().map(|b| &b[..]).chain([data]) {
            file.write_all(piece).map_err(failed)?;
        }
        self.rest = BytesMut::new();
        self.held.free_memory();
        Ok(())
    }

    pub(crate) fn finish(self) -> Stored {
        let content = match self.file {
            Some(file) => {
                let (part, name) = file.into_part();
                BodyPlace::Disk(part, name)
            }
            None if self.rest.is_empty() => BodyPlace::Memory(self.first),
            None => BodyPlace::Memory(self.rest.freeze()),
        };
        Stored {
            content,
            _held: self.held,
        }
    }
}

/// For encoders; [`sink_error`] gives back what went wrong.
impl io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.add(bytes).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The answer for an error that came out of a sink.
pub(crate) fn sink_error(error: io::Error) -> ApiError {
    error
        .downcast()
        .unwrap_or_else(|e| disk_error("make the answer", &e))
}

/// Reads a body to its end and unpacks it if it is packed.
pub(crate) async fn read(
    body: Body,
    headers: &HeaderMap,
    limit: u64,
    bodies: &Arc<Bodies>,
) -> Result<Stored, ApiError> {
    let packing = match Packing::of(headers) {
        Ok(packing) => packing,
        Err(error) => {
            drain(body).await;
            return Err(error);
        }
    };
    let stored = receive(body, headers, limit, bodies).await?;
    match packing {
        Some(packing) if stored.size() > 0 => {
            let bodies = bodies.clone();
            blocking(move || unpack(&stored, packing, limit, &bodies)).await?
        }
        _ => Ok(stored),
    }
}

async fn receive(
    mut body: Body,
    headers: &HeaderMap,
    limit: u64,
    bodies: &Arc<Bodies>,
) -> Result<Stored, ApiError> {
    let announced = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.parse::<u64>().ok());
    if announced.is_some_and(|n| n > limit) {
        drain(body).await;
        return Err(ApiError::TooLarge { limit });
    }
    let mut sink = Sink::new(bodies, limit);
    let start = Instant::now();
    loop {
        let total = sink.total;
        let deadline = start + BODY_TIME + Duration::from_secs(total / SLOWEST);
        let Ok(frame) = tokio::time::timeout_at(deadline, body.frame()).await else {
            return Err(ApiError::text(
                StatusCode::REQUEST_TIMEOUT,
                format!("the request body is too slow: {total} bytes so far"),
            ));
        };
        let Some(frame) = frame else { break };
        let frame =
            frame.map_err(|e| ApiError::trouble(format!("the request body broke off: {e}")))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        let written = match sink.count(data.len() as u64) {
            Ok(false) => {
                sink.keep(data);
                continue;
            }
            Ok(true) => {
                // A slow disk must not hold up other connections.
                blocking(move || {
                    sink.write(&data)?;
                    Ok(sink)
                })
                .await?
            }
            Err(error) => Err(error),
        };
        match written {
            Ok(same) => sink = same,
            Err(error) => {
                drain(body).await;
                return Err(error);
            }
        }
    }
    Ok(sink.finish())
}

/// Reads on for a while without keeping anything. A client that is still sending when the connection closes never sees
/// the answer that says why.
async fn drain(mut body: Body) {
    let mut left = DRAIN_BYTES;
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            let read = frame.data_ref().map_or(0, Bytes::len);
            if read > left {
                return;
            }
            left -= read;
        }
    };
    // Too slow or too much: the client has had its chance.
    let _ = tokio::time::timeout(DRAIN_TIME, reading).await;
}

/// How a client packed a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packing {
    Gzip,
    Deflate,
}

impl Packing {
    fn of(headers: &HeaderMap) -> Result<Option<Self>, ApiError> {
        let mut found = None;
        for value in headers.get_all(header::CONTENT_ENCODING) {
            let text = value.to_str().unwrap_or("?");
            for name in text.split(',').map(str::trim).filter(|n| !n.is_empty()) {
                let packing = match name.to_ascii_lowercase().as_str() {
                    "identity" => continue,
                    "gzip" | "x-gzip" => Self::Gzip,
                    "deflate" => Self::Deflate,
                    _ => return Err(unknown(format!("'{name}' is neither gzip nor deflate"))),
                };
                if found.replace(packing).is_some() {
                    return Err(unknown("the body is packed more than once".to_owned()));
                }
            }
        }
        Ok(found)
    }
}

fn unknown(details: String) -> ApiError {
    ApiError::coded(Code::UnknownEncoding, details)
}

/// The limit is that of a plain body: a few bytes can unpack to a thousand times as many.
fn unpack(
    packed: &Stored,
    packing: Packing,
    limit: u64,
    bodies: &Arc<Bodies>,
) -> Result<Stored, ApiError> {
    let failed = |e: io::Error| disk_error("read the request body back", &e);
    let whole = packed.whole();
    let mut first = [0];
    let raw = packing == Packing::Deflate
        && whole
            .open()
            .and_then(|mut r| r.read(&mut first))
            .map_err(failed)?
            == 1
        && first[0] & 0xf != 8;
    let from = whole.open().map_err(failed)?;
    let mut from: Box<dyn Read + '_> = match packing {
        Packing::Gzip => Box::new(MultiGzDecoder::new(from)),
        // The name stands for two formats; the first byte of the right one says so.
        Packing::Deflate if raw => Box::new(DeflateDecoder::new(from)),
        Packing::Deflate => Box::new(ZlibDecoder::new(from)),
    };
    let mut sink = Sink::new(bodies, limit);
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = from.read(&mut buffer).map_err(|e| {
            ApiError::coded(
                Code::BadEncoding,
                format!("it is not {packing:?} data: {e}"),
            )
        })?;
        if read == 0 {
            return Ok(sink.finish());
        }
        sink.add(&buffer[..read])?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bodies(most: u64) -> (tempfile::TempDir, Arc<Bodies>) {
        let dir = tempfile::tempdir().unwrap();
        let bodies = Bodies::new(dir.path(), most);
        (dir, bodies)
    }

    fn pieces(pieces: Vec<Vec<u8>>) -> Body {
        let pieces = pieces
            .into_iter()
            .map(|p| Ok::<_, io::Error>(Bytes::from(p)));
        Body::from_stream(futures_util::stream::iter(pieces))
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_is_given_up() {
        let (_dir, bodies) = bodies(1 << 20);
        let body =
            Body::from_stream(futures_util::stream::pending::<Result<Bytes, std::io::Error>>());
        let error = read(body, &HeaderMap::new(), 1000, &bodies)
            .await
            .unwrap_err();
        assert!(
            matches!(error, ApiError::Text(StatusCode::REQUEST_TIMEOUT, _)),
            "{error}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_trickles_is_given_up() {
        let (_dir, bodies) = bodies(1 << 20);
        let bytes = futures_util::stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some((Ok::<_, std::io::Error>(Bytes::from_static(b"x")), ()))
        });
        let error = read(Body::from_stream(bytes), &HeaderMap::new(), 1000, &bodies)
            .await
            .unwrap_err();
        assert!(
            matches!(error, ApiError::Text(StatusCode::REQUEST_TIMEOUT, _)),
            "{error}"
        );
        assert_eq!(bodies.held(), (0, 0));
    }

    #[tokio::test]
    async fn large_bodies_go_to_disk_and_come_back_whole() {
        let (_dir, bodies) = bodies(8 << 20);
        let small = vec![vec![1; 300], vec![2; 300]];
        let stored = read(pieces(small.clone()), &HeaderMap::new(), 4 << 20, &bodies)
            .await
            .unwrap();
        assert_eq!(stored.in_memory().unwrap()[..], small.concat());
        assert_eq!(bodies.held(), (600, 0));
        let large: Vec<Vec<u8>> = (0..5).map(|i| vec![i; 400_000]).collect();
        let kept = read(pieces(large.clone()), &HeaderMap::new(), 4 << 20, &bodies)
            .await
            .unwrap();
        assert!(kept.in_memory().is_none());
        assert_eq!(bodies.held(), (600, 2_000_000));
        assert_eq!(kept.whole().load().unwrap()[..], large.concat());
        assert_eq!(kept.part(399_999, 2).load().unwrap()[..], [0, 1]);
        drop((stored, kept));
        assert_eq!(bodies.held(), (0, 0));
        let error = read(pieces(large), &HeaderMap::new(), 1_500_000, &bodies).await;
        assert!(matches!(
            error,
            Err(ApiError::TooLarge { limit: 1_500_000 })
        ));
        assert_eq!(bodies.held(), (0, 0));
    }

    #[tokio::test]
    async fn all_together_stay_under_a_total() {
        let (_dir, bodies) = bodies(5 << 20);
        let body = || pieces(vec![vec![7; 1 << 20], vec![7; 1 << 20]]);
        let ask = async || read(body(), &HeaderMap::new(), 4 << 20, &bodies).await;
        let first = (ask().await.unwrap(), ask().await.unwrap());
        let error = ask().await.unwrap_err();
        assert_eq!(error.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(error.to_string().contains("--max-upload-total"), "{error}");
        // Large ones do not keep small ones out.
        let small = read(pieces(vec![vec![1; 9]]), &HeaderMap::new(), 99, &bodies).await;
        assert_eq!(small.unwrap().size(), 9);
        drop(first);
        ask().await.unwrap();
    }

    #[tokio::test]
    async fn packed_bodies_are_unpacked_within_the_limit() {
        use flate2::Compression;
        use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
        let (_dir, bodies) = bodies(64 << 20);
        let plain = vec![b'x'; 3 << 20];
        let fast = Compression::fast();
        let mut gzip = GzEncoder::new(Vec::new(), fast);
        gzip.write_all(&plain).unwrap();
        let gzip = gzip.finish().unwrap();
        let mut zlib = ZlibEncoder::new(Vec::new(), fast);
        zlib.write_all(&plain).unwrap();
        let zlib = zlib.finish().unwrap();
        let mut raw = DeflateEncoder::new(Vec::new(), fast);
        raw.write_all(&plain).unwrap();
        let raw = raw.finish().unwrap();
        let ask = async |name: &str, packed: &[u8], limit| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_ENCODING, name.parse().unwrap());
            read(pieces(vec![packed.to_vec()]), &headers, limit, &bodies).await
        };
        for (name, packed) in [
            ("gzip", &gzip),
            ("X-GZIP", &gzip),
            ("deflate", &zlib),
            ("deflate", &raw),
            ("identity", &plain),
        ] {
            let stored = ask(name, packed, 4 << 20).await.unwrap();
            assert_eq!(stored.whole().load().unwrap(), plain, "{name}");
        }
        assert_eq!(ask("gzip", b"", 10).await.unwrap().size(), 0);
        let twice = [&gzip[..], &gzip[..]].concat();
        assert_eq!(ask("gzip", &twice, 8 << 20).await.unwrap().size(), 6 << 20);
        let status = async |name: &str, packed: &[u8], limit| {
            ask(name, packed, limit)
                .await
                .unwrap_err()
                .status()
                .as_u16()
        };
        assert_eq!(status("gzip", &gzip, 2 << 20).await, 413, "a bomb");
        assert_eq!(status("gzip", b"not gzip at all", 100).await, 400);
        assert_eq!(status("gzip", &gzip[..gzip.len() / 2], 4 << 20).await, 400);
        assert_eq!(status("br", b"x", 100).await, 415);
        assert_eq!(status("gzip, gzip", &gzip, 4 << 20).await, 415);
        assert_eq!(bodies.held(), (0, 0));
    }
}
