//! Machine code of the kernels, as `cargo xtask cuda` made it, packed inside the program.

use std::io::Read;

use flate2::read::DeflateDecoder;

use crate::gpu::{KernelCode, KernelModule};

/// One architecture's modules in a file: names, places, and packed code.
struct Archive {
    /// The least compute capability that runs it, and the one from which on it does not; as 80 for 8.0.
    from: u32,
    below: u32,
    /// Whether it is source for the driver's own compiler.
    ptx: bool,
    bytes: &'static [u8],
}

macro_rules! archive {
    ($name:literal) => {
        include_bytes!(concat!("built/", $name, ".bin"))
    };
}

const fn machine_code(from: u32, below: u32, bytes: &'static [u8]) -> Archive {
    Archive {
        from,
        below,
        ptx: false,
        bytes,
    }
}

const fn text(from: u32, below: u32, bytes: &'static [u8]) -> Archive {
    let archive = machine_code(from, below, bytes);
    Archive {
        ptx: true,
        ..archive
    }
}

/// Products of fp8: `CudaDevice::has_fp8` says for which cards.
static PTX89: &[u8] = archive!("ptx89");

/// The best first. Machine code runs on its own architecture and on later ones of the same generation (that of 8.0 on 8.6 and
/// 8.9, where 8.9 has some of its own; that of 12.0 on 12.1); that of 9.0a only there.
static ARCHIVES: &[Archive] = &[
    machine_code(120, 130, archive!("120")),
    machine_code(100, 110, archive!("100")),
    machine_code(90, 91, archive!("90a")),
    machine_code(89, 90, archive!("89")),
    machine_code(80, 90, archive!("80")),
    machine_code(75, 80, archive!("75")),
    text(120, u32::MAX, PTX89),
    text(89, 90, PTX89),
    text(80, u32::MAX, archive!("ptx80")),
    text(75, u32::MAX, archive!("ptx75")),
];

/// The compute capability below which no kernel runs.
pub(super) const LEAST: u32 = 75;

/// The compute capability that kernels are chosen for, and that of the machine that runs them: the same but where one card tries what another
/// one would run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) arch: u32,
    pub(super) machine: u32,
}

impl Archive {
    fn suits(&self, target: Target) -> bool {
        let fits = |arch| (self.from..self.below).contains(&arch);
        fits(target.arch) && (self.ptx || fits(target.machine))
    }
}

/// Code that the driver can load.
pub(super) struct Image {
    pub(super) bytes: Vec<u8>,
    #[cfg(test)]
    ptx: bool,
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<usize> {
    let found = bytes.get(at..at + N)?;
    Some(
        found
            .iter()
            .rev()
            .fold(0, |sum, &byte| sum << 8 | usize::from(byte)),
    )
}

/// A module of an archive: where its code is, and how long it is unpacked.
fn entries(archive: &Archive) -> impl Iterator<Item = (&str, &[u8], usize)> {
    let bytes = archive.bytes;
    let count = number::<4>(bytes, 4).unwrap_or(0);
    let mut at = 8;
    (0..count).map_while(move |_| {
        let length = number::<2>(bytes, at)?;
        let name = std::str::from_utf8(bytes.get(at + 2..at + 2 + length)?).ok()?;
        at += 2 + length;
        let (start, packed, whole) = (
            number::<4>(bytes, at)?,
            number::<4>(bytes, at + 4)?,
            number::<4>(bytes, at + 8)?,
        );
        at += 12;
        Some((name, bytes.get(start..start + packed)?, whole))
    })
}

fn unpack(packed: &[u8], length: usize, ptx: bool) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(length + 1);
    DeflateDecoder::new(packed).read_to_end(&mut bytes).ok()?;
    if ptx {
        bytes.push(0);
    }
    (bytes.len() == length + usize::from(ptx)).then_some(bytes)
}

