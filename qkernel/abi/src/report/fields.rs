//! Reads the fields of a struct from its bytes.

/// The bytes that have not been read. Whoever reads has compared their number with the struct's before.
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// The bytes of a `T`; `None`: they are too few or too many.
    pub(super) fn of<T>(bytes: &'a [u8]) -> Option<Self> {
        (bytes.len() == size_of::<T>()).then_some(Self(bytes))
    }

    /// The next bytes; zeros where there are none any more.
    pub(super) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let Some((bytes, rest)) = self.0.split_first_chunk() else { return [0; N] };
        self.0 = rest;
        *bytes
    }

    /// The next two bytes as a number.
    pub(super) fn half(&mut self) -> u16 {
        u16::from_le_bytes(self.bytes())
    }

    /// The next four bytes as a number.
    pub(super) fn word(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    /// The next eight bytes as a number.
    pub(super) fn long(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }
}
