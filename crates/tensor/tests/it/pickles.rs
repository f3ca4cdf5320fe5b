//! Files of torch: layouts, values, and what is refused.

use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use fresco_tensor::weights::pickle::{self, PickleKind, Problem};
use fresco_tensor::{Dtype, WeightError, WeightFile, open_weights};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/files")
        .join(name)
}

fn values(file: &dyn WeightFile, name: &str) -> (Dtype, Vec<usize>, Vec<f32>) {
    let stored = file.read(name).unwrap();
    let info = file.info(name).unwrap();
    assert_eq!((info.dtype, &*info.shape), (stored.dtype(), stored.shape()));
    let tensor = stored.to_f32().unwrap();
    (info.dtype, info.shape, tensor.into_vec())
}

#[test]
fn a_checkpoint_of_each_layout() {
    for name in ["lightning.ckpt", "protocol4.pt", "old.ckpt"] {
        let file = open_weights(path(name)).unwrap();
        let found: Vec<_> = file
            .names()
            .iter()
            .map(|n| {
                let (dtype, shape, values) = values(&*file, n);
                format!("{} {dtype:?} {shape:?} {values:?}", &n["model.".len()..])
            })
            .collect();
        assert_eq!(
            found,
            [
                "bool Bool [2] [1.0, 0.0]",
                "brain Bf16 [1, 2] [1.0, -2.0]",
                "byte U8 [1] [200.0]",
                "char I8 [1] [-9.0]",
                "double F64 [] [0.125]",
                "empty F32 [0, 4] []",
                "expanded F32 [3, 2] [4.0, 5.0, 4.0, 5.0, 4.0, 5.0]",
                "f8 F8E4M3 [2] [1.0, 448.0]",
                "half F16 [2] [1.0, -0.5]",
                "int I32 [1] [-7.0]",
                "long I64 [2] [-3.0, 1099511600000.0]",
                "parameter F32 [1] [9.0]",
                "part F32 [4] [20.0, 21.0, 22.0, 23.0]",
                "plain F32 [2, 3] [1.5, -2.0, 0.25, 4.0, 5.0, 6.0]",
                "short I16 [1] [-8.0]",
                "sparse F32 [3, 2] [13.0, 15.0, 17.0, 19.0, 21.0, 23.0]",
                "turned F32 [4, 3, 2] [0.0, 12.0, 4.0, 16.0, 8.0, 20.0, 1.0, 13.0, 5.0, 17.0, \
                 9.0, 21.0, 2.0, 14.0, 6.0, 18.0, 10.0, 22.0, 3.0, 15.0, 7.0, 19.0, 11.0, 23.0]",
                "whole F32 [2, 3, 4] [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, \
                 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0, 18.0, 19.0, 20.0, 21.0, 22.0, 23.0]",
            ],
            "{name}"
        );
        assert!(matches!(
            file.read("model.number"),
            Err(WeightError::Missing { .. })
        ));
        assert!(file.info("model.complex").is_none());
    }
}

#[test]
fn foreign_objects_stay_names() {
    let pickle = pickle::load(path("lightning.ckpt")).unwrap();
    let root = pickle.root();
    assert_eq!(root.get("epoch").unwrap().int(), Some(6));
    let evil = root.get("evil").unwrap();
    assert_eq!(evil.kind(), PickleKind::Object("posix.system"));
    assert!(!Path::new("/tmp/a-pickle-was-run").exists());
    let (class, state) = root.get("callbacks").unwrap().entries().next().unwrap();
    let name = "pytorch_lightning.callbacks.model_checkpoint.ModelCheckpoint";
    assert_eq!(class.kind(), PickleKind::Object(name));
    assert_eq!(state.get("monitor").unwrap().text(), Some("val/loss"));
    assert_eq!(state.get("dirpath").unwrap().kind(), PickleKind::None);
    let optimizer = root.get("optimizer_states").unwrap().elements().next();
    let optimizer = optimizer.unwrap();
    assert_eq!(optimizer.get("lr").unwrap().kind(), PickleKind::Float(1e-5));
    let huge = optimizer.get("huge").unwrap();
    assert_eq!(huge.kind(), PickleKind::Object("int"));
    assert_eq!(optimizer.get("betas").unwrap().elements().count(), 2);
}

#[test]
fn names_follow_the_reference() {
    let file = open_weights(path("nested.pth")).unwrap();
    assert_eq!(file.names(), ["a"]);
    assert_eq!(values(&*file, "a").1, [2, 4]);
    let file = open_weights(path("zip64.pt")).unwrap();
    assert_eq!(file.names(), ["a", "b"]);
    assert_eq!(values(&*file, "b").2, [0.125, 0.375, 0.625, 0.875]);
    let file = open_weights(path("concept.bin")).unwrap();
    assert_eq!(file.names(), ["<cat-toy>"]);
}

