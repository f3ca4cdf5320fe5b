//! Room on the worker's disk. Files of jobs stay for a day at most, and never in the way of the next job: what is kept is bounded, and given up
//! when room is short. A worker that has too little all the same says so and takes no job until it has more.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fresco_graph::{Value, lock};

use crate::content::{Removed, remove_old, remove_oldest};
use crate::disk::{DiskSpace, disk_space};

/// Free bytes without which no job is taken, or a twentieth of a disk that is small.
const LEAST: u64 = 64 << 20;
const LEAST_PART: u64 = 20;
/// Bytes of files of jobs that are kept, or a tenth of a disk that is small.
const MOST_KEPT: u64 = 64 << 30;
const KEPT_PART: u64 = 10;
/// How long files of a job stay at most: results that the worker remembers name them.
const KEPT: Duration = Duration::from_hours(24);
/// Between two looks for those that are older, or too many.
const SWEEPS: Duration = Duration::from_mins(1);
/// How long a job that did not fit is remembered: then smaller ones may be tried again.
const REMEMBERED: Duration = Duration::from_mins(5);

/// What an error of a full disk says, from whichever program or language.
const SIGNS: &[&str] = &[
    "os error 28",
    "Errno 28",
    "No space left on device",
    "os error 122",
    "Errno 122",
    "Disk quota exceeded",
    "There is not enough space on the disk",
    "no storage space",
    "the disk is full",
];

/// Whether a prompt failed because something could not be written for lack of room.
pub(super) fn failed_for_room(messages: &[Value]) -> bool {
    let why = |message: &Value| -> Option<bool> {
        let [kind, data] = message.as_list()? else {
            return None;
        };
        let trace = data.get("traceback").and_then(Value::as_list);
        let mut texts = trace
            .unwrap_or_default()
            .iter()
            .chain(data.get("exception_message"));
        let is_sign = |text: &str| SIGNS.iter().any(|sign| text.contains(sign));
        let is = texts.any(|text| text.as_str().is_some_and(is_sign));
        Some(is && kind.as_str() == Some("execution_error"))
    };
    messages.iter().any(|message| why(message).unwrap_or(false))
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

#[derive(Default)]
struct Watch {
    swept: Option<Instant>,
    /// Free bytes when the last job began.
    at_begin: u64,
    /// A job found too little: so many bytes have to be free before the next one.
    wanted: Option<(Instant, u64)>,
}

/// The folders of a worker that are its own.
pub(super) struct Room {
    folders: Vec<PathBuf>,
    watch: Mutex<Watch>,
}

impl Room {
    pub(super) fn new(folders: Vec<PathBuf>) -> Self {
        Self {
            folders,
            watch: Mutex::default(),
        }
    }

    /// Removes what a process before this one has left: nobody remembers it, and a job that runs again would number its files after those.
    pub(super) fn begin(&self) {
        tell(
            remove_oldest(&self.folders, 0),
            "are of a process before this one",
        );
    }

    /// The folder with the least room.
    fn tightest(&self) -> Option<(&PathBuf, DiskSpace)> {
        let spaces = self.folders.iter().filter_map(|folder| {
            let space = disk_space(folder)?;
            Some((folder, space))
        });
        spaces.min_by_key(|(_, space)| space.free)
    }

    fn least(&self, space: DiskSpace) -> u64 {
        let least = LEAST.min(space.total / LEAST_PART);
        let wanted = lock(&self.watch).wanted;
        let wanted = wanted.filter(|(at, _)| at.elapsed() < REMEMBERED);
        // A disk that cannot have more than it has is not waited for in vain.
        wanted.map_or(least, |(_, bytes)| bytes.clamp(least, space.total))
    }

    /// A job begins.
    pub(super) fn job_begins(&self) {
        if let Some((_, space)) = self.tightest() {
            lock(&self.watch).at_begin = space.free;
        }
    }

    /// The job did not fit, and has ended. With the room that files of earlier ones took it may fit; otherwise more is wanted than there was.
    pub(super) fn was_too_small(&self) {
        tell(
            remove_oldest(&self.folders, 0),
            "were in the way of another one",
        );
        if let Some((_, space)) = self.tightest() {
            let more = LEAST.min(space.total / LEAST_PART);
            let mut watch = lock(&self.watch);
            let others = space.free > watch.at_begin.saturating_add(more);
            watch.wanted = (!others).then(|| (Instant::now(), space.free + more));
        }
    }

    /// Whether a job that fails now may do so for lack of room.
    pub(super) fn is_short(&self) -> bool {
        let tightest = self.tightest();
        tightest.is_some_and(|(_, space)| space.free < LEAST.min(space.total / LEAST_PART))
    }

    /// Removes what need not stay, and says why no job can be taken all the same. While no job runs: its files would be among them.
    pub(super) fn tidy(&self) -> Option<Arc<str>> {
        let due = lock(&self.watch)
            .swept
            .is_none_or(|at| at.elapsed() > SWEEPS);
        if due {
            lock(&self.watch).swept = Some(Instant::now());
            let old = self.folders.iter().map(|folder| remove_old(folder, KEPT));
            tell(
                old.fold(Removed::default(), Removed::and),
                "are older than a day",
            );
            if let Some((_, space)) = self.tightest() {
                let most = MOST_KEPT.min(space.total / KEPT_PART);
                tell(remove_oldest(&self.folders, most), "were more than is kept");
            }
        }
        let (_, space) = self.tightest()?;
        let least = self.least(space);
        if space.free < least {
            tell(
                remove_oldest(&self.folders, 0),
                "were in the way of other jobs",
            );
        }
        let (folder, space) = self.tightest()?;
        if space.free >= least {
            let mut watch = lock(&self.watch);
            watch.wanted = None;
            return None;
        }
        let (free, least) = (megabytes(space.free), megabytes(least));
        let folder = folder.display();
        Some(
            format!("its disk is full: {free} are free at {folder}, and {least} are needed").into(),
        )
    }
}

fn tell(removed: Removed, why: &str) {
    if removed.files > 0 {
        let (files, bytes) = (removed.files, removed.bytes);
        tracing::info!(files, bytes, "removed files of earlier jobs that {why}");
    }
}

#[cfg(test)]
mod tests {
    use fresco_graph::json;

    use super::*;

    #[test]
    fn a_failure_for_lack_of_room_is_told_from_others() {
        let failed = |text: &str| {
            let messages = format!(
                r#"[["execution_start", {{}}], ["execution_error", {{"exception_message": "{text}"}}]]"#
            );
            failed_for_room(json::parse(&messages).unwrap().as_list().unwrap())
        };
        assert!(failed(
            "cannot write a.png: No space left on device (os error 28)"
        ));
        assert!(failed("[Errno 28] No space left on device: 'x'"));
        assert!(!failed(
            "cannot open a.png: No such file or directory (os error 2)"
        ));
        assert!(!failed_for_room(&[]));
    }

    #[test]
    fn what_did_not_fit_asks_for_more_room_than_there_was() {
        let dir = tempfile::tempdir().unwrap();
        let room = Room::new(vec![dir.path().to_owned()]);
        let Some((_, before)) = room.tightest() else {
            return;
        };
        room.job_begins();
        room.was_too_small();
        assert!(room.least(before) > before.free.min(LEAST));
        // What earlier jobs left was in the way.
        lock(&room.watch).at_begin = 0;
        room.was_too_small();
        assert!(room.least(before) <= LEAST || before.free < LEAST);
        let none = Room::new(vec![dir.path().join("none")]);
        none.was_too_small();
        assert_eq!(none.tidy(), None, "nothing is known of it");
    }
}
