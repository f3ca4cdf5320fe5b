//! How much room a disk has.

use std::io;
use std::path::Path;

/// Bytes of the disk that a folder is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiskSpace {
    /// For processes without special rights.
    pub(crate) free: u64,
    pub(crate) total: u64,
}

/// Asks the system; none where it does not say.
pub(crate) fn disk_space(folder: &Path) -> Option<DiskSpace> {
    #[cfg(target_os = "linux")]
    {
        let about = rustix::fs::statvfs(folder).ok()?;
        Some(DiskSpace {
            free: about.f_bavail.saturating_mul(about.f_frsize),
            total: about.f_blocks.saturating_mul(about.f_frsize),
        })
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = folder;
        None
    }
}

/// Whether a write failed because the disk, or what one user may have of it, is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_from_other_failures() {
        assert!(is_full(&io::ErrorKind::StorageFull.into()));
        assert!(!is_full(&io::ErrorKind::PermissionDenied.into()));
        if let Some(space) = disk_space(Path::new("/")) {
            assert!(space.free <= space.total);
        }
    }
}