#[test]
fn textual_inversions_are_reachable() {
    let wanted: Vec<f32> = (0..8).map(|i| i as f32 / 8.0).collect();
    for name in ["inversion.pt", "inversion_old.pt"] {
        let pickle = pickle::load(path(name)).unwrap();
        let root = pickle.root();
        assert_eq!(root.get("name").unwrap().text(), Some("cat-toy"));
        let mut vectors = root.get("string_to_param").unwrap();
        if let Some(state) = vectors.state() {
            vectors = state.get("_parameters").unwrap();
        }
        let (key, vector) = vectors.entries().next().unwrap();
        assert_eq!(key.text(), Some("*"));
        let tensor = vector.read("*").unwrap().to_f32().unwrap();
        assert_eq!(tensor.shape(), [2, 4]);
        assert_eq!(tensor.data(), wanted);
        // Its tensors have no names of their own.
        let Err(WeightError::Pickle(error)) = open_weights(path(name)) else {
            panic!("{name} was opened");
        };
        assert!(matches!(error.problem, Problem::NoTensors), "{error}");
    }
}

/// The older layout around the opcodes of one pickle.
fn row(opcodes: &[u8]) -> Vec<u8> {
    let mut file = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.".to_vec();
    file.extend(b"\x80\x02M\xe9\x03.\x80\x02}.");
    file.extend(opcodes);
    file.extend(b"\x80\x02].");
    file
}

fn refusal(content: &[u8]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.pt");
    std::fs::write(&path, content).unwrap();
    let message = match pickle::load(&path) {
        Ok(pickle) => return format!("{:?}", pickle.root()),
        Err(error) => error.problem.to_string(),
    };
    let again = open_weights(&path).err().unwrap().to_string();
    assert!(
        again.contains(&message) || again.contains("is damaged or is not a model file"),
        "{again}"
    );
    message
}

#[track_caller]
fn check(opcodes: &[u8], message: &str) {
    assert_eq!(refusal(&row(opcodes)), message);
}

