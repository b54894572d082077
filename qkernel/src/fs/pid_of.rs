//! Processes as others are told of them.

/// A process that others are told of, whether or not they have its id.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PidOf {
    pub(super) pid: u32,
    pub(super) space: u64,
}
