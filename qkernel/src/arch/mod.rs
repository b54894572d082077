//! The processor.

pub mod ring0;
