//! A film or a sound file as a user may feed it: what its container says, and a copy of a film with other texts.
#![no_main]

use std::io::Cursor;

use fresco_media::{Reader, copy_mp4};
use libfuzzer_sys::fuzz_target;

#[path = "../scratch.rs"]
mod scratch;

fuzz_target!(|data: &[u8]| {
    if let Ok(info) = Reader::here().info(scratch::file(data), &|| false) {
        assert!(info.duration >= 0.0, "{info:?}");
        if let Some(video) = info.video {
            assert!(video.width > 0 && video.height > 0, "{video:?}");
        }
    }
    let tags = vec![("prompt".to_owned(), "{}".to_owned())];
    let mut out = Cursor::new(Vec::new());
    if copy_mp4(&mut Cursor::new(data), &mut out, &tags).is_ok() {
        assert!(out.into_inner().len() >= data.len());
    }
});
