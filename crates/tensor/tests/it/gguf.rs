//! GGUF files: values against llama.cpp's own package, and what is refused.

use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use fresco_tensor::weights::gguf::{Gguf, Problem};
use fresco_tensor::{Dtype, SafeTensors, WeightError, WeightFile, open_weights};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/files")
        .join(name)
}

#[test]
fn values_are_those_of_llama_cpp() {
    let file = open_weights(path("blocks.gguf")).unwrap();
    let wanted = SafeTensors::open(path("blocks.safetensors")).unwrap();
    let mut formats = Vec::new();
    for name in wanted.names() {
        let stored = file.read(name).unwrap();
        let info = file.info(name).unwrap();
        assert_eq!((info.dtype, &*info.shape), (stored.dtype(), stored.shape()));
        formats.push(format!("{name} {:?} {:?}", info.dtype, info.shape));
        let wanted = wanted.tensor(name).unwrap();
        assert!(wanted.data().iter().all(|v| v.is_finite()));
        assert!(stored.to_f32().unwrap() == wanted, "{name}");
    }
    assert_eq!(
        formats,
        [
            "BF16 Bf16 [3, 5]",
            "F16 F16 [3, 5]",
            "F32 F32 [3, 5]",
            "IQ1_M Iq1M [3, 256]",
            "IQ1_S Iq1S [3, 256]",
            "IQ2_S Iq2S [3, 256]",
            "IQ2_XS Iq2Xs [3, 256]",
            "IQ2_XXS Iq2Xxs [3, 256]",
            "IQ3_S Iq3S [3, 256]",
            "IQ3_XXS Iq3Xxs [3, 256]",
            "IQ4_NL Iq4Nl [3, 256]",
            "IQ4_XS Iq4Xs [3, 256]",
            "MXFP4 Mxfp4 [3, 256]",
            "NVFP4 GgmlNvfp4 [3, 256]",
            "Q2_K Q2K [3, 256]",
            "Q3_K Q3K [3, 256]",
            "Q4_0 Q4_0 [3, 256]",
            "Q4_1 Q4_1 [3, 256]",
            "Q4_K Q4K [3, 256]",
            "Q5_0 Q5_0 [3, 256]",
            "Q5_1 Q5_1 [3, 256]",
            "Q5_K Q5K [3, 256]",
            "Q6_K Q6K [3, 256]",
            "Q8_0 Q8_0 [3, 64, 2, 2]",
            "TQ1_0 Tq1_0 [3, 256]",
            "TQ2_0 Tq2_0 [3, 256]",
        ]
    );
}

#[test]
fn metadata_and_unsupported_formats() {
    let file = Gguf::open(path("blocks.gguf")).unwrap();
    for (key, wanted) in [
        ("general.architecture", Some("sd1")),
        ("test.large", Some("9223372036854775808")),
        ("test.float", Some("0.5")),
        ("test.bool", Some("true")),
        ("test.int", Some("-3")),
        ("test.words", Some("[a, b]")),
        ("test.many", None),
        ("comfy.gguf.orig_shape.Q8_0", Some("[3, 64, 2, 2]")),
    ] {
        assert_eq!(file.value(key), wanted, "{key}");
    }
    assert_eq!(file.info("odd").unwrap().shape, [2, 256]);
    let error = file.read("odd").unwrap_err();
    assert!(
        matches!(&error, WeightError::Format { name, format, .. } if name == "odd" && format == "Q8_1"),
        "{error}"
    );
    assert!(file.read("none").is_err());
    assert_eq!(file.read("scalar").unwrap().to_f32().unwrap().data(), [1.5]);
}

/// A file under construction.
#[derive(Default, Clone)]
struct Draft {
    values: Vec<u8>,
    value_count: u64,
    tensors: Vec<u8>,
    tensor_count: u64,
    data: Vec<u8>,
}

