//! The header of a safetensors file, with the length of the file chosen by the input.
#![no_main]

use fresco_tensor::safetensors::parse_header;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((more, start)) = data.split_first() else {
        return;
    };
    let size = start.len() as u64 + u64::from(*more);
    if let Ok(header) = parse_header(start, size) {
        let mut end = 0;
        for tensor in &header.tensors {
            assert_eq!(tensor.start, end, "tensors follow each other");
            let elements: usize = tensor.shape.iter().product();
            assert_eq!(
                tensor.dtype.bytes_for(elements),
                Some((tensor.end - tensor.start) as usize)
            );
            end = tensor.end;
        }
        assert!(end <= size);
    }
});
