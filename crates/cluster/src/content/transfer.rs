//! Files of a job on their way: from the front to a worker before it runs, and back when it made some.
//!
//! A reference says where a file belongs, how long it is and what its content is. Small files travel in the reference itself, the
//! others in the object store. The receiver hashes what comes and gives it its name only then.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use fresco_files::write::TempFile;
use fresco_files::{DirType, Dirs, PathError, contain_new};
use fresco_graph::{Map, Value, lock};
use serde::{Deserialize, Serialize};

use super::memo::{Facts, Memo, hash_steady};
use super::names::{NamedFile, shown_file};
use super::objects::Objects;
use crate::connection::BrokerError;
use crate::objects::ContentHash;

/// Files up to this length travel in their reference.
const INLINE_FILE: u64 = 48 << 10;
/// So much of them in one message, before they are written as text; a message may have a megabyte.
const INLINE_MESSAGE: u64 = 384 << 10;
/// Files whose content or name is remembered.
const MOST: usize = 10_000;
/// References in one message.
const MOST_REFS: usize = 20_000;
/// A number that is used already is followed by at most so many tries.
const MOST_TRIES: u64 = 100_000;

/// Why files of a job did not arrive or could not be sent.
#[derive(Debug, thiserror::Error)]
pub enum ContentError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} was changed while it was read; run the prompt again when nobody writes it")]
    Changing { path: PathBuf },
    #[error("cannot write {path}")]
    Write { path: PathBuf, source: io::Error },
    #[error("the file {name:?} cannot be put into the {dir} folder")]
    Name {
        dir: &'static str,
        name: String,
        source: PathError,
    },
    #[error("what came for {name:?} is not what was announced: {why}")]
    Wrong { name: String, why: String },
    #[error("the list of files cannot be read: {why}")]
    Garbage { why: &'static str },
    #[error(transparent)]
    Store(#[from] BrokerError),
}

impl ContentError {
    /// Whether this machine has no room for it.
    pub fn is_out_of_room(&self) -> bool {
        matches!(self, Self::Write { source, .. } if crate::disk::is_full(source))
    }

    /// Whether nothing but nonsense came from the other side, which another try would not change.
    pub fn is_theirs(&self) -> bool {
        matches!(
            self,
            Self::Name { .. } | Self::Wrong { .. } | Self::Garbage { .. }
        )
    }
}

/// A file of a job, by content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRef {
    #[serde(rename = "type", with = "dir_name")]
    pub dir: DirType,
    /// Below that directory, with `/` on all systems.
    pub name: String,
    pub size: u64,
    pub hash: ContentHash,
    /// Its bytes, if it is small.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "optional_bytes"
    )]
    pub data: Option<Arc<[u8]>>,
}

mod dir_name {
    use fresco_files::DirType;
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde gives a reference to the field"
    )]
    pub(super) fn serialize<S: Serializer>(dir: &DirType, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(dir.as_str())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<DirType, D::Error> {
        let name = String::deserialize(from)?;
        let unknown = || D::Error::custom(format!("{name:?} is not input, output or temp"));
        DirType::parse(&name).ok_or_else(unknown)
    }
}

mod optional_bytes {
    use std::sync::Arc;