fn text(text: &str) -> Vec<u8> {
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend(text.bytes());
    out
}

impl Draft {
    fn value(mut self, key: &str, kind: u32, content: &[u8]) -> Self {
        self.values.extend(text(key));
        self.values.extend(kind.to_le_bytes());
        self.values.extend(content);
        self.value_count += 1;
        self
    }

    fn tensor(mut self, name: &str, dims: &[u64], kind: u32, offset: u64) -> Self {
        self.tensors.extend(text(name));
        self.tensors.extend((dims.len() as u32).to_le_bytes());
        self.tensors
            .extend(dims.iter().flat_map(|d| d.to_le_bytes()));
        self.tensors.extend(kind.to_le_bytes());
        self.tensors.extend(offset.to_le_bytes());
        self.tensor_count += 1;
        self
    }

    fn data(mut self, len: usize) -> Self {
        self.data = vec![0; len];
        self
    }

    fn bytes(&self, version: u32) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(version.to_le_bytes());
        out.extend(self.tensor_count.to_le_bytes());
        out.extend(self.value_count.to_le_bytes());
        out.extend(&self.values);
        out.extend(&self.tensors);
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(&self.data);
        out
    }
}

fn open(bytes: &[u8]) -> Result<Vec<String>, Problem> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.gguf");
    std::fs::write(&path, bytes).unwrap();
    match Gguf::open(&path) {
        Ok(file) => Ok(file.names()),
        Err(error) => Err(error.problem),
    }
}

#[track_caller]
fn refused(draft: &Draft, message: &str) {
    assert_eq!(open(&draft.bytes(3)).unwrap_err().to_string(), message);
}

