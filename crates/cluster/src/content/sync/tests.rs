use fresco_files::Dirs;

use super::super::FolderObjects;
use super::*;

/// Machines that ask each other without a network. Counts what was asked.
#[derive(Default)]
struct Room {
    machines: Mutex<BTreeMap<String, Arc<ModelServer>>>,
    parts: AtomicU64,
    /// Parts from this one on do not come.
    broken_at: AtomicU64,
    /// A file that changes before its first part is read.
    changes: Mutex<Option<PathBuf>>,
}

impl Peers for Room {
    fn ask(
        &self,
        name: &str,
        request: ModelRequest,
    ) -> Result<RequestResult<ModelAnswer>, BrokerError> {
        let machine = lock(&self.machines).get(name).cloned();
        let machine = machine.ok_or_else(|| BrokerError::Nobody {
            what: format!("ask {name}"),
        })?;
        if matches!(request, ModelRequest::Part { .. }) {
            if let Some(path) = lock(&self.changes).take() {
                fs::write(path, b"THEIRS").unwrap();
            }
            let part = self.parts.fetch_add(1, Ordering::Relaxed);
            if part >= self.broken_at.load(Ordering::Relaxed) {
                return Ok(Err("the line is cut".to_owned()));
            }
        }
        Ok(machine.answer(request))
    }
}

struct Machine {
    folder: tempfile::TempDir,
    server: Arc<ModelServer>,
}

