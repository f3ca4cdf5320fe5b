use std::io::Read;

use super::*;

fn inflated(compressed: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    let mut decoder = flate2::read::DeflateDecoder::new(compressed);
    decoder.read_to_end(&mut plain).unwrap();
    plain
}

/// Numbers that look like chance.
fn chance(seed: u32) -> impl FnMut() -> u32 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    }
}

fn kinds() -> Vec<(&'static str, Vec<u8>)> {
    let mut next = chance(7);
    let size = 150_000;
    let noise: Vec<u8> = (0..size).map(|_| next() as u8).collect();
    // Small numbers around zero, as of a filtered photo.
    let photo = (0..size).map(|_| (next() % 5 + next() % 5) as u8);
    let photo: Vec<u8> = photo.map(|sum| sum.wrapping_sub(4)).collect();
    let phrase = &noise[..3000];
    let rows: Vec<u8> = phrase.iter().copied().cycle().take(size).collect();
    // Codes of very different lengths, longer than the format allows.
    let rare = (0..size).map(|_| (next() | 1 << 23).trailing_zeros() as u8);
    let zeros = vec![0; size];
    let mixed = [
        &noise[..40_000],
        &photo[..40_000],
        &zeros[..40_000],
        &rows[..9],
    ]
    .concat();
    vec![
        ("nothing", Vec::new()),
        ("one byte", vec![7]),
        ("a few", b"abcdefghabcdefghabcdefgh".to_vec()),
        ("zeros", zeros),
        ("rare", rare.collect()),
        ("mixed", mixed),
        ("rows", rows),
        ("photo", photo),
        ("noise", noise),
    ]
}

#[test]
fn everything_comes_back_and_noise_hardly_grows() {
    let mut deflater = Deflater::new();
    for (name, data) in kinds() {
        let mut out = b"before".to_vec();
        assert!(deflater.deflate(&data, 0, true, &mut out, &|| true));
        assert!(out.starts_with(b"before"), "{name}");
        assert!(inflated(&out[6..]) == data, "{name}");
        assert!(
            out.len() <= 6 + 11 + data.len() + data.len() / 4000,
            "{name}"
        );
    }
}

#[test]
fn pieces_follow_each_other_and_know_what_was_before() {
    let mut deflater = Deflater::new();
    for (name, data) in kinds() {
        for cuts in [vec![0], vec![1, 2], vec![8, 70_000], vec![33_333, 33_333]] {
            let mut out = Vec::new();
            let mut from = 0_usize;
            for cut in cuts.iter().map(|cut| (*cut).min(data.len())) {
                let known = from.saturating_sub(20_000);
                assert!(deflater.deflate(
                    &data[known..cut],
                    from - known,
                    false,
                    &mut out,
                    &|| true
                ));
                from = cut;
            }
            let known = from.saturating_sub(40_000);
            assert!(deflater.deflate(&data[known..], from - known, true, &mut out, &|| true));
            assert!(inflated(&out) == data, "{name} cut at {cuts:?}");
        }
    }
    let (_, rows) = kinds().remove(6);
    let size = |start| {
        let mut out = Vec::new();
        assert!(deflater.deflate(&rows[..6000], start, true, &mut out, &|| true));
        out.len()
    };
    let sizes = [0, 3000].map(size);
    assert!(sizes[1] * 20 < sizes[0], "{sizes:?}");
}

/// What comes out does not depend on what was compressed before.
#[test]
fn a_used_compressor_is_as_a_new_one() {
    let mut used = Deflater::new();
    for (name, data) in kinds() {
        let [mut first, mut second] = [Vec::new(), Vec::new()];
        assert!(used.deflate(&data, 0, true, &mut first, &|| true));
        assert!(Deflater::new().deflate(&data, 0, true, &mut second, &|| true));
        assert!(first == second, "{name}");
    }
}

#[test]
fn what_is_not_wanted_any_more_stops() {
    let mut out = Vec::new();
    assert!(!Deflater::new().deflate(&[1; 100], 0, true, &mut out, &|| false));
}

#[test]
fn no_larger_than_the_general_compressor() {
    let mut deflater = Deflater::new();
    for (name, data) in kinds() {
        let mut out = Vec::new();
        assert!(deflater.deflate(&data, 0, true, &mut out, &|| true));
        let mut general =
            flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::new(4));
        std::io::Write::write_all(&mut general, &data).unwrap();
        let general = general.finish().unwrap().len();
        assert!(
            out.len() <= general + general / 20 + 16,
            "{name}: {} {general}",
            out.len()
        );
    }
}

#[test]
fn symbols_of_all_lengths_and_distances() {
    for length in 3..=258 {
        let (symbol, extra) = length_symbol(length);
        let base: u32 = match symbol {
            285 => 258,
            _ => {
                (257..symbol)
                    .map(|s| 1 << (s.max(261) - 261).div_euclid(4))
                    .sum::<u32>()
                    + 3
            }
        };
        let more = u32::from(length) - base;
        assert!(more < 1 << extra && symbol < LITERALS, "{length}");
    }
    for distance in 1..=32_768 {
        let (symbol, extra) = distance_symbol(distance);
        let base = (0..symbol).map(|s| 1 << (s.max(2) / 2 - 1)).sum::<u32>() + 1;
        let more = u32::from(distance) - base;
        assert!(more < 1 << extra && symbol < DISTANCES, "{distance}");
    }
}
