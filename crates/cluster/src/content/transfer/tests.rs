use super::super::FolderObjects;
use super::super::names::{named_inputs, named_outputs};
use super::*;

use fresco_graph::{NodeRegistry, map};

struct Side {
    _folder: tempfile::TempDir,
    dirs: Arc<Dirs>,
    transfer: Transfer,
}

impl Side {
    fn new(objects: &Arc<FolderObjects>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let dirs = Arc::new(Dirs::under(folder.path()));
        let transfer = Transfer::new(objects.clone(), dirs.clone());
        Self {
            _folder: folder,
            dirs,
            transfer,
        }
    }

    fn put(&self, dir: DirType, name: &str, content: &[u8]) {
        let path = self.dirs.get(dir).join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn get(&self, dir: DirType, name: &str) -> Option<Vec<u8>> {
        fs::read(self.dirs.get(dir).join(name)).ok()
    }
}

fn store() -> (tempfile::TempDir, Arc<FolderObjects>) {
    let folder = tempfile::tempdir().unwrap();
    let objects = Arc::new(FolderObjects::new(folder.path()).unwrap());
    (folder, objects)
}

fn shown(names: &[&str]) -> Value {
    let image = |name: &&str| {
        let (folder, name) = name.rsplit_once('/').unwrap_or(("", name));
        Value::from(map! {"filename" => name, "subfolder" => folder, "type" => "output"})
    };
    Value::from(map! {"images" => names.iter().map(image).collect::<Vec<_>>()})
}

/// What a worker shows, as the front shows it after it brought the files.
fn bring(worker: &Side, front: &Side, names: &[&str]) -> String {
    let mut value = shown(names);
    let files = named_outputs(&value, &worker.dirs);
    assert_eq!(files.len(), names.len());
    let refs = worker.transfer.offer(&files).unwrap();
    // Over the wire.
    let text = serde_json::to_string(&refs).unwrap();
    let read = fresco_graph::json::parse(&text).unwrap();
    let read: Vec<FileRef> = fresco_graph::typed::from_value(&read).unwrap();
    assert_eq!(read, refs);
    let renames = front.transfer.bring_outputs(&read).unwrap();
    renames.apply(&mut value);
    let images = value.get("images").unwrap().as_list().unwrap();
    let names = images.iter().map(|image| {
        let (dir, name) = shown_file(image.as_map().unwrap()).unwrap();
        assert!(front.get(dir, &name).is_some(), "{name}");
        name
    });
    names.collect::<Vec<_>>().join(" ")
}

#[test]
fn inputs_reach_the_worker_small_and_large() {
    let (_folder, objects) = store();
    let (front, worker) = (Side::new(&objects), Side::new(&objects));
    let large = vec![7; 100 << 10];
    front.put(DirType::Input, "s/small.png", b"small");
    front.put(DirType::Output, "large.png", &large);
    worker.put(DirType::Input, "s/small.png", b"another of the same name");
    let prompt = map! {"1" => Value::from(map! {"class_type" => "X", "inputs" =>
    map! {"a" => "s/small.png", "b" => "large.png [output]"}})};
    let files = named_inputs(&prompt, &NodeRegistry::new(), &front.dirs);
    let refs = front.transfer.offer(&files).unwrap();
    assert_eq!(objects.count(), 1, "the small one is in the message");
    for _ in 0..2 {
        worker.transfer.bring_inputs(&refs).unwrap();
        assert_eq!(worker.get(DirType::Input, "s/small.png").unwrap(), b"small");
        assert_eq!(worker.get(DirType::Output, "large.png").unwrap(), large);
    }
}

#[test]
fn outputs_keep_their_names_or_get_the_next_number() {
    let (_folder, objects) = store();
    let front = Side::new(&objects);
    let (one, two) = (Side::new(&objects), Side::new(&objects));
    one.put(DirType::Output, "s/x_00001_.png", b"one 1");
    one.put(DirType::Output, "s/x_00002_.png", b"one 2");
    two.put(DirType::Output, "s/x_00001_.png", b"two 1");
    two.put(DirType::Output, "s/x_00002_.png", &vec![1; 100 << 10]);
    two.put(DirType::Output, "loose.txt", b"two");
    one.put(DirType::Output, "loose.txt", b"one");
    assert_eq!(bring(&one, &front, &["s/x_00001_.png"]), "s/x_00001_.png");
    assert_eq!(bring(&two, &front, &["s/x_00001_.png"]), "s/x_00002_.png");
    assert_eq!(
        bring(&two, &front, &["s/x_00002_.png", "s/x_00001_.png"]),
        "s/x_00003_.png s/x_00002_.png"
    );
    assert_eq!(bring(&one, &front, &["s/x_00002_.png"]), "s/x_00004_.png");
    // The same again, also with another memory.
    assert_eq!(bring(&one, &front, &["s/x_00002_.png"]), "s/x_00004_.png");
    let again = Side {
        transfer: Transfer::new(objects.clone(), front.dirs.clone()),
        ..front
    };
    two.put(DirType::Output, "s/x_00001_.png", b"new");
    assert_eq!(bring(&one, &again, &["s/x_00001_.png"]), "s/x_00001_.png");
    assert_eq!(bring(&two, &again, &["s/x_00001_.png"]), "s/x_00005_.png");
    assert_eq!(bring(&one, &again, &["loose.txt"]), "loose.txt");
    assert_eq!(bring(&two, &again, &["loose.txt"]), "loose_00001_.txt");
    // A file that somebody removed comes again under its old name.
    let gone = again.dirs.output.join("s/x_00001_.png");
    fs::remove_file(gone).unwrap();
    assert_eq!(bring(&one, &again, &["s/x_00001_.png"]), "s/x_00001_.png");
}

#[test]
fn many_small_files_do_not_all_travel_in_the_message() {
    let (_folder, objects) = store();
    let (front, worker) = (Side::new(&objects), Side::new(&objects));
    let names: Vec<String> = (0..20).map(|n| format!("n_{n:05}_.png")).collect();
    for (n, name) in names.iter().enumerate() {
        worker.put(DirType::Output, name, &vec![n as u8; 40 << 10]);
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(bring(&worker, &front, &names), names.join(" "));
    assert!(objects.count() >= 10, "{}", objects.count());
}

#[test]
fn what_is_not_what_was_announced_gets_no_name() {
    let (_folder, objects) = store();
    let front = Side::new(&objects);
    let good = FileRef {
        dir: DirType::Output,
        name: "x_00001_.png".into(),
        size: 3,
        hash: ContentHash::of(b"abc"),
        data: Some(b"abc"[..].into()),
    };
    let refused = |change: &dyn Fn(&mut FileRef), why: &str| {
        let mut bad = good.clone();
        change(&mut bad);
        let error = front.transfer.bring_outputs(&[bad]).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    };
    refused(&|f| f.data = Some(b"abd"[..].into()), "hash");
    refused(&|f| f.size = 4, "3 bytes and not 4");
    refused(&|f| f.name = "../x.png".into(), "output folder");
    refused(&|f| f.name = "/etc/x.png".into(), "output folder");
    refused(&|f| f.data = None, "no content");
    let left = fs::read_dir(&front.dirs.output).map_or(0, Iterator::count);
    assert_eq!(left, 0, "nothing is left behind");
    front
        .transfer
        .bring_outputs(std::slice::from_ref(&good))
        .unwrap();

    let list = |text: &str| {
        let value = fresco_graph::json::parse(text).unwrap();
        let list = fresco_graph::typed::from_value::<Vec<FileRef>>(&value);
        list.unwrap_err().to_string()
    };
    assert!(list("{}").contains("invalid type"));
    assert!(list(r#"[{"type":"models"}]"#).contains("type: \"models\" is not"));
    assert!(list(r#"[{"type":"output","name":"a","size":-1,"hash":""}]"#).contains("size: "));
    assert!(list(r#"[{"type":"output","name":"a","size":1,"hash":"x"}]"#).contains("hash: "));
    let many = vec![good; MOST_REFS + 1];
    let error = front.transfer.bring_outputs(&many).unwrap_err().to_string();
    assert!(error.contains("too many"), "{error}");
}
