//! What the kernel is told at boot.

/// User and groups of the first process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Creds {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// A host directory or file in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub handle: u32,
    /// `MOUNT_READ_ONLY` …
    pub flags: u32,
    pub path: Vec<u8>,
}

/// A descriptor the first process begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    pub fd: u32,
    pub handle: u32,
    /// `STREAM_TTY` …
    pub flags: u32,
}

/// A resource limit of the first process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rlimit {
    pub resource: u32,
    pub soft: u64,
    pub hard: u64,
}

/// A file system the kernel makes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualMount {
    /// `proc`, `tmpfs`, …
    pub kind: String,
    pub path: Vec<u8>,
}

/// The first process and what it sees.
#[derive(Clone, Debug, Default)]
pub struct BootSpec {
    pub args: Vec<Vec<u8>>,
    pub env: Vec<Vec<u8>>,
    pub cwd: Vec<u8>,
    pub hostname: Vec<u8>,
    pub creds: Creds,
    /// Parents before children, the root first.
    pub mounts: Vec<Mount>,
    pub streams: Vec<Stream>,
    pub rlimits: Vec<Rlimit>,
    pub umask: u32,
    pub virtual_mounts: Vec<VirtualMount>,
    /// Rows and columns of the terminal behind the streams.
    pub winsize: Option<(u16, u16)>,
    /// Log every system call.
    pub strace: bool,
    /// Least important level that reaches the host: 0 error, 1 warning, 2 information, 3 debug.
    pub log_level: u32,
}