impl Machine {
    fn new(
        room: &Arc<Room>,
        objects: &Arc<FolderObjects>,
        name: &str,
        files: &[(&str, Vec<u8>)],
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (file, content) in files {
            let path = folder.path().join("models").join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let folders = Folders::new(&Dirs::under(folder.path()));
        let catalogue = Catalogue::start(folders.clone(), folder.path().join("known.txt"));
        assert!(catalogue.wait_settled(Duration::from_mins(1)));
        let server = ModelServer::new(folders, catalogue, objects.clone(), room.clone());
        lock(&room.machines).insert(name.to_owned(), server.clone());
        Self { folder, server }
    }

    fn read(&self, file: &str) -> Option<Vec<u8>> {
        fs::read(self.folder.path().join("models").join(file)).ok()
    }

    fn copy(&self, from: &str, file: &str, replace: bool) -> CopyEnd {
        self.server
            .copy_file(from, &file_named(file), replace, &mut |_, _| {})
    }
}

fn file_named(file: &str) -> Wanted {
    let (folder, name) = file.split_once('/').unwrap();
    Wanted {
        folder: folder.into(),
        name: name.into(),
    }
}

fn large() -> Vec<u8> {
    (0..(PART as usize * 2 + 12345))
        .map(|n| (n / 7) as u8)
        .collect()
}

fn room() -> (tempfile::TempDir, Arc<FolderObjects>, Arc<Room>) {
    let folder = tempfile::tempdir().unwrap();
    let objects = Arc::new(FolderObjects::new(folder.path()).unwrap());
    let room = Arc::new(Room::default());
    room.broken_at.store(u64::MAX, Ordering::Relaxed);
    (folder, objects, room)
}

#[test]
fn a_copy_that_breaks_off_goes_on_from_there() {
    let (_folder, objects, room) = room();
    let _a = Machine::new(&room, &objects, "a", &[("loras/s/l.pt", large())]);
    let b = Machine::new(&room, &objects, "b", &[]);
    room.broken_at.store(2, Ordering::Relaxed);
    let CopyEnd::Failed(why) = b.copy("a", "loras/s/l.pt", false) else {
        panic!("the line was cut");
    };
    assert!(why.contains("a says: the line is cut"), "{why}");
    assert!(b.read("loras/s/l.pt").is_none());
    room.broken_at.store(u64::MAX, Ordering::Relaxed);
    room.parts.store(0, Ordering::Relaxed);
    assert_eq!(b.copy("a", "loras/s/l.pt", false), CopyEnd::Copied);
    assert_eq!(
        room.parts.load(Ordering::Relaxed),
        1,
        "two parts were there"
    );
    assert_eq!(b.read("loras/s/l.pt"), Some(large()));
    assert_eq!(objects.count(), 0, "the store is empty again");
    assert_eq!(b.copy("a", "loras/s/l.pt", false), CopyEnd::There);
    let left = fs::read_dir(b.folder.path().join("models/loras/s")).unwrap();
    assert_eq!(left.count(), 1);
}

#[test]
fn what_is_different_or_damaged_is_not_replaced() {
    let (_folder, objects, room) = room();
    let a = Machine::new(&room, &objects, "a", &[("loras/l.pt", b"theirs".to_vec())]);
    let b = Machine::new(&room, &objects, "b", &[("loras/l.pt", b"ours".to_vec())]);
    let failed = |end: CopyEnd, what: &str| match end {
        CopyEnd::Failed(why) => assert!(why.contains(what), "{why}"),
        other => panic!("{other:?}"),
    };
    failed(b.copy("a", "loras/l.pt", false), "--replace");
    assert_eq!(b.read("loras/l.pt").unwrap(), b"ours");
    failed(
        b.copy("a", "loras/none.pt", false),
        "no model file loras/none.pt",
    );
    failed(
        b.copy("a", "custom_nodes/p/__init__.py", false),
        "cannot be put here",
    );
    failed(b.copy("a", "loras/../../x.pt", false), "cannot be put here");
    failed(b.copy("nobody", "loras/m.pt", false), "no such worker");
    assert_eq!(b.copy("a", "loras/l.pt", true), CopyEnd::Copied);
    assert_eq!(b.read("loras/l.pt").unwrap(), b"theirs");
    // The file changes between its description and its parts.
    let path = a.folder.path().join("models/loras/l.pt");
    *lock(&room.changes) = Some(path.clone());
    fs::remove_file(b.folder.path().join("models/loras/l.pt")).unwrap();
    failed(b.copy("a", "loras/l.pt", false), "not what it said");
    assert!(b.read("loras/l.pt").is_none());
    // One that changed before it was asked for is copied as it is now, and a new one is found.
    fs::write(path.with_file_name("new.pt"), b"new").unwrap();
    assert_eq!(b.copy("a", "loras/l.pt", false), CopyEnd::Copied);
    assert_eq!(b.read("loras/l.pt").unwrap(), b"THEIRS");
    assert_eq!(b.copy("a", "loras/new.pt", false), CopyEnd::Copied);
}

#[test]
fn a_machine_can_be_told_to_copy_and_asked_how_far_it_is() {
    let (_folder, objects, room) = room();
    let _a = Machine::new(
        &room,
        &objects,
        "a",
        &[("loras/1.pt", vec![1; 10]), ("vae/2.pt", large())],
    );
    let b = Machine::new(&room, &objects, "b", &[("loras/1.pt", vec![1; 10])]);
    let files = [
        file_named("loras/1.pt"),
        file_named("vae/2.pt"),
        file_named("vae/3.pt"),
    ];
    let mut heard = 0;
    let ends = copy_elsewhere(&*room, "a", "b", &files, false, &mut |_| heard += 1).unwrap();
    let ends: Vec<_> = ends.into_iter().map(|p| p.end.unwrap()).collect();
    assert_eq!(ends[..2], [CopyEnd::There, CopyEnd::Copied]);
    assert!(matches!(&ends[2], CopyEnd::Failed(why) if why.contains("vae/3.pt")));
    assert!(heard > 0);
    assert_eq!(b.read("vae/2.pt"), Some(large()));
    assert!(b.server.catalogue.wait_settled(Duration::from_mins(1)));
    let list = list_of(&*room, "b").unwrap();
    let names: Vec<&str> = list.iter().map(|e| e.name.as_str()).collect();
    assert_eq!(names, ["1.pt", "2.pt"]);
    let unknown = b.server.answer(ModelRequest::Progress { copy: 7 });
    assert!(unknown.unwrap_err().contains("copy 7"));
}