#[test]
fn good_drafts() {
    let draft = Draft::default()
        .value("general.alignment", 4, &64u32.to_le_bytes())
        .tensor("a", &[4, 3], 0, 0)
        .tensor("b", &[], 0, 64)
        .tensor("empty", &[0], 0, 0)
        .data(200);
    for version in [2, 3] {
        assert_eq!(open(&draft.bytes(version)).unwrap(), ["a", "b", "empty"]);
    }
    // Types from the future are only in the way of those who read them.
    let draft = Draft::default().tensor("a", &[7], 99, 0);
    assert_eq!(open(&draft.bytes(3)).unwrap(), ["a"]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    std::fs::write(&path, draft.bytes(3)).unwrap();
    let file = open_weights(&path).unwrap();
    assert_eq!(file.info("a").unwrap().dtype, Dtype::F32);
    let error = file.read("a").unwrap_err().to_string();
    assert!(
        error.contains("type 99") && error.contains("\"a\""),
        "{error}"
    );
}

#[test]
fn bad_headers_are_refused_with_a_reason() {
    let draft = Draft::default();
    refused(
        &Draft {
            tensor_count: u64::MAX,
            ..draft.clone()
        },
        "it claims to hold 18446744073709551615 tensors, more than fit in it",
    );
    refused(
        &Draft {
            value_count: 1 << 40,
            ..draft.clone()
        },
        "it claims to hold 1099511627776 metadata entries, more than fit in it",
    );
    for (version, message) in [
        (1, "version 1 is not known"),
        (4, "version 4 is not known"),
        (3 << 24, "it was written on a big-endian machine"),
    ] {
        assert_eq!(
            open(&draft.bytes(version)).unwrap_err().to_string(),
            message
        );
    }
    refused(
        &draft.clone().value("a", 13, &[0; 8]),
        "metadata \"a\" has the unknown type 13",
    );
    refused(
        &draft.clone().value("a", 8, &u64::MAX.to_le_bytes()),
        "it ends inside its header",
    );
    let array = |kind: u32, count: u64| {
        let mut out = kind.to_le_bytes().to_vec();
        out.extend(count.to_le_bytes());
        out
    };
    refused(
        &draft.clone().value("a", 9, &array(0, 1 << 50)),
        "it claims to hold 1125899906842624 elements of an array, more than fit in it",
    );
    refused(
        &draft.clone().value("a", 9, &array(99, 1)).data(32),
        "metadata \"a\" has the unknown type 99",
    );
    let nested = array(9, 1).repeat(20);
    refused(
        &draft.clone().value("a", 9, &nested).data(99),
        "metadata \"a\" nests arrays too deeply",
    );
    refused(
        &draft.clone().value("general.alignment", 4, &[0; 4]),
        "the alignment 0 is not a power of two",
    );
    let long = "x".repeat(70_000);
    refused(
        &draft.clone().value(&long, 0, &[0]),
        "a name of 70000 bytes is too long",
    );
    refused(
        &draft.clone().tensor("a", &[1; 9], 0, 0),
        "tensor \"a\" has 9 dimensions",
    );
    refused(
        &draft.clone().tensor("a", &[1 << 40, 1 << 40], 0, 0),
        "tensor \"a\" has the impossible shape [1099511627776, 1099511627776]",
    );
    refused(
        &draft.clone().tensor("a", &[48, 2], 8, 0),
        "tensor \"a\" has the impossible shape [2, 48]",
    );
    refused(
        &draft.clone().tensor("a", &[1], 0, 4).data(64),
        "tensor \"a\" is not aligned",
    );
    refused(
        &draft.clone().tensor("a", &[9], 0, 0).data(32),
        "tensor \"a\" reaches behind the end of the file",
    );
    refused(
        &draft.clone().tensor("a", &[1], 0, u64::MAX - 31).data(32),
        "tensor \"a\" reaches behind the end of the file",
    );
    refused(
        &draft
            .clone()
            .tensor("a", &[1], 0, 0)
            .tensor("a", &[1], 0, 32)
            .data(64),
        "the name \"a\" occurs twice",
    );
    refused(
        &draft
            .clone()
            .tensor("a", &[1], 0, 32)
            .tensor("b", &[9], 0, 0)
            .data(64),
        "tensors \"b\" and \"a\" overlap",
    );
    let mut shape = array(5, 2);
    shape.extend([3i32, -1].iter().flat_map(|s| s.to_le_bytes()));
    refused(
        &draft
            .clone()
            .value("comfy.gguf.orig_shape.a", 9, &shape)
            .tensor("a", &[6], 0, 0)
            .data(32),
        "tensor \"a\": its original shape [3, -1] has another number of elements",
    );
    let whole = draft.value("k", 8, &text("v")).tensor("a", &[4], 0, 0);
    let whole = whole.data(16).bytes(3);
    for length in 0..whole.len() {
        assert!(open(&whole[..length]).is_err(), "{length}");
    }
}

#[test]
fn damaged_files_give_an_error_or_an_answer() {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("x.gguf");
    let whole = std::fs::read(path("blocks.gguf")).unwrap();
    std::fs::write(&copy, &whole).unwrap();
    let mut file = std::fs::OpenOptions::new().write(true).open(&copy).unwrap();
    let mut put = |at: usize, byte: u8| {
        file.seek(SeekFrom::Start(at as u64)).unwrap();
        file.write_all(&[byte]).unwrap();
    };
    for (at, &byte) in whole.iter().enumerate().take(2000) {
        for flip in [0xFF, 0x01, 0x80] {
            put(at, byte ^ flip);
            if let Ok(file) = Gguf::open(&copy) {
                for name in file.names() {
                    let _ = file.read(&name);
                }
            }
        }
        put(at, byte);
    }
    let shrunk = Gguf::open(&copy).unwrap();
    file.set_len(whole.len() as u64 - 300).unwrap();
    for name in ["Q6_K", "scalar", "Q4_0"] {
        let error = shrunk.read(name).err();
        assert!(
            matches!(error, Some(WeightError::Changed { .. })),
            "{name}: {error:?}"
        );
    }
}
