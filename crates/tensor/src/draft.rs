//! Files that are written completely or not at all: a draft beside the file gets its name when it is whole and on the disk.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Writes a file by `body`. If anything fails there is no new file, and an old one is as it was.
pub(crate) fn write<E, F>(
    path: &Path,
    fail: impl Fn(io::Error) -> F,
    body: impl FnOnce(&mut dyn Write) -> Result<(), E>,
) -> Result<(), E>
where
    E: From<F>,
{
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    let unique = COUNTER.fetch_add(1, Ordering::Relaxed);
    name.push(format!(".{}-{unique}.tmp", std::process::id()));
    let draft = path.with_file_name(name);
    let file = File::create_new(&draft).map_err(&fail)?;
    let write = || -> Result<(), E> {
        let mut out = io::BufWriter::with_capacity(1 << 16, &file);
        body(&mut out)?;
        out.flush().map_err(&fail)?;
        drop(out);
        file.sync_all().map_err(&fail)?;
        fs::rename(&draft, path).map_err(&fail)?;
        Ok(())
    };
    let result = write();
    if result.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(&draft);
    } else if cfg!(unix) {
        // The new name is lost with the power unless its folder is synced too. Some file systems cannot; the file is
        // whole either way.
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
        let _ = File::open(folder.unwrap_or(Path::new("."))).and_then(|f| f.sync_all());
    }
    result
}
