//! A picture file as a user may feed it, and the metadata inside it.
#![no_main]

use fresco_files::{image, metadata};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let limits = image::Limits {
        bytes: 1 << 20,
        pixels: 1 << 20,
        frames: 100,
    };
    if let Ok(picture) = image::decode(data, &limits) {
        let mut pixels = 0;
        for frame in &picture.frames {
            let size = frame.width as usize * frame.height as usize;
            assert_eq!(frame.rgb8().len(), size * 3);
            if let Some(alpha) = frame.alpha8() {
                assert_eq!(alpha.len(), size);
            }
            pixels += size;
        }
        assert!(pixels as u64 <= limits.pixels, "more pixels than allowed");
    }
    metadata::read_metadata(data);
});
