//! A picture file as a user may feed it, and the metadata inside it.
#![no_main]

use fresco_files::{image, metadata};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let limits = image::Limits {
        bytes: 1 << 20,
        pixels: 1 << 20,
        frames: 100,
        ..image::Limits::default()
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
    // Read in bands, the first frame is the same.
    let grant = fresco_files::MemoryGuard::default();
    let cursor = std::io::Cursor::new(data);
    if let Ok(mut bands) = image::Bands::open(cursor, &limits, &grant) {
        let mut rows = 0;
        while let Ok(Some(band)) = bands.next_band() {
            assert_eq!(band.rgb8().len(), (band.width * band.height * 3) as usize);
            rows += band.height;
        }
        assert_eq!(rows, bands.height());
    }
    metadata::read_metadata(data);
});
