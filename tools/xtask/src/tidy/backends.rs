//! No back end of GPUs is named outside of its own folder, the list of back ends, flags, `doctor` and what builds its kernels: what is
//! general must work on a GPU that does not exist yet.

use super::{code::without_prose, complain, families::words};
use crate::tree::Source;

/// Names of back ends, as words of identifiers.
const NAMES: [&str; 1] = ["cuda"];

/// Where a name may stand, and why.
const ALLOWED: &[(&str, &str)] = &[
    ("crates/tensor/src/cuda/", "the back end's folder"),
    ("crates/tensor/src/gpu/backends.rs", "the list of back ends"),
    ("crates/app/src/cli.rs", "flags"),
    ("crates/app/src/settings.rs", "what flags mean"),
    ("crates/app/src/doctor.rs", "the report on the driver"),
    ("tools/xtask/src/", "what builds and tests the kernels"),
    ("tests/src/packs/", "what a pack says that it needs"),
];

/// The room whose texts name no back end either: it says what a device calls itself.
const SEAM: &str = "crates/tensor/src/";

pub(super) fn check(sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    let general = sources.iter().filter(|source| {
        let allowed = ALLOWED
            .iter()
            .any(|(start, _)| source.path.starts_with(start));
        source.has_extension("rs") && !allowed
    });
    for source in general {
        let code = without_prose(&source.text);
        let lines = code.lines().zip(source.text.lines()).enumerate();
        let mut tests = false;
        for (index, (code, whole)) in lines {
            tests |= code.starts_with("#[cfg(test)]");
            if is_module(code) {
                continue;
            }
            // Tests of names of devices need one; a comment may say what an example is.
            let texts = source.path.starts_with(SEAM) && !tests && !is_comment(whole);
            let line = if texts { whole } else { code };
            if let Some(name) = words(line).iter().find(|word| NAMES.contains(&&***word)) {
                let text = format!("{name:?} names a back end outside of its own folder");
                complaints.push(complain(source, index + 1, &text));
            }
        }
    }
    complaints
}

/// Whether a line says only that a folder is there.
fn is_module(line: &str) -> bool {
    line.trim_start_matches("pub ").starts_with("mod ")
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(path: &str, text: &str) -> usize {
        let source = Source {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        check(&[source]).len()
    }

    #[test]
    fn back_ends_are_for_their_own_folder() {
        let code = "use crate::cuda::CudaBuffer; // on CUDA\nlet name = \"cuda:0\";";
        assert_eq!(complaints("crates/tensor/src/nn/conv.rs", code), 2);
        assert_eq!(complaints("crates/nodes/src/resident.rs", code), 1);
        assert_eq!(complaints("crates/tensor/tests/gpu/norm.rs", code), 1);
        assert_eq!(complaints("crates/tensor/src/cuda/ops/norm.rs", code), 0);
        assert_eq!(complaints("crates/tensor/src/gpu/backends.rs", code), 0);
        assert_eq!(complaints("crates/app/src/doctor.rs", code), 0);
        assert_eq!(complaints("crates/tensor/src/lib.rs", "pub mod cuda;"), 0);
        let said = "// As on CUDA.\n#[cfg(test)]\nlet name = \"cuda:0\";";
        assert_eq!(complaints("crates/tensor/src/device.rs", said), 0);
    }
}
