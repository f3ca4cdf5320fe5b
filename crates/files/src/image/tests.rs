use super::*;
use crate::png_write::{Picture, Pixels, encode_apng, encode_png};

fn png_head(width: u32, height: u32) -> Vec<u8> {
    let mut file = encode_png(
        &Picture::new(1, 1, Pixels::Rgb, &[1, 2, 3]).unwrap(),
        &[],
        4,
    )
    .unwrap();
    file[16..20].copy_from_slice(&width.to_be_bytes());
    file[20..24].copy_from_slice(&height.to_be_bytes());
    file
}

#[test]
fn formats_that_nobody_decodes_are_called_by_name() {
    for (bytes, name) in [
        (&b"\0\0\0\x1cftypavif\0\0\0\0avifmif1"[..], "AVIF"),
        (b"\0\0\0\x1cftypmif1\0\0\0\0mif1heic", "HEIC"),
        (b"\xff\x0a\x00\x01", "JPEG XL"),
    ] {
        let error = decode(bytes, &Limits::default()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(name) && text.contains("PNG"), "{text}");
    }
    assert!(matches!(
        decode(b"\0\0\0\x1cftypisom\0\0\0\0", &Limits::default()),
        Err(ImageError::UnknownFormat)
    ));
}

#[test]
fn formats_by_first_bytes() {
    for (bytes, want) in [
        (&b"\x89PNG\r\n"[..], Some(Format::Png)),
        (b"\xff\xd8\xff\xe0", Some(Format::Jpeg)),
        (b"RIFF\0\0\0\0WEBPVP8 ", Some(Format::Webp)),
        (b"RIFF\0\0\0\0WAVE", None),
        (b"GIF89a", Some(Format::Gif)),
        (b"BM", Some(Format::Bmp)),
        (b"II*\0", Some(Format::Tiff)),
        (b"MM\0*", Some(Format::Tiff)),
        (b"<svg>", None),
    ] {
        assert_eq!(Format::guess(bytes), want);
    }
}

#[test]
fn nothing_and_nonsense() {
    let l = Limits::default();
    assert!(matches!(decode(b"", &l), Err(ImageError::Empty)));
    assert!(matches!(
        decode(b"hello", &l),
        Err(ImageError::UnknownFormat)
    ));
    for head in [
        &b"\x89PNG\r\n\x1a\n"[..],
        b"\xff\xd8\xff",
        b"GIF89a",
        b"BM",
        b"II*\0",
        b"RIFF\0\0\0\0WEBP",
    ] {
        assert!(
            matches!(decode(head, &l), Err(ImageError::Corrupt { .. })),
            "{head:?}"
        );
    }
}

#[test]
fn bombs_are_refused_by_their_header() {
    let l = Limits::default();
    let e = decode(&png_head(100_000, 100_000), &l).unwrap_err();
    assert!(matches!(e, ImageError::TooManyPixels { .. }), "{e}");
    assert!(e.to_string().contains("100000 x 100000"));
    let mut gif = b"GIF89a\xff\xff\xff\xff\x80\0\0\0\0\0\xff\xff\xff".to_vec();
    gif.extend(b",\0\0\0\0\x01\0\x01\0\0\x02\x02\x44\x01\0;");
    assert!(matches!(
        decode(&gif, &l),
        Err(ImageError::TooManyPixels { .. })
    ));
    let mut bmp = b"BM\0\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0".to_vec();
    bmp.extend(60_000u32.to_le_bytes());
    bmp.extend(60_000u32.to_le_bytes());
    bmp.extend(b"\x01\0\x18\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    assert!(matches!(
        decode(&bmp, &l),
        Err(ImageError::TooManyPixels { .. })
    ));
    let small = Limits { bytes: 10, ..l };
    assert!(matches!(
        decode(&png_head(1, 1), &small),
        Err(ImageError::TooLarge { .. })
    ));
}

#[test]
fn frames_are_counted() {
    let data = [0; 12];
    let frames = [Picture::new(2, 2, Pixels::Rgb, &data).unwrap(); 5];
    let file = encode_apng(&frames, 100, &[], 4).unwrap();
    let l = Limits::default();
    assert_eq!(decode(&file, &l).unwrap().frames.len(), 5);
    assert!(matches!(
        decode(&file, &Limits { frames: 4, ..l }),
        Err(ImageError::TooManyFrames { limit: 4 })
    ));
    assert!(matches!(
        decode(&file, &Limits { pixels: 19, ..l }),
        Err(ImageError::TooManyPixels { .. })
    ));
}

#[test]
fn text_comes_along() {
    let text = vec![("prompt".to_owned(), "{}".to_owned())];
    let file = encode_png(
        &Picture::new(1, 1, Pixels::Rgba, &[1, 2, 3, 4]).unwrap(),
        &text,
        4,
    )
    .unwrap();
    let image = decode(&file, &Limits::default()).unwrap();
    assert_eq!(image.text, text);
    assert_eq!(image.first().rgba8(), [1, 2, 3, 4]);
    assert_eq!(image.first().alpha8(), Some(&[4][..]));
    assert_eq!(image.first().mode, Mode::Rgba);
}

#[test]
fn orientation_from_other_places() {
    let data = [1, 1, 1, 2, 2, 2];
    let p = Picture::new(2, 1, Pixels::Rgb, &data).unwrap();
    let hex = exif_with(3)
        .iter()
        .fold(String::new(), |s, b| s + &format!("{b:02x}"));
    for (key, value) in [
        (
            "XML:com.adobe.xmp",
            "<x tiff:Orientation=\"3\"/>".to_owned(),
        ),
        ("Raw profile type exif", format!("\nexif\n  26\n{hex}\n")),
    ] {
        let file = encode_png(&p, &[(key.to_owned(), value)], 4).unwrap();
        assert_eq!(
            decode(&file, &Limits::default()).unwrap().first().rgb8(),
            [2, 2, 2, 1, 1, 1],
            "{key}"
        );
    }
}

fn exif_with(orientation: u8) -> Vec<u8> {
    let mut v = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0".to_vec();
    v.extend([orientation, 0, 0, 0, 0, 0, 0, 0]);
    v
}

#[test]
fn a_wrong_checksum_is_forgiven() {
    let data = [9; 3];
    let mut file = encode_png(&Picture::new(1, 1, Pixels::Rgb, &data).unwrap(), &[], 4).unwrap();
    // The checksum of IHDR.
    file[29] ^= 0xff;
    assert_eq!(
        decode(&file, &Limits::default()).unwrap().first().rgb8(),
        data
    );
}

#[test]
fn a_cut_png_keeps_its_upper_rows() {
    let data: Vec<u8> = (0..64 * 64 * 3u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let file = encode_png(&Picture::new(64, 64, Pixels::Rgb, &data).unwrap(), &[], 4).unwrap();
    let image = decode(&file[..file.len() / 2], &Limits::default()).unwrap();
    assert!(image.truncated);
    let rgb = image.first().rgb8();
    assert_eq!(rgb[..64 * 3 * 8], data[..64 * 3 * 8]);
    assert!(rgb[rgb.len() - 64 * 3..].iter().all(|&v| v == 0));
}
