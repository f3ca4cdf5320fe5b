//! Weight files that are changed on disk while they are open.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use fresco_tensor::{Stored, Tensor, WeightError, open_weights, safetensors};

/// One file of each kind, in a folder of their own.
fn files(dir: &Path) -> Vec<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files");
    let mut files: Vec<PathBuf> = ["blocks.gguf", "nested.pth", "old.ckpt"]
        .iter()
        .map(|name| {
            let copy = dir.join(name);
            fs::copy(here.join(name), &copy).unwrap();
            copy
        })
        .collect();
    let plain = dir.join("plain.safetensors");
    let tensor = Tensor::from_fn([64], |i| i as f32).unwrap();
    safetensors::write(&plain, &[("a", &tensor), ("b", &tensor)], &[]).unwrap();
    files.push(plain);
    for path in &files {
        // Long ago, so that a write is a change whatever the clock of the file system.
        let file = File::options().write(true).open(path).unwrap();
        let past = SystemTime::now() - Duration::from_hours(1);
        file.set_modified(past).unwrap();
    }
    files
}

/// All tensors, without those in formats that are never read.
fn read_all(file: &dyn fresco_tensor::WeightFile) -> Vec<Result<Stored, Box<WeightError>>> {
    let names = file.names();
    let all = names.iter().map(|name| file.read(name).map_err(Box::new));
    let known = |read: &Result<_, Box<WeightError>>| match read {
        Err(error) => !matches!(**error, WeightError::Format { .. }),
        Ok(_) => true,
    };
    all.filter(known).collect()
}

#[test]
fn written_in_place_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    for path in files(dir.path()) {
        let file = open_weights(&path).unwrap();
        assert!(read_all(&*file).iter().all(Result::is_ok));
        let mut handle = OpenOptions::new().write(true).open(&path).unwrap();
        // The same length, only other bytes.
        handle.seek(SeekFrom::End(-1)).unwrap();
        handle.write_all(&[7]).unwrap();
        // Nothing is read for what has no elements.
        let empty = |read: &Result<Stored, _>| read.as_ref().is_ok_and(Stored::is_empty);
        for result in read_all(&*file).into_iter().filter(|read| !empty(read)) {
            let error = result.unwrap_err();
            assert!(matches!(
                *error,
                WeightError::Changed { .. } | WeightError::SafeTensors(_)
            ));
            let message = error.to_string();
            assert_eq!(
                message,
                format!(
                    "{} was changed on disk after it was loaded; run the prompt again to load the new file",
                    path.display()
                )
            );
        }
        // Opened again it is a file like any other.
        if let Ok(again) = open_weights(&path) {
            assert!(read_all(&*again).iter().all(Result::is_ok));
        }
    }
}

#[test]
fn deleted_or_replaced_the_open_file_stays_good() {
    let dir = tempfile::tempdir().unwrap();
    for (i, path) in files(dir.path()).iter().enumerate() {
        let file = open_weights(path).unwrap();
        let before: Vec<Stored> = read_all(&*file).into_iter().map(Result::unwrap).collect();
        if i % 2 == 0 {
            fs::remove_file(path).unwrap();
        } else {
            let other = dir.path().join("other");
            fs::write(&other, b"something else").unwrap();
            fs::rename(&other, path).unwrap();
        }
        let after: Vec<Stored> = read_all(&*file).into_iter().map(Result::unwrap).collect();
        assert_eq!(before, after);
    }
    // The other way for each.
    let dir = tempfile::tempdir().unwrap();
    for path in files(dir.path()) {
        let file = open_weights(&path).unwrap();
        let other = dir.path().join("other");
        fs::write(&other, b"something else").unwrap();
        fs::rename(&other, &path).unwrap();
        assert!(read_all(&*file).iter().all(Result::is_ok));
        fs::remove_file(&path).unwrap();
        assert!(read_all(&*file).iter().all(Result::is_ok));
    }
}
