//! Embeds the built page: every file of `web/dist`, plain and packed, as one table. No other program is needed: the bundle
//! is committed, and a tree without one still compiles.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::{env, fs};

use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};

fn main() -> io::Result<()> {
    let folder = |name| env::var_os(name).map(PathBuf::from).unwrap_or_default();
    let dist = folder("CARGO_MANIFEST_DIR").join("../../web/dist");
    let out = folder("OUT_DIR");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", dist.display());

    let mut names = Vec::new();
    if dist.is_dir() {
        collect(&dist, "", &mut names)?;
    }
    names.sort_unstable();
    let mut table = String::from("pub(crate) static FILES: &[Embedded] = &[\n");
    for (index, name) in names.iter().enumerate() {
        let path = fs::canonicalize(dist.join(name))?;
        let plain = fs::read(&path)?;
        let packed = pack(&plain)?;
        // Pictures and fonts are packed already.
        let gzip = if packed.len() + packed.len() / 8 < plain.len() {
            let file = out.join(format!("page-{index}.gz"));
            fs::write(&file, &packed)?;
            format!("Some(include_bytes!({:?}))", file.display().to_string())
        } else {
            "None".to_owned()
        };
        let digest = Sha256::digest(&plain);
        let tag = digest.iter().take(12).fold(String::new(), |mut text, b| {
            let _ = write!(text, "{b:02x}");
            text
        });
        let path = path.display().to_string();
        let _ = writeln!(
            table,
            "    Embedded {{ name: {name:?}, tag: {tag:?}, plain: include_bytes!({path:?}), gzip: {gzip} }},"
        );
    }
    table.push_str("];\n");
    fs::write(out.join("page_files.rs"), table)
}

/// Names of all files, relative, with `/`.
fn collect(folder: &Path, prefix: &str, names: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let name = format!("{prefix}{name}");
        if entry.path().is_dir() {
            collect(&entry.path(), &format!("{name}/"), names)?;
        } else {
            names.push(name);
        }
    }
    Ok(())
}

fn pack(plain: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(plain)?;
    encoder.finish()
}
