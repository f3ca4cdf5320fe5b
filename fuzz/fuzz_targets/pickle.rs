//! A file of torch in either layout, and the tensors that it says it has.
#![no_main]

use fresco_tensor::weights::pickle;
use libfuzzer_sys::fuzz_target;

#[path = "../scratch.rs"]
mod scratch;

fuzz_target!(|data: &[u8]| {
    let path = scratch::file(data);
    if let Ok(pickle) = pickle::load(path) {
        for (name, value) in pickle.state_dict() {
            let info = value.tensor_info().expect("a state dict holds tensors");
            // A stride of 0 makes a large tensor of a small file, which is allowed; here it only takes time.
            if info.shape.iter().product::<usize>() > 1 << 16 {
                continue;
            }
            let stored = value.read(&name).expect("its place was checked");
            assert_eq!((info.dtype, &*info.shape), (stored.dtype(), stored.shape()));
        }
    }
});
