//! The facts of a fault.

/// The fault that a handler's context reports.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts {
    pub trap: u64,
    pub error: u64,
    pub cr2: u64,
}
