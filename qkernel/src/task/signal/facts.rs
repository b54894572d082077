//! The facts of a fault.

/// What a handler's context says of the last fault.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts {
    pub trap: u64,
    pub error: u64,
    pub cr2: u64,
}
