//! How long pieces of memory are.

/// A page of memory, the shortest piece.
pub const PAGE_BYTES: usize = 4096;
/// The longest piece.
pub const PIECE_BYTES: usize = 64 << 10;
/// How far back DEFLATE can go.
pub const WINDOW_BYTES: usize = 32 << 10;
/// How far back an accelerator can go, and so what is packed for one.
pub const ENGINE_WINDOW_BYTES: usize = 4 << 10;
