//! Samplers, their noise and their levels against numbers of the reference.

mod golden;
mod reference;