/// The code of a module for a card; none where it cannot run.
pub(super) fn image(module: &str, target: Target) -> Option<Image> {
    ARCHIVES
        .iter()
        .filter(|archive| archive.suits(target))
        .find_map(|archive| {
            let mut all = entries(archive);
            let (_, packed, length) = all.find(|(name, ..)| *name == module)?;
            let bytes = unpack(packed, length, archive.ptx)?;
            Some(Image {
                bytes,
                #[cfg(test)]
                ptx: archive.ptx,
            })
        })
}

/// The modules that a card has.
pub(super) fn modules(target: Target) -> Vec<KernelModule> {
    let mut found: Vec<KernelModule> = Vec::new();
    for archive in ARCHIVES.iter().filter(|archive| archive.suits(target)) {
        let code = if archive.ptx {
            KernelCode::Portable
        } else {
            KernelCode::Machine
        };
        for (name, ..) in entries(archive) {
            if !found.iter().any(|other| other.name == name) {
                found.push(KernelModule { name, code });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(arch: u32) -> Target {
        let machine = arch;
        Target { arch, machine }
    }

    #[test]
    fn every_module_unpacks_for_every_card_it_is_for() {
        for arch in [75, 80, 86, 89, 90, 100, 103, 110, 120, 121, 130] {
            let all = modules(card(arch));
            assert!(all.len() > 5, "{arch}: {all:?}");
            // The driver has to compile for generations that were not known.
            let unknown = matches!(arch, 110 | 130);
            for KernelModule { name, code } in all {
                let ptx = code == KernelCode::Portable;
                assert_eq!(ptx, unknown, "{arch}");
                let image = image(name, card(arch)).unwrap_or_else(|| panic!("{arch} {name}"));
                assert_eq!(image.ptx, ptx);
                let start: &[u8] = if ptx { b"//\n" } else { b"\x7fELF" };
                assert!(image.bytes.starts_with(start), "{arch} {name}");
            }
        }
        assert!(modules(card(70)).is_empty());
    }

    #[test]
    fn one_card_tries_what_others_run_with_what_the_driver_compiles() {
        let as_ada = Target {
            arch: 89,
            machine: 90,
        };
        let all = modules(as_ada);
        let of_ada = modules(card(89));
        assert!(all.iter().all(|all| all.code == KernelCode::Portable));
        assert_eq!(all.len(), of_ada.len());
        for KernelModule { name, .. } in of_ada {
            assert!(all.iter().any(|other| other.name == name), "{name}");
        }
    }

    /// A driver refuses PTX of a version that it does not know, whatever is in it.
    #[test]
    fn drivers_of_the_least_version_take_the_text_for_unknown_cards() {
        for (from, version) in [
            (75, ".version 8.0"),
            (80, ".version 8.0"),
            (89, ".version 8.4"),
        ] {
            let mut all = ARCHIVES.iter().filter(|all| all.ptx);
            let archive = all.find(|all| all.from == from).unwrap();
            for (name, packed, length) in entries(archive) {
                let text = unpack(packed, length, true).unwrap();
                let text = String::from_utf8_lossy(&text);
                let found = text.lines().find(|line| line.starts_with(".version"));
                assert_eq!(found, Some(version), "{name}");
            }
        }
    }

    /// Graphs start kernels before those before them have ended: see `steps.rs`.
    #[test]
    fn every_kernel_waits_for_those_before_it() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/cuda/kernels");
        let mut files = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "cu") {
                continue;
            }
            files += 1;
            let text = std::fs::read_to_string(&path).unwrap();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            // Kernels of these files make their barriers first, in a function of their own. In that of products blocks of many tiles wait at once,
            // and those of one tile when they know where it is: who copies and who computes.
            let (kernels, waits) = (
                text.matches("__global__").count(),
                text.matches("after_others();").count(),
            );
            let own = match &*name {
                "product_hopper.cu" => 3,
                "product_turns.cu" => 1,
                "attention_hopper.cu" => 2,
                _ => kernels,
            };
            assert!(kernels > 0 && waits == own, "{name}: {kernels} and {waits}");
        }
        assert!(files > 10);
    }
}
