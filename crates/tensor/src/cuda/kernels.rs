//! Machine code of the kernels, as `cargo xtask cuda` made it, packed inside the program.

use std::io::Read;

use flate2::read::DeflateDecoder;

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

/// The best first. Machine code runs on its own architecture and on later ones of the same generation (that of 8.0 on 8.6 and
/// 8.9); that of 9.0a only there.
static ARCHIVES: &[Archive] = &[
    Archive {
        from: 90,
        below: 91,
        ptx: false,
        bytes: archive!("90a"),
    },
    Archive {
        from: 80,
        below: 90,
        ptx: false,
        bytes: archive!("80"),
    },
    Archive {
        from: 75,
        below: 80,
        ptx: false,
        bytes: archive!("75"),
    },
    Archive {
        from: 80,
        below: u32::MAX,
        ptx: true,
        bytes: archive!("ptx80"),
    },
    Archive {
        from: 75,
        below: u32::MAX,
        ptx: true,
        bytes: archive!("ptx75"),
    },
];

/// The compute capability below which no kernel runs.
pub(super) const LEAST: u32 = 75;

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

/// The code of a module for an architecture; none where it cannot run.
pub(super) fn image(module: &str, arch: u32) -> Option<Image> {
    ARCHIVES
        .iter()
        .filter(|archive| (archive.from..archive.below).contains(&arch))
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

/// Names of the modules that an architecture has, with whether the driver has to compile them.
pub(super) fn modules(arch: u32) -> Vec<(&'static str, bool)> {
    let mut found: Vec<(&str, bool)> = Vec::new();
    let fitting = ARCHIVES
        .iter()
        .filter(|archive| (archive.from..archive.below).contains(&arch));
    for archive in fitting {
        for (name, ..) in entries(archive) {
            if !found.iter().any(|(other, _)| *other == name) {
                found.push((name, archive.ptx));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_module_unpacks_for_every_card_it_is_for() {
        for arch in [75, 80, 86, 89, 90, 100, 120] {
            let all = modules(arch);
            assert!(all.len() > 5, "{arch}: {all:?}");
            for (name, ptx) in all {
                let image = image(name, arch).unwrap_or_else(|| panic!("{arch} {name}"));
                assert_eq!(image.ptx, ptx);
                let start: &[u8] = if ptx { b"//\n" } else { b"\x7fELF" };
                assert!(image.bytes.starts_with(start), "{arch} {name}");
            }
        }
        assert!(modules(70).is_empty());
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
                "attention_hopper.cu" => 2,
                _ => kernels,
            };
            assert!(kernels > 0 && waits == own, "{name}: {kernels} and {waits}");
        }
        assert!(files > 10);
    }
}
