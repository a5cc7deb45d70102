//! What must be true of draft trees: goldens, properties and faults seen in other engines.

mod alloc;
mod budget;
mod common;
mod faults;
mod forest;
mod golden;
mod optimal;
mod row;
mod tree;
