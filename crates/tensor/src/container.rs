//! The memory that a container leaves to this program, where that is less than the machine has.
//!
//! Linux counts memory per control group and ends the program that goes beyond its group's limit, whatever the machine
//! could still give.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use crate::machine::MemoryFigures;

/// One group with a limit: its folder, and what its files are called.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ControlGroup {
    folder: PathBuf,
    names: &'static Names,
}

#[derive(Debug, PartialEq, Eq)]
struct Names {
    limit: &'static str,
    usage: &'static str,
    /// Lines of `memory.stat` that count memory which goes away by itself when it is needed: pages of files.
    files: [&'static str; 2],
}

const NEW: Names = Names {
    limit: "memory.max",
    usage: "memory.current",
    files: ["inactive_file ", "active_file "],
};

const OLD: Names = Names {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    files: ["total_inactive_file ", "total_active_file "],
};

static GROUPS: LazyLock<Vec<ControlGroup>> = LazyLock::new(|| {
    let list = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    groups(&list, Path::new("/sys/fs/cgroup"))
});

/// The tightest limit this program is under.
pub(crate) fn limit() -> Option<MemoryFigures> {
    tightest(&GROUPS)
}

fn tightest(groups: &[ControlGroup]) -> Option<MemoryFigures> {
    let limits = groups.iter().filter_map(ControlGroup::read);
    limits.reduce(MemoryFigures::at_most)
}

/// The groups of a process (as `/proc/self/cgroup` lists them) with those above them.
fn groups(list: &str, root: &Path) -> Vec<ControlGroup> {
    let mut found: Vec<ControlGroup> = Vec::new();
    for line in list.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(kinds), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let (top, names) = if kinds.is_empty() {
            (root.to_path_buf(), &NEW)
        } else if kinds.split(',').any(|kind| kind == "memory") {
            (root.join("memory"), &OLD)
        } else {
            continue;
        };
        // Inside a container the path may be the outer one, which is not there: then the top is our own group.
        for ancestor in Path::new(path).ancestors() {
            let below = ancestor.strip_prefix("/").unwrap_or(ancestor);
            let group = ControlGroup {
                folder: top.join(below),
                names,
            };
            if group.folder.join(names.limit).is_file() && !found.contains(&group) {
                found.push(group);
            }
        }
    }
    found
}

impl ControlGroup {
    fn number(&self, file: &str) -> Option<u64> {
        let text = std::fs::read_to_string(self.folder.join(file)).ok()?;
        text.trim().parse().ok()
    }

    /// None where there is no limit.
    fn read(&self) -> Option<MemoryFigures> {
        /// The old interface has no word for none; it gives about the largest number there is.
        const NONE: u64 = 1 << 60;
        let total = self.number(self.names.limit).filter(|n| *n < NONE)?;
        let used = self.number(self.names.usage)?;
        let stat = std::fs::read_to_string(self.folder.join("memory.stat")).unwrap_or_default();
        let line = |name: &&str| {
            let value = stat.lines().find_map(|line| line.strip_prefix(name));
            value.and_then(|value| value.trim().parse::<u64>().ok())
        };
        let files: u64 = self.names.files.iter().filter_map(line).sum();
        Some(MemoryFigures {
            total,
            available: total.saturating_sub(used.saturating_sub(files)),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn write(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn the_tightest_group_counts() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        write(root, "outer/memory.max", "8000\n");
        write(root, "outer/memory.current", "3000\n");
        write(root, "outer/inner/memory.max", "max\n");
        write(root, "outer/inner/memory.current", "9\n");
        let found = groups("0::/outer/inner\n", root);
        assert_eq!(found.len(), 2);
        let limit = |total, available| Some(MemoryFigures { total, available });
        assert_eq!(tightest(&found), limit(8000, 5000));
        // Pages of files do not count as used.
        let stat = "anon 5\ninactive_file 1500\nactive_file 400\n";
        write(root, "outer/memory.stat", stat);
        assert_eq!(tightest(&found), limit(8000, 6900));
        write(root, "outer/inner/memory.max", "2000");
        assert_eq!(tightest(&found), limit(2000, 1991));
    }

    #[test]
    fn the_old_interface_inside_a_container() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        write(
            root,
            "memory/memory.limit_in_bytes",
            "9223372036854771712\n",
        );
        write(root, "memory/memory.usage_in_bytes", "70\n");
        let list = "12:cpu,cpuacct:/x\n4:memory:/docker/abc\n0::/\n";
        let found = groups(list, root);
        assert_eq!(found.len(), 1);
        assert_eq!(tightest(&found), None);
        write(root, "memory/memory.limit_in_bytes", "100\n");
        write(root, "memory/memory.stat", "total_inactive_file 20\n");
        let limit = MemoryFigures {
            total: 100,
            available: 50,
        };
        assert_eq!(tightest(&found), Some(limit));
    }

    #[test]
    fn odd_lists_give_nothing() {
        for list in ["", "x", "1:memory", "0::", ":::", "a:b:c:d"] {
            assert!(tightest(&groups(list, Path::new("/nowhere"))).is_none());
        }
    }
}
