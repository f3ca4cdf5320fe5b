//! Pictures that `/view` makes of others: what they cost, and what is refused.

use std::fs;

use fresco_tests::Server;
use fresco_tests::http::multipart;

/// Writes a PNG of wide samples whose rows are all the same.
fn write_png(server: &Server, name: &str, width: u32, height: u32) {
    let folder = server.base.join("output");
    fs::create_dir_all(&folder).unwrap();
    let file = fs::File::create(folder.join(name)).unwrap();
    let mut encoder = png::Encoder::new(std::io::BufWriter::new(file), width, height);
    encoder.set_color(png::ColorType::Rgba);
    encoder.set_depth(png::BitDepth::Sixteen);
    encoder.set_compression(png::Compression::Fastest);
    let row: Vec<u8> = (0..width * 8).map(|i| (i % 251) as u8).collect();
    let mut writer = encoder.write_header().unwrap();
    let mut stream = writer.stream_writer().unwrap();
    for _ in 0..height {
        std::io::Write::write_all(&mut stream, &row).unwrap();
    }
    stream.finish().unwrap();
    writer.finish().unwrap();
}

/// A BMP: a format that cannot be read row by row here.
fn write_bmp(server: &Server, name: &str, width: u32, height: u32) {
    let folder = server.base.join("output");
    fs::create_dir_all(&folder).unwrap();
    let pixels = width * height * 3;
    let mut bytes = b"BM".to_vec();
    for field in [54 + pixels, 0, 54, 40, width, height] {
        bytes.extend(field.to_le_bytes());
    }
    bytes.extend([1, 0, 24, 0]);
    bytes.extend([0; 24]);
    bytes.resize(54 + pixels as usize, 90);
    fs::write(folder.join(name), bytes).unwrap();
}

fn metric(server: &Server, name: &str) -> u64 {
    let text = server.get("/metrics").expect_status(200).text();
    let line = text.lines().find_map(|l| l.strip_prefix(name));
    let value = line.unwrap_or_else(|| panic!("no {name} in {text}"));
    value.trim().parse::<f64>().unwrap() as u64
}

/// The most main memory the server has had so far.
#[cfg(target_os = "linux")]
fn peak(server: &Server) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib: u64 = line
        .unwrap()
        .split_whitespace()
        .next()
        .unwrap()
        .parse()
        .unwrap();
    kib << 10
}

