//! Lists the Python package that goes into the program.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

fn main() {
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .join("../../python");
    println!("cargo::rerun-if-changed={}", root.display());
    let mut files = Vec::new();
    collect(&root, &root, &mut files);
    files.sort_unstable();
    let mut code = String::from("pub(crate) static FILES: &[(&str, &[u8])] = &[\n");
    for (name, path) in &files {
        let _ = writeln!(code, "    ({name:?}, include_bytes!({path:?})),");
    }
    code.push_str("];\n");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it")).join("files.rs");
    std::fs::write(out, code).expect("the build folder can be written");
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<(String, String)>) {
    let entries = std::fs::read_dir(folder).expect("the package is part of the source");
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            if !path.ends_with("__pycache__") && !path.ends_with("tests") {
                collect(root, &path, files);
            }
        } else if path.extension().is_some_and(|e| e == "py") {
            let name = path.strip_prefix(root).expect("it is below the root");
            let name = name.to_string_lossy().replace('\\', "/");
            let path = path.canonicalize().expect("it was just listed");
            files.push((name, path.to_string_lossy().into_owned()));
        }
    }
}
