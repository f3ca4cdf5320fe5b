//! Schema, prompt, validation, order, cache keys, the node trait. Pure: no I/O, no tensor, no threads.