#[cfg(target_os = "linux")]
#[test]
fn a_large_picture_is_never_in_memory_as_a_whole() {
    let server = Server::start();
    // 72 MB of samples, and half as much again at every step when it is decoded as a whole.
    write_png(&server, "large.png", 3000, 3000);
    write_png(&server, "small.png", 40, 40);
    server
        .get("/view?filename=small.png&channel=rgb")
        .expect_status(200);
    let before = peak(&server);
    let answers: Vec<_> = std::thread::scope(|scope| {
        let ask = |form: &'static str| {
            let server = &server;
            scope.spawn(move || server.get(&format!("/view?filename=large.png&{form}")))
        };
        let all = [ask("channel=a"), ask("channel=rgb")];
        all.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let grown = peak(&server) - before;
    assert!(grown < 40 << 20, "{} MiB more than before", grown >> 20);
    for (answer, channels) in answers.iter().zip([4usize, 3]) {
        assert_eq!(answer.status, 200, "{}", answer.text());
        let decoder = png::Decoder::new(std::io::Cursor::new(&answer.body));
        let mut reader = decoder.read_info().unwrap();
        assert_eq!((reader.info().width, reader.info().height), (3000, 3000));
        let row = reader.next_row().unwrap().unwrap().data().to_vec();
        let wanted: Vec<u8> = (0..3000u32 * 8)
            .step_by(2)
            .map(|i| (i % 251) as u8)
            .collect();
        let wanted: Vec<u8> = wanted
            .chunks_exact(4)
            .flat_map(|p| {
                if channels == 4 {
                    [0, 0, 0, p[3]]
                } else {
                    [p[0], p[1], p[2], 0]
                }
            })
            .collect::<Vec<u8>>()
            .chunks_exact(4)
            .flat_map(|p| p[..channels].to_vec())
            .collect();
        assert!(row == wanted, "the first row of {channels} channels");
    }
    assert_eq!(metric(&server, "fresco_request_memory_bytes"), 0);
}

#[test]
fn decoded_bytes_count_and_not_pixels() {
    let server = Server::with(&["--max-picture-memory", "8"]);
    write_bmp(&server, "large.bmp", 1600, 1600);
    write_bmp(&server, "small.bmp", 300, 300);
    write_png(&server, "rows.png", 1600, 1600);
    let get = |name: &str, form: &str| server.get(&format!("/view?filename={name}&{form}"));
    for form in [
        "preview=webp",
        "preview=jpeg;80",
        "channel=rgb",
        "channel=a",
    ] {
        let answer = get("large.bmp", form).expect_status(413);
        let text = answer.text();
        assert!(text.contains("picture_too_large"), "{form}: {text}");
        assert!(text.contains("--max-picture-memory"), "{form}: {text}");
        get("small.bmp", form).expect_status(200);
    }
    // Row by row it costs next to nothing.
    get("rows.png", "channel=a").expect_status(200);
    // The file itself is only sent.
    get("large.bmp", "").expect_status(200);
    let mask = fs::read(server.base.join("output/large.bmp")).unwrap();
    let fields = [(
        "original_ref",
        "{\"filename\": \"large.bmp\", \"type\": \"output\"}",
    )];
    let (kind, body) = multipart(&fields, Some(("image", "mask.png", &mask)));
    let headers = [("Content-Type", kind.as_str())];
    let answer = server.request("POST", "/upload/mask", &headers, &body);
    assert_eq!(answer.status, 413, "{}", answer.text());
    let models = server.base.join("models/loras");
    fs::create_dir_all(&models).unwrap();
    fs::write(models.join("a.safetensors"), "").unwrap();
    fs::copy(server.base.join("output/large.bmp"), models.join("a.bmp")).unwrap();
    let answer = server.get("/experiment/models/preview/loras/0/a.safetensors");
    assert_eq!(answer.status, 413, "{}", answer.text());
    assert_eq!(metric(&server, "fresco_request_memory_bytes"), 0);
}

#[test]
fn previews_are_remembered_until_the_file_changes() {
    let server = Server::start();
    write_png(&server, "p.png", 50, 40);
    let path = "/view?filename=p.png&preview=webp;75";
    let first = server.get(path).expect_status(200);
    let made = metric(&server, "fresco_pictures_total{outcome=\"made\"}");
    let again = server.get(path).expect_status(200);
    assert!(first.body == again.body && first.header("etag") == again.header("etag"));
    assert_eq!(
        metric(&server, "fresco_pictures_total{outcome=\"made\"}"),
        made
    );
    assert_eq!(
        metric(&server, "fresco_pictures_total{outcome=\"repeated\"}"),
        1
    );
    write_png(&server, "p.png", 60, 40);
    let changed = server.get(path).expect_status(200);
    assert_ne!(changed.header("etag"), first.header("etag"));
    assert_eq!(
        metric(&server, "fresco_pictures_total{outcome=\"made\"}"),
        made + 1
    );
}

#[test]
fn a_preview_of_a_picture_that_is_too_wide_is_smaller() {
    let server = Server::start();
    write_png(&server, "wide.png", 20_000, 8);
    let answer = server
        .get("/view?filename=wide.png&preview=webp&channel=rgb")
        .expect_status(200);
    // The size of a lossy WEBP is in the first bytes of its only frame.
    let number = |at: usize| u16::from_le_bytes([answer.body[at], answer.body[at + 1]]) & 0x3fff;
    assert_eq!(&answer.body[..4], b"RIFF");
    assert_eq!((number(26), number(28)), (10_000, 4));
}
