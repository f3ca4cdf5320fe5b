//! Media types by file extension, and the coarse class that decides what a loader offers.

/// Extension (lower case) and media type. One table for static files, `/view` and the loaders.
const TYPES: &[(&str, &str)] = &[
    // Web.
    ("html", "text/html"),
    ("htm", "text/html"),
    ("css", "text/css"),
    ("js", "application/javascript; charset=utf-8"),
    ("mjs", "text/javascript"),
    ("json", "application/json"),
    ("map", "application/json"),
    ("webmanifest", "application/manifest+json"),
    ("xml", "application/xml"),
    ("xhtml", "application/xhtml+xml"),
    ("xht", "application/xhtml+xml"),
    ("wasm", "application/wasm"),
    ("txt", "text/plain"),
    ("log", "text/plain"),
    ("md", "text/markdown"),
    ("csv", "text/csv"),
    ("py", "text/x-python"),
    ("pdf", "application/pdf"),
    ("zip", "application/zip"),
    ("doc", "application/msword"),
    ("woff", "font/woff"),
    ("woff2", "font/woff2"),
    ("ttf", "font/ttf"),
    ("otf", "font/otf"),
    // Pictures.
    ("png", "image/png"),
    ("apng", "image/apng"),
    ("jpg", "image/jpeg"),
    ("jpeg", "image/jpeg"),
    ("jpe", "image/jpeg"),
    ("jfif", "image/jpeg"),
    ("gif", "image/gif"),
    ("webp", "image/webp"),
    ("avif", "image/avif"),
    ("heif", "image/heif"),
    ("heic", "image/heic"),
    ("bmp", "image/bmp"),
    ("ico", "image/vnd.microsoft.icon"),
    ("svg", "image/svg+xml"),
    ("tif", "image/tiff"),
    ("tiff", "image/tiff"),
    ("pnm", "image/x-portable-anymap"),
    ("pbm", "image/x-portable-bitmap"),
    ("pgm", "image/x-portable-graymap"),
    ("ppm", "image/x-portable-pixmap"),
    ("ras", "image/x-cmu-raster"),
    ("rgb", "image/x-rgb"),
    ("xbm", "image/x-xbitmap"),
    ("xpm", "image/x-xpixmap"),
    ("xwd", "image/x-xwindowdump"),
    ("ief", "image/ief"),
    // Sound.
    ("mp3", "audio/mpeg"),
    ("mp2", "audio/mpeg"),
    ("flac", "audio/flac"),
    ("ogg", "audio/ogg"),
    ("oga", "audio/ogg"),
    ("opus", "audio/ogg"),
    ("wav", "audio/x-wav"),
    ("m4a", "audio/mp4"),
    ("aac", "audio/aac"),
    ("aif", "audio/x-aiff"),
    ("aifc", "audio/x-aiff"),
    ("aiff", "audio/x-aiff"),
    ("au", "audio/basic"),
    ("snd", "audio/basic"),
    ("mid", "audio/midi"),
    ("midi", "audio/midi"),
    ("3gp", "audio/3gpp"),
    ("3gpp", "audio/3gpp"),
    ("3g2", "audio/3gpp2"),
    // Film.
    ("mp4", "video/mp4"),
    ("m4v", "video/mp4"),
    ("webm", "video/webm"),
    ("mkv", "video/x-matroska"),
    ("mov", "video/quicktime"),
    ("qt", "video/quicktime"),
    ("avi", "video/x-msvideo"),
    ("mpeg", "video/mpeg"),
    ("mpg", "video/mpeg"),
    ("mpe", "video/mpeg"),
    ("mpa", "video/mpeg"),
    ("m1v", "video/mpeg"),
    ("m2v", "video/mpeg"),
    ("ogv", "video/ogg"),
    ("wmv", "video/x-ms-wmv"),
    ("flv", "video/x-flv"),
    // 3-D.
    ("gltf", "model/gltf+json"),
    ("glb", "model/gltf-binary"),
    ("obj", "model/obj"),
    ("stl", "model/stl"),
    ("usdz", "model/vnd.usdz+zip"),
    ("fbx", "model/vnd.autodesk.fbx"),
];

/// What an unknown extension is.
pub const OCTET_STREAM: &str = "application/octet-stream";

/// Types a browser would run or lay out; `/view` serves them as bytes. `.js` is included, unlike in the reference.
const ACTIVE: &[&str] = &[
    "text/html",
    "text/html-sandboxed",
    "application/xhtml+xml",
    "text/javascript",
    "application/javascript; charset=utf-8",
    "text/css",
];

