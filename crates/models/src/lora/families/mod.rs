//! The names that families whose network is not here yet have in LoRA files, a file each. With its network a family's file
//! moves to the folder of the family; the tables that call it are in `detect/table.rs`.

pub(crate) mod bert;
pub(crate) mod t5;
