//! An upload as it comes: the first line is the content type, the rest the body.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let split = data.iter().position(|byte| *byte == b'\n').unwrap_or(0);
    let (kind, body) = data.split_at(split);
    let kind = String::from_utf8_lossy(kind);
    let body = Bytes::copy_from_slice(body.get(1..).unwrap_or_default());
    if let Ok(parts) = fresco_server::multipart::parse(&kind, &body) {
        let total: usize = parts.iter().map(|part| part.data.len()).sum();
        assert!(
            total <= body.len(),
            "parts are cut from the body, never more"
        );
    }
});
