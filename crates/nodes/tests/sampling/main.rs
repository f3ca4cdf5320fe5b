//! Sampling through the node interface, with small networks of made-up weights.

mod end_to_end;
mod harness;