#[test]
fn bad_pickles_are_refused_with_a_reason() {
    let at = |what: &str, at: u64| format!("the pickle is refused at byte {at}: {what}");
    check(b"\x80\x02K\x05.", "Int(5)");
    check(b"\x8a\x01\xfe.", "Int(-2)");
    check(b"\x8a\x00.", "Int(0)");
    check(
        b"\x80\x02Vabc\n.",
        &at("opcode UNICODE (0x56) is not allowed", 2),
    );
    check(
        b"(ios\nsystem\n.",
        &at("opcode INST (0x69) is not allowed", 1),
    );
    check(b"\x82\x01.", &at("opcode EXT1 (0x82) is not allowed", 0));
    check(b"\xfe.", &at("opcode unknown (0xfe) is not allowed", 0));
    check(b".", &at("its stack is empty", 0));
    check(b"(N.", "None");
    check(b"N(.", &at("its stack is empty", 2));
    check(b"N(0.", &at("its stack is empty", 2));
    check(b"N(\x85.", &at("its stack is empty", 2));
    check(b"t.", &at("a mark is missing", 0));
    check(b"}(Nu.", &at("a key has no value", 3));
    check(
        b"NNa.",
        &at("it appends to something that is not a list", 2),
    );
    check(
        b"]NNs.",
        &at("it sets items of something that is not a dictionary", 3),
    );
    check(b"h\x07.", &at("it recalls a value that it never kept", 0));
    check(b"NN\x93.", &at("the name of a global is not a text", 2));
    check(
        b"ca\nb\nNR.",
        &at("the arguments of a call are no tuple", 6),
    );
    check(b"ca\nb\n)R.", "Object(\"a.b\")");
    check(b"ca\nb\n)R)R.", "Object(\"\")");
    check(b"NQ.", &at("a storage is not named by a tuple", 1));
    check(
        b"K\x01\x85Q.",
        &at("it refers to something that is not a storage", 3),
    );
    check(b"X\xff\xff\xff\x7fabc", "it ends early");
    check(b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc", "it ends early");
    check(b"\x8b\xff\xff\xff\xffabc", "it ends early");
    let mut long = b"c".to_vec();
    long.resize(5000, b'a');
    check(&long, &at("a name is too long", 0));
    assert_eq!(
        refusal(b"\x80\x02K\x05."),
        "it is a pickle, but not one that torch wrote"
    );
    assert_eq!(refusal(b"\x80\x02"), "it ends early");
    let whole = row(b"}.");
    assert_eq!(refusal(&whole[..whole.len() - 1]), "it ends early");
}

/// `("storage", FloatStorage, "0", "cpu", count)` as a storage.
fn storage(count: u8) -> Vec<u8> {
    let mut out = b"(U\x07storagectorch\nFloatStorage\nX\x01\0\0\x000U\x03cpuK".to_vec();
    out.extend([count, b't', b'Q']);
    out
}

fn tensor(count: u8, offset: &[u8], shape: &[u8], strides: &[u8]) -> Vec<u8> {
    let mut out = b"ctorch._utils\n_rebuild_tensor_v2\n(".to_vec();
    for part in [&storage(count)[..], offset, shape, strides, b"\x89)tR."] {
        out.extend(part);
    }
    out
}

#[test]
fn tensors_outside_their_storage_are_refused() {
    let refused = |opcodes: Vec<u8>, what: &str| {
        let message = refusal(&row(&opcodes));
        assert!(message.ends_with(what), "{message}");
    };
    let behind = "a tensor reaches behind the end of its storage";
    refused(tensor(4, b"K\x00", b"K\x05\x85", b"K\x01\x85"), behind);
    refused(tensor(4, b"K\x01", b"K\x04\x85", b"K\x01\x85"), behind);
    refused(tensor(4, b"K\x00", b"K\x03\x85", b"K\x02\x85"), behind);
    refused(tensor(0, b"K\x00", b")", b")"), behind);
    let huge = b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f";
    refused(tensor(4, huge, b"K\x02\x85", b"K\x01\x85"), behind);
    let strides = [&huge[..], b"\x85"].concat();
    refused(tensor(4, b"K\x00", b"K\x09\x85", &strides), behind);
    refused(
        tensor(4, b"K\x00", &strides, b"K\x00\x85"),
        "a tensor is too large",
    );
    refused(
        tensor(4, b"J\xff\xff\xff\xff", b"K\x01\x85", b"K\x01\x85"),
        "the position of a tensor is negative",
    );
    refused(
        tensor(4, b"K\x00", b"J\xff\xff\xff\xff\x85", b"K\x01\x85"),
        "the shape of a tensor is negative",
    );
    refused(
        tensor(4, b"K\x00", b"K\x01\x85", b")"),
        "a tensor has more sizes than strides",
    );
    refused(
        tensor(4, b"K\x00", b"N", b")"),
        "the shape of a tensor is not a tuple",
    );
    // The storage is named, but the list of keys is empty.
    refused(
        tensor(4, b"K\x00", b"K\x04\x85", b"K\x01\x85"),
        "the storage \"0\" is missing",
    );
    let mut two = storage(4);
    two.extend(storage(5));
    two.push(b'.');
    refused(two, "a storage has two sizes");
}

#[test]
fn values_may_hold_themselves() {
    // A list that holds itself, and forty lists of two references each to the one before.
    let mut opcodes = b"]q\x00h\x00a0]q\x00".to_vec();
    for _ in 0..40 {
        opcodes.extend(b"0](h\x00h\x00eq\x00");
    }
    opcodes.push(b'.');
    check(&opcodes, "List");
}

#[test]
fn bad_archives_are_refused_with_a_reason() {
    let reason = |name: &str| match pickle::load(path(name)) {
        Ok(_) => panic!("{name} was opened"),
        Err(error) => error.problem.to_string(),
    };
    assert_eq!(
        reason("compressed.pt"),
        "\"archive/byteorder\" is compressed, which torch never does"
    );
    for name in ["big_endian.pt", "big_endian.ckpt"] {
        assert_eq!(reason(name), "it was written on a big-endian machine");
    }
    let whole = std::fs::read(path("nested.pth")).unwrap();
    for length in (4..whole.len()).step_by(7) {
        let message = refusal(&whole[..length]);
        assert!(message.contains("ends early"), "{length}: {message}");
    }
    // Every byte damaged in turn: an error or an answer, never a panic.
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("x.pt");
    for name in ["zip64.pt", "nested.pth", "inversion_old.pt"] {
        let whole = std::fs::read(path(name)).unwrap();
        std::fs::write(&copy, &whole).unwrap();
        // In place: a file that is written anew goes to the disk each time.
        let mut file = std::fs::OpenOptions::new().write(true).open(&copy).unwrap();
        let mut put = |at: usize, byte: u8| {
            file.seek(SeekFrom::Start(at as u64)).unwrap();
            file.write_all(&[byte]).unwrap();
        };
        for (at, &byte) in whole.iter().enumerate() {
            for flip in [0xFF, 0x01, 0x80] {
                put(at, byte ^ flip);
                read_if_possible(&copy);
            }
            put(at, byte);
        }
    }
}

fn read_if_possible(path: &Path) {
    if let Ok(pickle) = pickle::load(path) {
        for (name, value) in pickle.state_dict() {
            let info = value.tensor_info().unwrap();
            let stored = value.read(&name).unwrap();
            assert_eq!((info.dtype, &*info.shape), (stored.dtype(), stored.shape()));
        }
    }
}

#[test]
fn a_file_that_shrinks_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["nested.pth", "old.ckpt"] {
        let copy = dir.path().join(name);
        std::fs::copy(path(name), &copy).unwrap();
        let file = open_weights(&copy).unwrap();
        let handle = std::fs::OpenOptions::new().write(true).open(&copy).unwrap();
        handle.set_len(20).unwrap();
        let first = &file.names()[0];
        assert!(matches!(file.read(first), Err(WeightError::Changed { .. })));
    }
}
