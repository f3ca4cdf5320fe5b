//! A GGUF file, and the tensors that it says it has.
#![no_main]

use fresco_tensor::WeightFile as _;
use fresco_tensor::weights::gguf::Gguf;
use libfuzzer_sys::fuzz_target;

#[path = "../scratch.rs"]
mod scratch;

fuzz_target!(|data: &[u8]| {
    let path = scratch::file(data);
    if let Ok(file) = Gguf::open(path) {
        let mut bytes = 0;
        for name in file.names() {
            let info = file.info(&name).expect("a listed tensor is known");
            if let Ok(stored) = file.read(&name) {
                assert_eq!((info.dtype, &*info.shape), (stored.dtype(), stored.shape()));
                assert!(stored.to_f32().is_ok());
                bytes += stored.bytes().len();
            }
        }
        assert!(bytes <= data.len(), "tensors overlap");
    }
});
