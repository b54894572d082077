//! The fields of records: how each is read, and how it is written.

use core::fmt;
use core::marker::PhantomData;

use crate::address::AddressPrefix;
use crate::hostcall::NO_HANDLE;
use crate::seccomp::{INSTRUCTION_BYTES, Instruction};

/// Takes the bytes of a record, one piece after the other.
pub(super) type Put<'p> = dyn FnMut(&[u8]) + 'p;

/// The bytes of a record that have not been read.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    /// The bytes before the next NUL, which is read as well.
    pub(super) fn word(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let (word, rest) = self.0.split_at_checked(end)?;
        self.0 = rest.get(1..)?;
        Some(word)
    }

    /// All that is left.
    pub(super) fn rest(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.0)
    }

    /// A number of 64 bits whose upper half is 0.
    pub(super) fn padded(&mut self) -> Option<u32> {
        u32::try_from(u64::read(self)?).ok()
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }
}

/// A part of a record.
pub(super) trait Field<'a>: Sized {
    /// Reads it; `None`: the bytes are no such field.
    fn read(from: &mut Reader<'a>) -> Option<Self>;
    /// Writes the bytes from which [`Self::read`] makes it.
    fn write(&self, put: &mut Put<'_>);
}

macro_rules! numbers {
    ($($number:ty),+) => {$(
        impl Field<'_> for $number {
            fn read(from: &mut Reader<'_>) -> Option<Self> {
                from.array().map(Self::from_le_bytes)
            }

            fn write(&self, put: &mut Put<'_>) {
                put(&self.to_le_bytes());
            }
        }
    )+};
}
numbers!(u16, u32, u64, i32);

/// 0 or 1, of 32 bits.
impl Field<'_> for bool {
    fn read(from: &mut Reader<'_>) -> Option<Self> {
        match u32::read(from)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn write(&self, put: &mut Put<'_>) {
        u32::from(*self).write(put);
    }
}

/// `None` is the largest number.
impl Field<'_> for Option<u64> {
    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let number = u64::read(from)?;
        Some((number != u64::MAX).then_some(number))
    }

    fn write(&self, put: &mut Put<'_>) {
        self.unwrap_or(u64::MAX).write(put);
    }
}

/// `None` is the largest number, which is [`NO_HANDLE`] as well.
impl Field<'_> for Option<u32> {
    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let handle = u32::read(from)?;
        Some((handle != NO_HANDLE).then_some(handle))
    }

    fn write(&self, put: &mut Put<'_>) {
        self.unwrap_or(NO_HANDLE).write(put);
    }
}

/// The last field of a record: its length is the record's.
impl<'a> Field<'a> for &'a [u8] {
    fn read(from: &mut Reader<'a>) -> Option<Self> {
        Some(from.rest())
    }

    fn write(&self, put: &mut Put<'_>) {
        put(self);
    }
}

/// The last field of a record: UTF-8.
impl<'a> Field<'a> for &'a str {
    fn read(from: &mut Reader<'a>) -> Option<Self> {
        core::str::from_utf8(from.rest()).ok()
    }

    fn write(&self, put: &mut Put<'_>) {
        put(self.as_bytes());
    }
}

/// Writes a word as [`Reader::word`] reads it. What follows a NUL in it is left out.
pub(super) fn write_word(word: &[u8], put: &mut Put<'_>) {
    put(word.split(|byte| *byte == 0).next().unwrap_or_default());
    put(&[0]);
}

/// An element of a [`List`].
pub trait Item: Copy + Eq + fmt::Debug {
    /// Bytes of each element.
    const BYTES: usize;
    /// Reads an element from as many bytes; `None`: they are none.
    fn from_bytes(bytes: &[u8]) -> Option<Self>;
    /// Writes an element's bytes.
    fn put(&self, put: &mut dyn FnMut(&[u8]));
}

impl Item for u32 {
    const BYTES: usize = 4;

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self::from_le_bytes)
    }

    fn put(&self, put: &mut dyn FnMut(&[u8])) {
        put(&self.to_le_bytes());
    }
}

impl Item for [u32; 3] {
    const BYTES: usize = 12;

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (words, []) = bytes.as_chunks() else { return None };
        let words: &[[u8; 4]; 3] = words.try_into().ok()?;
        Some(words.map(u32::from_le_bytes))
    }

    fn put(&self, put: &mut dyn FnMut(&[u8])) {
        self.iter().for_each(|word| put(&word.to_le_bytes()));
    }
}

impl Item for AddressPrefix {
    const BYTES: usize = size_of::<Self>();

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Self::from_bytes(bytes)
    }

    fn put(&self, put: &mut dyn FnMut(&[u8])) {
        put(&self.to_bytes());
    }
}

impl Item for Instruction {
    const BYTES: usize = INSTRUCTION_BYTES;

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self::from_bytes)
    }

    fn put(&self, put: &mut dyn FnMut(&[u8])) {
        put(&self.to_bytes());
    }
}

/// Elements of one kind, as they are to be written or as the bytes of a record that they were read from.
#[derive(Clone, Copy)]
pub struct List<'a, T>(Held<'a, T>);

#[derive(Clone, Copy)]
enum Held<'a, T> {
    Items(&'a [T]),
    /// Checked: each element can be read.
    Bytes(&'a [u8], PhantomData<T>),
}

impl<'a, T: Item> List<'a, T> {
    /// The list in `bytes`, which has nothing else.
    pub(super) fn read_all(bytes: &'a [u8]) -> Option<Self> {
        let is_whole = bytes.chunks(T::BYTES).all(|item| item.len() == T::BYTES);
        let is_good = is_whole && bytes.chunks(T::BYTES).all(|item| T::from_bytes(item).is_some());
        is_good.then_some(Self(Held::Bytes(bytes, PhantomData)))
    }

    /// The elements.
    pub fn iter(&self) -> impl Iterator<Item = T> + use<'a, T> {
        let (items, bytes): (&[T], &[u8]) = match self.0 {
            Held::Items(items) => (items, &[]),
            Held::Bytes(bytes, _) => (&[], bytes),
        };
        items.iter().copied().chain(bytes.chunks(T::BYTES).filter_map(T::from_bytes))
    }

    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self.0 {
            Held::Items(items) => items.len(),
            Held::Bytes(bytes, _) => bytes.len() / T::BYTES,
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a, T> From<&'a [T]> for List<'a, T> {
    fn from(items: &'a [T]) -> Self {
        Self(Held::Items(items))
    }
}

impl<T: Item> PartialEq for List<'_, T> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<T: Item> Eq for List<'_, T> {}

impl<T: Item> fmt::Debug for List<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The last field of a record.
impl<'a, T: Item> Field<'a> for List<'a, T> {
    fn read(from: &mut Reader<'a>) -> Option<Self> {
        Self::read_all(from.rest())
    }

    fn write(&self, put: &mut Put<'_>) {
        self.iter().for_each(|item| item.put(put));
    }
}