/// Coarse class of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MediaClass {
    Image,
    Video,
    Audio,
    /// 3-D model.
    Model,
}

impl MediaClass {
    /// The class by extension; unknown and extension-less files have none.
    pub fn of(name: &str) -> Option<Self> {
        match lookup(name)?.split('/').next()? {
            "image" => Some(Self::Image),
            "video" => Some(Self::Video),
            "audio" => Some(Self::Audio),
            "model" => Some(Self::Model),
            _ => None,
        }
    }
}

/// The media type of a file name, `application/octet-stream` if unknown.
pub fn media_type(name: &str) -> &'static str {
    lookup(name).unwrap_or(OCTET_STREAM)
}

/// The media type under which `/view` sends a file: never one that runs in the page.
pub fn view_type(name: &str) -> &'static str {
    let t = media_type(name);
    if ACTIVE.contains(&t) { OCTET_STREAM } else { t }
}

fn lookup(name: &str) -> Option<&'static str> {
    let ext = extension(name)?.to_ascii_lowercase();
    TYPES.iter().find(|(e, _)| *e == ext).map(|(_, t)| *t)
}

/// The last extension without its dot; none for `name`, `.name` and `name.`.
pub fn extension(name: &str) -> Option<&str> {
    let file = name.rsplit(['/', '\\']).next().unwrap_or(name);
    let (stem, ext) = file.rsplit_once('.')?;
    (!ext.is_empty() && !stem.trim_start_matches('.').is_empty()).then_some(ext)
}

/// Keeps the names of the given classes.
pub fn filter_by_class<'a>(
    names: impl IntoIterator<Item = &'a str>,
    classes: &[MediaClass],
) -> Vec<&'a str> {
    names
        .into_iter()
        .filter(|n| MediaClass::of(n).is_some_and(|c| classes.contains(&c)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes() {
        for (class, exts) in [
            (
                Some(MediaClass::Image),
                "gif heif ico jpeg jpg png pnm ppm svg tiff webp xbm xpm PNG Webp",
            ),
            (
                Some(MediaClass::Audio),
                "aif aifc aiff au flac m4a mp2 mp3 ogg snd wav",
            ),
            (
                Some(MediaClass::Video),
                "avi m2v m4v mkv mov mp4 mpeg mpg ogv qt webm wmv",
            ),
            (Some(MediaClass::Model), "gltf glb obj fbx stl FBX"),
            (None, "txt py pdf ini doc md unknown"),
        ] {
            for ext in exts.split(' ') {
                assert_eq!(MediaClass::of(&format!("file.{ext}")), class, "{ext}");
            }
        }
        for name in ["png", ".png", "", "file.", "dir.png/file"] {
            assert_eq!(MediaClass::of(name), None, "{name}");
        }
    }

    #[test]
    fn types() {
        for (name, want) in [
            ("a.js", "application/javascript; charset=utf-8"),
            ("a.mjs", "text/javascript"),
            ("a.WEBP", "image/webp"),
            ("a.glb", "model/gltf-binary"),
            ("a.html", "text/html"),
            ("a.css", "text/css"),
            ("a.json", "application/json"),
            ("a.svg", "image/svg+xml"),
            ("a.avif", "image/avif"),
            ("a.mp4", "video/mp4"),
            ("a.opus", "audio/ogg"),
            ("a.woff2", "font/woff2"),
            ("a.wasm", "application/wasm"),
            ("a.safetensors", OCTET_STREAM),
            ("noext", OCTET_STREAM),
        ] {
            assert_eq!(media_type(name), want);
        }
        for active in ["a.html", "a.HTM", "a.js", "a.mjs", "a.css", "a.xhtml"] {
            assert_eq!(view_type(active), OCTET_STREAM);
        }
        assert_eq!(view_type("a.svg"), "image/svg+xml");
        assert_eq!(view_type("a.json"), "application/json");
    }

    #[test]
    fn each_extension_once() {
        let mut seen = std::collections::BTreeSet::new();
        for (e, _) in TYPES {
            assert!(seen.insert(e), "{e} twice");
        }
    }

    #[test]
    fn filter() {
        let names = ["a.png", "b.txt", "c.mp4", "d"];
        assert_eq!(
            filter_by_class(names, &[MediaClass::Image, MediaClass::Video]),
            ["a.png", "c.mp4"]
        );
    }
}