    use fresco_engine::base64_bytes;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Bytes(#[serde(with = "base64_bytes")] Arc<[u8]>);

    #[expect(clippy::ref_option, reason = "serde gives a reference to the field")]
    pub(super) fn serialize<S: Serializer>(
        data: &Option<Arc<[u8]>>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        data.clone().map(Bytes).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Arc<[u8]>>, D::Error> {
        Ok(Option::<Bytes>::deserialize(from)?.map(|Bytes(bytes)| bytes))
    }
}

fn check_length(refs: &[FileRef]) -> Result<(), ContentError> {
    if refs.len() <= MOST_REFS {
        return Ok(());
    }
    Err(ContentError::Garbage {
        why: "it has too many entries",
    })
}

impl FileRef {
    /// Whether both are one file with one content, whether its bytes are there or not.
    pub fn is_same_file(&self, other: &Self) -> bool {
        self.hash == other.hash && self.dir == other.dir && self.name == other.name
    }
}

/// Files that got another name than they had: by directory and name before, the name now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Renames(BTreeMap<(DirType, String), String>);

impl Renames {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn merge(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Puts the new names into a result.
    pub fn apply(&self, value: &mut Value) {
        if !self.is_empty() {
            self.change(value, 32);
        }
    }

    pub fn apply_to_map(&self, map: &mut Map) {
        if !self.is_empty() {
            for value in map.values_mut() {
                self.change(value, 32);
            }
        }
    }

    fn change(&self, value: &mut Value, depth: usize) {
        match value {
            Value::List(list) if depth > 0 => {
                for one in Arc::make_mut(list) {
                    self.change(one, depth - 1);
                }
            }
            Value::Map(map) if depth > 0 => {
                let map = Arc::make_mut(map);
                let new = shown_file(map).and_then(|file| self.0.get(&file));
                if let Some(new) = new {
                    let (folder, name) = new.rsplit_once('/').unwrap_or(("", new));
                    map.insert("filename".into(), name.into());
                    map.insert("subfolder".into(), folder.into());
                }
                for one in map.values_mut() {
                    self.change(one, depth - 1);
                }
            }
            _ => {}
        }
    }
}

/// A file that was brought before: where it came from, and what was in it.
type Origin = (DirType, String, ContentHash);
/// Names that differ in their number only: folder, what stands before the number, what after it.
type Series = (PathBuf, String, String);

/// Sends and receives files of jobs, into and out of one set of directories.
pub struct Transfer {
    objects: Arc<dyn Objects>,
    dirs: Arc<Dirs>,
    hashed: Mutex<Memo>,
    /// The names under which files from elsewhere are here.
    brought: Mutex<BTreeMap<Origin, String>>,
    /// The next number that is likely to be free.
    next: Mutex<BTreeMap<Series, u64>>,
}

impl Transfer {
    pub fn new(objects: Arc<dyn Objects>, dirs: Arc<Dirs>) -> Self {
        Self {
            objects,
            dirs,
            hashed: Mutex::new(Memo::new(MOST)),
            brought: Mutex::default(),
            next: Mutex::default(),
        }
    }

    /// The directories that files go to and come from.
    pub fn dirs(&self) -> &Dirs {
        &self.dirs
    }

    /// Makes files available to somebody else.
    pub fn offer(&self, files: &[NamedFile]) -> Result<Vec<FileRef>, ContentError> {
        let mut room = INLINE_MESSAGE;
        let mut refs = Vec::with_capacity(files.len());
        for file in files {
            let one = self.offer_one(file, room)?;
            room -= one.data.as_ref().map_or(0, |data| data.len() as u64);
            refs.push(one);
        }
        Ok(refs)
    }

    fn offer_one(&self, file: &NamedFile, room: u64) -> Result<FileRef, ContentError> {
        let path = &file.path;
        let read = |source| ContentError::Read {
            path: path.clone(),
            source,
        };
        let reference = |size, hash, data| FileRef {
            dir: file.dir,
            name: file.name.clone(),
            size,
            hash,
            data,
        };
        let facts = Facts::of(&fs::metadata(path).map_err(read)?);
        if facts.size <= INLINE_FILE.min(room) {
            let data = fs::read(path).map_err(read)?;
            let (size, hash) = (data.len() as u64, ContentHash::of(&data));
            if size <= room {
                return Ok(reference(size, hash, Some(data.into())));
            }
        }
        let known = lock(&self.hashed).get(path, facts);
        let (facts, hash) = if let Some(hash) = known {
            (facts, hash)
        } else {
            let hashed = hash_steady(path, || true).map_err(read)?;
            let (facts, hash) =
                hashed.ok_or_else(|| ContentError::Changing { path: path.clone() })?;
            lock(&self.hashed).insert(path.clone(), facts, hash);
            (facts, hash)
        };
        self.objects.put_file(path, &hash)?;
        Ok(reference(facts.size, hash, None))
    }

    /// Puts files of a job where the job will look for them. A different file of the same name is replaced: the directories of a
    /// worker are its own.
    pub fn bring_inputs(&self, refs: &[FileRef]) -> Result<(), ContentError> {
        check_length(refs)?;
        for one in refs {
            let path = self.destination(one.dir, &one.name)?;
            if !self.is_same(&path, one) {
                let mut temp = self.fetch(one, &path)?;
                temp.replace(&path)
                    .map_err(|source| ContentError::Write { path, source })?;
            }
        }
        Ok(())
    }

    /// Puts files that a job made into the directories here. Nothing is replaced: where a different file has a name, the new one
    /// gets the next free number. A file that was brought before keeps the name it has.
    pub fn bring_outputs(&self, refs: &[FileRef]) -> Result<Renames, ContentError> {
        check_length(refs)?;
        let mut renames = Renames::default();
        for one in refs {
            let name = self.bring_output(one)?;
            if name != one.name {
                renames.0.insert((one.dir, one.name.clone()), name);
            }
        }
        Ok(renames)
    }

    fn bring_output(&self, one: &FileRef) -> Result<String, ContentError> {
        let origin = (one.dir, one.name.clone(), one.hash);
        let before = lock(&self.brought).get(&origin).cloned();
        if let Some(name) = before.filter(|name| *name != one.name) {
            let path = self.destination(one.dir, &name)?;
            if self.is_same(&path, one) {
                return Ok(name);
            }
        }
        let path = self.destination(one.dir, &one.name)?;
        if self.is_same(&path, one) {
            self.remember(origin, &one.name);
            return Ok(one.name.clone());
        }
        let mut temp = self.fetch(one, &path)?;
        let name = self.place(&mut temp, &path, &one.name)?;
        self.remember(origin, &name);
        Ok(name)
    }

    fn remember(&self, origin: Origin, name: &str) {
        let mut brought = lock(&self.brought);
        if brought.len() >= MOST {
            brought.clear();
        }
        brought.insert(origin, name.to_owned());
    }

    /// Gives a finished file its name, or the next one that is free.
    fn place(&self, temp: &mut TempFile, path: &Path, name: &str) -> Result<String, ContentError> {
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |source| ContentError::Write { path, source }
        };
        let numbered = Numbered::parse(name);
        let series = (
            path.parent().unwrap_or(path).to_path_buf(),
            numbered.before.to_owned(),
            numbered.after.to_owned(),
        );
        match temp.place_new(path) {
            Ok(()) => return Ok(name.to_owned()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(path)(error)),
        }
        let known = lock(&self.next).get(&series).copied();
        let known = known.unwrap_or_else(|| numbered.first_free(&series.0));
        let mut number = known.max(numbered.number.unwrap_or(0).saturating_add(1));
        let end = number.saturating_add(MOST_TRIES);
        loop {
            let new = numbered.with(number);
            let target = path.with_file_name(new.rsplit('/').next().unwrap_or(&new));
            match temp.place_new(&target) {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < end => {
                    number += 1;
                }
                Err(error) => return Err(failed(&target)(error)),
            }
        }
        let mut next = lock(&self.next);
        if next.len() >= MOST {
            next.clear();
        }
        next.insert(series, number.saturating_add(1));
        Ok(numbered.with(number))
    }

    fn destination(&self, dir: DirType, name: &str) -> Result<PathBuf, ContentError> {
        contain_new(self.dirs.get(dir), name).map_err(|source| ContentError::Name {
            dir: dir.as_str(),
            name: name.to_owned(),
            source,
        })
    }

    fn is_same(&self, path: &Path, one: &FileRef) -> bool {
        let Ok(data) = fs::metadata(path) else {
            return false;
        };
        if !data.is_file() || data.len() != one.size {
            return false;
        }
        let facts = Facts::of(&data);
        if let Some(hash) = lock(&self.hashed).get(path, facts) {
            return hash == one.hash;
        }
        match hash_steady(path, || true) {
            Ok(Some((facts, hash))) => {
                lock(&self.hashed).insert(path.to_path_buf(), facts, hash);
                hash == one.hash
            }
            _ => false,
        }
    }

    /// The content in a hidden file next to where it belongs.
    fn fetch(&self, one: &FileRef, path: &Path) -> Result<TempFile, ContentError> {
        let write = |source| ContentError::Write {
            path: path.to_path_buf(),
            source,
        };
        let wrong = |why: String| ContentError::Wrong {
            name: one.name.clone(),
            why,
        };
        let mut temp = TempFile::create(path.parent().unwrap_or(path)).map_err(write)?;
        let file = temp.file().map_err(write)?;
        let size = if let Some(data) = &one.data {
            let hash = ContentHash::of(data);
            if hash != one.hash {
                return Err(wrong(format!("its hash is {hash} and not {}", one.hash)));
            }
            file.write_all(data).map_err(write)?;
            data.len() as u64
        } else {
            // What the store says of a failed write hides its kind.
            let mut failed = None;
            let mut take = |piece: &[u8]| {
                file.write_all(piece).map_err(|error| {
                    let kind = error.kind();
                    failed = Some(error);
                    kind.into()
                })
            };
            match (self.objects.read(&one.hash, one.size, &mut take), failed) {
                (_, Some(error)) => return Err(write(error)),
                (read, None) => read?,
            }
        };
        if size != one.size {
            let want = one.size;
            return Err(wrong(format!("it has {size} bytes and not {want}")));
        }
        temp.close();
        Ok(temp)
    }
}

/// A name with the number that savers give: `folder/prefix_00012_.png`.
struct Numbered<'a> {
    before: &'a str,
    number: Option<u64>,
    after: &'a str,
}

impl<'a> Numbered<'a> {
    fn parse(name: &'a str) -> Self {
        let start = name.rfind('/').map_or(0, |at| at + 1);
        let (_, extension) = fresco_files::folders::split_extension(name);
        let stem = &name[..name.len() - extension.len()];
        let plain = Self {
            before: stem,
            number: None,
            after: extension,
        };
        let Some(inner) = stem.strip_suffix('_') else {
            return plain;
        };
        let digits = inner.len() - inner.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let at = inner.len() - digits;
        if digits == 0 || at <= start || !inner[..at].ends_with('_') {
            return plain;
        }
        let Ok(number) = inner[at..].parse() else {
            return plain;
        };
        Self {
            before: &name[..at - 1],
            number: Some(number),
            after: &name[inner.len()..],
        }
    }

    fn with(&self, number: u64) -> String {
        let after = if self.number.is_some() {
            self.after.to_owned()
        } else {
            format!("_{}", self.after)
        };
        format!("{}_{number:05}{after}", self.before)
    }

    /// One more than the largest number that a file of this series has.
    fn first_free(&self, folder: &Path) -> u64 {
        let Ok(entries) = fs::read_dir(folder) else {
            return 0;
        };
        let file = self.before.rsplit('/').next().unwrap_or(self.before);
        let after = if self.number.is_some() {
            self.after.to_owned()
        } else {
            format!("_{}", self.after)
        };
        let number = |entry: io::Result<fs::DirEntry>| {
            let name = entry.ok()?.file_name();
            let rest = name.to_str()?.strip_prefix(file)?.strip_prefix('_')?;
            rest.strip_suffix(after.as_str())?.parse::<u64>().ok()
        };
        entries
            .filter_map(number)
            .max()
            .map_or(0, |most| most.saturating_add(1))
    }
}

#[cfg(test)]
mod tests;
