//! Hostcalls: what the kernel asks of the VMM.
//!
//! A [`HostCall`] lies in kernel memory. On kvm the kernel writes its guest-physical address to
//! [`HOSTCALL_PORT`]; on systrap it calls `BootInfo::hostcall_entry`. Addresses in arguments are guest-physical
//! ("phys") unless said otherwise. The result is a non-negative value or a negative errno.
//!
//! A hostcall is synchronous and runs no other task on this CPU meanwhile. Calls that could wait for a
//! stranger (terminals, pipes) never do: they answer `-EAGAIN`, and [`POLL_ARM`] tells when to try again.

mod file_records;

pub use file_records::{
    HostLock, HostStat, HostStatFs, SET_ATIME, SET_ATIME_NOW, SET_GID, SET_MODE, SET_MTIME, SET_MTIME_NOW,
    SET_SIZE, SET_UID, SetAttr,
};

/// I/O port of hostcalls on kvm.
pub const HOSTCALL_PORT: u16 = 0xd0;

/// A hostcall's number and arguments. Written by the kernel, read once by the VMM, then validated.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct HostCall {
    /// The call: [`LOG`] ….
    pub number: u32,
    /// Padding, which is 0.
    pub pad: u32,
    /// The call's arguments, as its constant lists them.
    pub args: [u64; 6],
    /// The VMM's answer: a value of 0 or more, or a negative errno.
    pub result: i64,
}
pin_layout!(HostCall, 64, number: 0, pad: 4, args: 8, result: 56);

/// A piece of kernel or user memory, page-crossing allowed, region-crossing not.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Guest-physical address.
    pub phys: u64,
    /// Bytes.
    pub len: u64,
}
pin_layout!(Segment, 16, phys: 0, len: 8);

/// Most segments in one vectored call.
pub const SEGMENTS_MAX: u64 = 256;
/// Most bytes of one name or path argument.
pub const NAME_MAX_BYTES: u64 = 4096;

/// Handle that stands for "no handle".
pub const NO_HANDLE: u32 = u32::MAX;

// ---- the sandbox and its CPUs ----
/// (text phys, len, level): one log line.
pub const LOG: u32 = 1;
/// (status): the sandbox ends with this wait status (as `wait4` gives it). Does not return.
pub const EXIT: u32 = 2;
/// (text phys, len): the kernel found itself inconsistent. Does not return.
pub const PANIC: u32 = 3;
/// (phys of [`Event`]s, most): blocks this vCPU until `CpuHeader::pending` is set, `CpuHeader::deadline_ns` is reached,
/// or a socket has something to tell; result: how many events of sockets it took, 0 or more.
pub const IDLE: u32 = 4;
/// (cpu): sets `pending` of that CPU, and wakes it or interrupts its user code.
pub const KICK: u32 = 5;
/// (deadline_ns): kvm only; the CPU wants an interrupt at this monotonic time.
pub const SET_DEADLINE: u32 = 6;
/// (progress): gives the core away. 0: a spin lock is contended, which is no progress; else long work goes on, which is.
pub const YIELD: u32 = 7;
/// ([`HostClocks`] phys).
pub const CLOCK: u32 = 8;
/// (phys of [`Event`]s, most): takes host events that are due; result: how many.
pub const EVENTS: u32 = 9;
/// (phys, len): fills with random bytes.
pub const RANDOM: u32 = 10;
/// (the words of a [`crate::report::Report`]): how far the sandbox has got.
pub const REPORT: u32 = 11;

/// (phys of [`HibernateReport`], the event's `value`): how [`EVENT_HIBERNATE`] came out.
pub const HIBERNATED: u32 = 12;

/// (phys of [`crate::stats::KernelStats`]): where the kernel keeps its numbers for good.
pub const STATS: u32 = 13;
/// (): result: nanoseconds of processor time the whole sandbox has used, without the VMM's answers to questions about it.
pub const CPU_TIME: u32 = 14;

/// (id, phys, len): takes the records of the process that [`EVENT_EXEC`] announced, as [`crate::records::decode`] reads them;
/// the streams in them are the kernel's from now on. Result: bytes; `-ESRCH` when nobody waits for it any more.
pub const EXEC_TAKE: u32 = 15;
/// (container id, phys, len): takes the records of the container that [`EVENT_CREATE`] announced, as [`EXEC_TAKE`] does those of a
/// process; mounts in them name roots by handles, which are the kernel's from now on as well. Result: bytes; `-ESRCH` when
/// nobody wants it any more. With a `len` of 0 nothing is taken, and the result is how many bytes there are.
pub const CONTAINER_TAKE: u32 = 29;

// ---- memory ----
/// (phys, len): gives whole pages of user or kernel memory back to the host; they read as zeros afterwards.
pub const RELEASE: u32 = 16;
/// (chunk, handle, file offset, writable): maps a chunk of a host file into the file window. The VMM keeps its own
/// reference to the file.
pub const WINDOW_MAP: u32 = 17;
/// (chunk): unmaps it.
pub const WINDOW_UNMAP: u32 = 18;
/// (dst phys, src phys, len): copies; either side may be in the file window. `-EFAULT` when a mapped file is shorter.
/// On kvm and systrap alike the kernel uses this (or an equivalent fix-up) for every read or write of the window.
pub const WINDOW_COPY: u32 = 19;

/// (phys of [`SwapOut`]): stores pages of user memory in the sandbox's home of pages. All or nothing: after an error
/// everything that was stored before can be brought back as before.
pub const SWAP_OUT: u32 = 20;
/// (phys of `u32` frame numbers, count, how: [`SWAP_IN_AROUND`] …): brings stored pages back to their frames. Several CPUs may
/// do so at once. A page that cannot come back ends the sandbox.
pub const SWAP_IN: u32 = 21;
/// The first, and those of the others that cost next to nothing; the numbers of those that do not come are replaced by
/// [`NO_FRAME`].
pub const SWAP_IN_AROUND: u64 = 0;
/// All.
pub const SWAP_IN_ALL: u64 = 1;
/// All: the working set of a wake.
pub const SWAP_IN_SET: u64 = 2;
/// All, for which nobody waits yet: what somebody waits for goes first.
pub const SWAP_IN_AHEAD: u64 = 3;
/// Of each that the [template](crate::layout::TEMPLATE_PHYS) has, nothing but that it shows it, once it has been checked: to its number
/// [`SHOWN`] is added. Of the others as [`SWAP_IN_AROUND`], where the first is one.
pub const SWAP_IN_SHOWN: u64 = 4;
/// Of the template's pages that it shows them, as [`SWAP_IN_SHOWN`], and all others.
pub const SWAP_IN_SHOWN_ALL: u64 = 5;
/// Pages as by [`SWAP_IN_SHOWN_ALL`], for which nobody waits yet.
pub const SWAP_IN_SHOWN_AHEAD: u64 = 6;
/// In the number of a frame: its content was not brought, and the template shows it.
pub const SHOWN: u32 = 1 << 31;
/// No frame's number.
pub const NO_FRAME: u32 = u32::MAX;
/// (request): the sandbox is asleep, its scheduler is frozen, and this CPU alone runs: its memory is to be taken for another VMM. `EAGAIN`
/// while something is under way on the VMM's side. Once the memory is taken the call does not return under this VMM, and under the other
/// one the kernel begins at its entry.
pub const SNAPSHOT: u32 = 23;
/// (): a wake begins; result: how the working set comes back, a [`REAP_OFF`] ….
pub const BEGIN_WAKE: u32 = 22;
/// Page by page, as it is touched.
pub const REAP_OFF: u64 = 0;
/// Before anything runs.
pub const REAP_FIRST: u64 = 1;
/// While tasks run already.
pub const REAP_STREAM: u64 = 2;
/// It has [stayed](SwapOut::stays) in memory, and comes page by page.
pub const REAP_IN_PLACE: u64 = 3;
/// Is added where content comes from memory: it is there before another task could run.
pub const REAP_AT_ONCE: u64 = 1 << 8;

/// The frames that [`SWAP_OUT`] stores, by number: `(phys - USER_PHYS) / PAGE_SIZE`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapOut {
    /// Numbers (`u32`) of the frames of the working set, in the order of touch.
    pub working: u64,
    /// How many frames the working set has.
    pub working_count: u64,
    /// Numbers (`u32`) of the frames outside of the working set.
    pub rest: u64,
    /// How many frames are outside of the working set.
    pub rest_count: u64,
    /// Bitmap of the frames stored earlier that are to stay stored, in 64-bit words. All others are forgotten.
    pub kept: u64,
    /// Words of the bitmap of frames that stay stored.
    pub kept_words: u64,
    /// The classes (`u8`, [`CLASS_FILE`] …) of the frames of the working set.
    pub working_classes: u64,
    /// The classes (`u8`) of the frames outside of the working set.
    pub rest_classes: u64,
    /// 1: the frames that are listed are not stored. Their content stays where it is, for an image that is taken next, and [`SWAP_IN`] has
    /// nothing to bring; [`KEEP`] says when it goes. What was stored earlier stays stored.
    pub stays: u64,
}
pin_layout!(
    SwapOut, 72,
    working: 0, working_count: 8, rest: 16, rest_count: 24, kept: 32, kept_words: 40, working_classes: 48,
    rest_classes: 56, stays: 64,
);

/// A frame holds a copy of a file's page.
pub const CLASS_FILE: u8 = 0;
/// A program's own memory.
pub const CLASS_ANONYMOUS: u8 = 1;
/// A part of a file in memory.
pub const CLASS_STORE: u8 = 2;
/// The kernel's memory.
pub const CLASS_KERNEL: u8 = 3;
/// Frames that are mapped to be run and not to be written, for [`IMAGE_REGION`].
pub const CLASS_EXECUTABLE: u8 = 4;

/// How a hibernation came out; times in nanoseconds.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HibernateReport {
    /// [`HIBERNATE_DONE`] …
    pub outcome: u64,
    /// Pages that were stored.
    pub pages: u64,
    /// Pages of the working set that were stored.
    pub working_pages: u64,
    /// Pages that were still stored.
    pub kept_pages: u64,
    /// Bytes of free frames that went back to the host.
    pub freed_bytes: u64,
    /// Bytes of free heap that went back to the host.
    pub heap_bytes: u64,
    /// Chunks of host files that were unmapped.
    pub file_chunks: u64,
    /// Until no task ran any more.
    pub pause_ns: u64,
    /// Giving free memory back, and finding the pages.
    pub collect_ns: u64,
    /// Time that storing the pages took.
    pub write_ns: u64,
    /// Marking the entries and giving the frames' memory back.
    pub release_ns: u64,
    /// Padding, which is 0.
    pub pad: u64,
}
pin_layout!(
    HibernateReport, 96,
    outcome: 0, pages: 8, working_pages: 16, kept_pages: 24, freed_bytes: 32, heap_bytes: 40, file_chunks:
    48, pause_ns: 56, collect_ns: 64, write_ns: 72, release_ns: 80, pad: 88,
);

/// Outcome of a hibernation: user memory is stored.
pub const HIBERNATE_DONE: u64 = 0;
/// A task did not come to rest.
pub const HIBERNATE_BUSY: u64 = 1;
/// There is no kernel memory for the lists.
pub const HIBERNATE_NO_MEMORY: u64 = 2;
/// [`SWAP_OUT`] failed; the VMM knows why.
pub const HIBERNATE_STORE: u64 = 4;
/// A later request came first.
pub const HIBERNATE_CANCELLED: u64 = 5;
/// It is hibernated already, by an earlier request, and nothing was to be done.
pub const HIBERNATE_ALREADY: u64 = 6;

// ---- address spaces (systrap) ----
/// (): makes an address space (a stub process); result: its id, 1 or more.
pub const AS_CREATE: u32 = 24;
/// (id): ends it. No CPU runs it. On return it maps nothing any more.
pub const AS_DESTROY: u32 = 25;
/// (id, linear address of [`crate::run::RunState`]): runs user code on this vCPU's stub thread until it traps. Returns at once with `TRAP_INTERRUPT` if `pending` is set.
pub const AS_RUN: u32 = 26;
/// (id, linear address of `MapOp`s, count): carries out mapping operations now, in order, for all threads of the address
/// space. `-ESRCH`: its stub is dead and was waited for, so nothing is mapped there any more; other errors: that of the
/// first operation that failed.
pub const AS_SYNC: u32 = 27;
/// (id, linear address to write, len, 0 or 1 + a vCPU): copies the XSAVE image of the last trap out of this vCPU's stub thread, or of
/// that of another one, which is not in [`AS_RUN`] meanwhile.
pub const AS_SAVE_FPU: u32 = 28;

// ---- host files; handles are the VMM's ----
/// (dir handle, name phys, name len, flags, mode): `openat` of one component (`O_NOFOLLOW` is always added) or, with
/// name len 0, re-opens the node of an `O_PATH` handle with other flags. Names never contain `/` and are neither
/// `.` nor `..`. Only regular files and directories are opened for reading or writing; everything else answers
/// `-ENXIO` unless `O_PATH` is given. Result: a handle.
pub const OPEN: u32 = 32;
/// (handle)
pub const CLOSE: u32 = 33;
/// (handle, name phys, name len, phys of [`HostStat`]): of the component below a directory handle (never following
/// links), or with name len 0 of the handle itself.
pub const STAT: u32 = 34;
/// (handle, phys of [`Segment`]s, count, offset, 1: not from the disk): result: bytes. Offset `u64::MAX`: the stream position
/// (pipes, terminals); then the call never waits, and answers `-EAGAIN`. So it does, or gives fewer bytes, when it would have
/// to wait for a disk and is not to.
pub const READ: u32 = 35;
/// Like [`READ`]. `-EPIPE` raises no signal in the VMM.
pub const WRITE: u32 = 36;
/// (dir handle, phys, len, position): fills with `linux_dirent64` records from the position (0 or a former `d_off`). Result: bytes,
/// with [`READDIR_END`] if nothing comes behind them.
pub const READDIR: u32 = 37;
/// In the result of [`READDIR`]: nothing comes behind the records.
pub const READDIR_END: u64 = 1 << 32;
/// (dir handle, name phys, name len, mode)
pub const MKDIR: u32 = 38;
/// (dir handle, name phys, name len, flags: `AT_REMOVEDIR` or 0)
pub const UNLINK: u32 = 39;
/// (old dir, old name phys, old len << 32 | new len, new dir, new name phys, flags): `renameat2`.
pub const RENAME: u32 = 40;
/// (handle of the node, dir handle, name phys, name len): hard link.
pub const LINK: u32 = 41;
/// (dir handle, name phys, name len, target phys, target len)
pub const SYMLINK: u32 = 42;
/// (dir handle, name phys, name len, phys, len): result: bytes of the link's target. Name len 0: of an `O_PATH` handle.
pub const READLINK: u32 = 43;
/// (dir handle, name phys, name len, mode, kind: `S_IFIFO`, `S_IFSOCK` or `S_IFREG`)
pub const MKNOD: u32 = 44;
/// (handle, name phys, name len, phys of [`SetAttr`]): changes attributes, not following links.
pub const SETATTR: u32 = 45;
/// (handle, mode, offset, len): `fallocate`.
pub const FALLOCATE: u32 = 46;
/// (handle, data only): `fsync` or `fdatasync`.
pub const FSYNC: u32 = 47;
/// (handle, phys of [`HostStatFs`])
pub const STATFS: u32 = 48;
/// (handle, name phys, name len, value phys, value len): `fgetxattr` through the handle; result: bytes.
pub const GETXATTR: u32 = 49;
/// (handle, name phys, name len, value phys, value len, flags)
pub const SETXATTR: u32 = 50;
/// (handle, phys, len): `flistxattr`.
pub const LISTXATTR: u32 = 51;
/// (handle, name phys, name len)
pub const REMOVEXATTR: u32 = 52;
/// (handle, offset, whence: `SEEK_DATA` or `SEEK_HOLE`)
pub const SEEK: u32 = 53;
/// (dir handle, flags, mode): an unnamed file (`O_TMPFILE`); result: a handle.
pub const TMPFILE: u32 = 54;
/// (handle in, offset in, handle out, offset out, len): `copy_file_range`, falling back to a copy; result: bytes.
pub const COPY_RANGE: u32 = 55;
/// (handle, events: `POLLIN`…, token): posts one [`EVENT_READY`] with this token once any of the events holds;
/// arming again replaces, events 0 disarms. `-EPERM` for files that are always ready.
pub const POLL_ARM: u32 = 56;
/// (handle, events): which of the events hold now, without waiting.
pub const POLL_NOW: u32 = 57;
/// (operation, argument, argument, argument, token): starts an operation that may take long on an I/O thread; its
/// [`EVENT_DONE`] carries the token. Operations: [`ASYNC_FSYNC`], ….
pub const SUBMIT: u32 = 58;
/// (rows, columns): of the terminal behind the streams; tells the host nothing else.
pub const TTY_WINSIZE: u32 = 59;
/// (dir handle, phys of names, their bytes, phys of [`HostStat`]s, count): [`STAT`] of so many components below a directory handle, at
/// most [`STAT_LIST_MAX`], each ended by NUL. `mode` is 0 for those of which the host tells nothing.
pub const STAT_LIST: u32 = 60;
/// Most components of one [`STAT_LIST`].
pub const STAT_LIST_MAX: u64 = 64;
/// (): a stream of `struct inotify_event`s (`inotify(7)`) that never waits, one in a sandbox; result: a handle. `-ENOSPC`: the host
/// has no instance more for its user.
pub const WATCH_OPEN: u32 = 61;
/// (handle of that stream, handle of a node, events: [`WATCH_EVENTS`], 0 or [`WATCH_EXCL_UNLINK`]): watches the node for these
/// events alone, whatever it was watched for before; result: the watch's descriptor, 1 or more. `-ENOSPC`: there are
/// [`WATCHES_MAX`]; `-EINVAL`: it is a stream or a socket.
pub const WATCH_ADD: u32 = 62;
/// (handle of that stream, descriptor)
pub const WATCH_REMOVE: u32 = 63;
/// `IN_ACCESS` to `IN_MOVE_SELF`.
pub const WATCH_EVENTS: u64 = 0xfff;
/// `IN_EXCL_UNLINK`.
pub const WATCH_EXCL_UNLINK: u64 = 0x0400_0000;
/// Most nodes that are watched at a time: all sandboxes of a user have a number of them in common
/// (`/proc/sys/fs/inotify/max_user_watches`).
pub const WATCHES_MAX: u64 = 4096;

/// (handle, first, last, kind: [`LOCK_SHARED`] …): locks the bytes from the first to the last one of a volume's file, or gives them
/// back, for the sandbox as one owner: the lock is that of the host's open file (`F_OFD_SETLK`) and goes with the handle. A last one of
/// [`LOCK_END`]: and all behind. Never waits: `-EAGAIN`, someone else has a lock there; what was locked before stays. `-EROFS`: an
/// exclusive lock, in a mount that is read-only. `-ENOLCK`: there are [`LOCKS_MAX`].
pub const LOCK_BYTES: u32 = 80;
/// (handle, first, last, kind, phys of [`HostLock`]): the lock that keeps [`LOCK_BYTES`] from locking, if there is one; result: 1 or 0.
pub const LOCK_QUERY: u32 = 81;
/// (handle, kind): as [`LOCK_BYTES`], by `flock(2)`. After `-EAGAIN` what was locked before is not any more.
pub const LOCK_WHOLE: u32 = 82;
/// (handle, absent handle): the file gets the number of a file that a former VMM had open, and which is absent under this one. `-EINVAL`:
/// that number is none of those.
pub const PLACE: u32 = 83;
/// (): nothing more is placed: numbers that are absent still are free from now on.
pub const PLACED: u32 = 84;
/// (family, type, token): a file in the place of one that had somebody outside at its other end, who is gone: a stream (family 0), or a
/// connection that has been reset. Result: a handle.
pub const LOST: u32 = 85;
/// (first frame number, count): the content of frames goes that [stayed](SwapOut::stays) in memory, since others get them. With a count of 0
/// nothing does. Result: [`KEEP_IMAGE`], [`KEEP_KNOWN`], or 0 once nobody wants it any more.
pub const KEEP: u32 = 86;
/// Result of [`KEEP`]: an image of what stayed is written, or is about to be.
pub const KEEP_IMAGE: u64 = 1;
/// Result of [`KEEP`]: an image has what stayed. Whatever of it is absent still when content stays again need not be listed: it is as that
/// image has it.
pub const KEEP_KNOWN: u64 = 2;
/// (region, phys, words): the frames in the bitmap there are of this region ([`CLASS_FILE`], [`CLASS_STORE`], [`CLASS_EXECUTABLE`]) in the image that
/// is taken next. `-ENODEV`: none is wanted.
pub const IMAGE_REGION: u32 = 87;
/// (handle of a regular file, offset): the image that is being taken keeps the file's content, from the offset on in its file of those.
/// Result: bytes. `-ENODEV`: there is no such image.
pub const KEEP_CONTENT: u32 = 30;
/// (handle of a regular file that is empty, offset, len): gives it the content that the image has kept there.
pub const PUT_CONTENT: u32 = 31;
/// No lock: what was locked is given back.
pub const LOCK_NONE: u64 = 0;
/// A lock for reading, which others may have as well.
pub const LOCK_SHARED: u64 = 1;
/// A lock for writing, beside which there is none.
pub const LOCK_EXCLUSIVE: u64 = 2;
/// The last byte of all.
pub const LOCK_END: u64 = i64::MAX.cast_unsigned();
/// Most pieces of files that a sandbox has locked on the host.
pub const LOCKS_MAX: u64 = 16_384;

/// `SUBMIT` operation: `fsync` (handle, data only, unused).
pub const ASYNC_FSYNC: u64 = 1;
/// `SUBMIT` operation: [`SWAP_IN`] with its arguments; the list stays where it is until the end. After an error what has come
/// is undefined.
pub const ASYNC_SWAP_IN: u64 = 2;
/// `SUBMIT` operation (handle, offset, length): has up to [`WARM_MAX_BYTES`] of a file in the host's page cache, if it keeps
/// them.
pub const ASYNC_WARM: u64 = 3;
/// Most bytes of one [`ASYNC_WARM`].
pub const WARM_MAX_BYTES: u64 = 1 << 20;

/// Something that happened on the host.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The event: [`EVENT_READY`] ….
    pub kind: u32,
    /// Flags as the kind of event says; 0 for most.
    pub flags: u32,
    /// The container, handle or call that the event is about.
    pub token: u64,
    /// The number that the event tells.
    pub value: i64,
}
pin_layout!(Event, 24, kind: 0, flags: 4, token: 8, value: 16);

/// Nothing, but [`EVENTS`] has something to give. Never reaches the kernel.
pub const EVENT_LOOK: u32 = 0;
/// A handle armed by [`POLL_ARM`], or a socket, is ready; `value`: the events that hold.
pub const EVENT_READY: u32 = 1;
/// A submitted operation ended; `value`: its result.
pub const EVENT_DONE: u32 = 2;
/// A signal (`value`: the number) for the first process of the container `token`, or with `flags` = 1 for the foreground
/// group of its console, or with `flags` = 2 for all its processes.
pub const EVENT_SIGNAL: u32 = 3;
/// The size of the console of the container `token` changed; `value`: rows << 16 | columns.
pub const EVENT_WINSIZE: u32 = 4;
/// The first process of the container `token`, held until now ([`crate::records::ProcessFlags::hold`]), begins.
pub const EVENT_START: u32 = 16;
/// Every task rests at the user boundary, until [`EVENT_RESUME`]. `value`: grows with each of the two; a smaller one is
/// out of date. With [`EVENT_FLAG_HELD`] no wake event ends it, should the sandbox be hibernated.
pub const EVENT_PAUSE: u32 = 17;
/// See [`EVENT_PAUSE`].
pub const EVENT_RESUME: u32 = 18;
/// User memory goes to its home, with everything paused as by [`EVENT_PAUSE`]. With `flags` = 1 only once every task waits
/// for something, so that none is left in the middle of its work; with 0 and the same `value` later it is to happen
/// wherever they are, unless it has happened. With [`EVENT_FLAG_HELD`] no wake event wakes it. Answered by [`HIBERNATED`], once, unless it is out of date when it is taken.
pub const EVENT_HIBERNATE: u32 = 19;
/// In the `flags` of [`EVENT_PAUSE`] and [`EVENT_HIBERNATE`]: only [`EVENT_RESUME`] and [`EVENT_WAKE`] end it.
pub const EVENT_FLAG_HELD: u32 = 2;
/// In the `flags` of [`EVENT_HIBERNATE`]: [`crate::report::Report::IdleTimeout`] is its reason. What has come since withdraws it: it is answered as one
/// that a later request overtook ([`HIBERNATE_CANCELLED`]).
pub const EVENT_FLAG_IDLE: u32 = 4;
/// In the `flags` of [`EVENT_HIBERNATE`]: content stays in memory ([`SwapOut::stays`]).
pub const EVENT_FLAG_STAYS: u32 = 16;
/// The working set comes back, and then everything goes on as with [`EVENT_RESUME`]. With `flags` = 1 for something
/// that has come for the sandbox: [`crate::report::Report::Idle`] tells when that is done with.
pub const EVENT_WAKE: u32 = 20;
/// A process is to come in from outside: `token`: its id, `value`: bytes that [`EXEC_TAKE`] needs at most. It is a wake
/// event: a later [`EVENT_HIBERNATE`] may overtake the [`EVENT_WAKE`] that the VMM sends with it.
pub const EVENT_EXEC: u32 = 21;
/// A signal (`value`) for the process that came in with the id `token`, or with `flags` = 1 for the foreground group of its
/// terminal. Only once it was reported to run.
pub const EVENT_EXEC_SIGNAL: u32 = 22;
/// The size of the terminal of the process that came in with the id `token` changed; `value`: rows << 16 | columns. Only once it
/// was reported to run.
pub const EVENT_EXEC_WINSIZE: u32 = 29;
/// Another container begins beside those there are. `token`: its id, which no container has; `value`: bytes that
/// [`CONTAINER_TAKE`] needs at most. It is a wake event like [`EVENT_EXEC`].
pub const EVENT_CREATE: u32 = 23;
/// A limit of the container `token` changes. `flags`: which one, and the request's number ([`crate::limits::event_flags`]);
/// `value`: the bits of its value. That of memory is answered by [`crate::report::Report::LimitAnswered`].
pub const EVENT_LIMIT: u32 = 24;
/// The processes of the container `token` are asked for. Answered by [`crate::report::Report::Processes`].
pub const EVENT_PROCESSES: u32 = 25;
/// The usage of resources of the container `token` is asked for. `value`: the request's number. Answered by
/// [`crate::report::Report::Usage`].
pub const EVENT_USAGE: u32 = 26;
/// With `flags` = 1 every task of the container `token` rests at the user boundary, and nothing is done about signals but
/// `SIGKILL`, until one with `flags` = 0. `value`: the request's number, which grows; a smaller one is out of date. A pause is
/// answered by [`crate::report::Report::ContainerPaused`]. A sandbox that is hibernated sleeps on when a pause comes; the end of one is
/// a wake event.
pub const EVENT_PAUSE_CONTAINER: u32 = 27;
/// Flag of an [`EVENT_PAUSE_CONTAINER`] that begins a pause: processes that come in by exec meanwhile, and theirs, run.
pub const EVENT_FLAG_LETS_IN: u32 = 2;
/// The memory of the sandbox, which is asleep, is to be taken ([`SNAPSHOT`]). `value`: the request's number. Answered by
/// [`crate::report::Report::NotTaken`], or by the call.
pub const EVENT_SNAPSHOT: u32 = 28;
/// Flag of an [`EVENT_SNAPSHOT`]: the next VMM will have none of this one's files, so that all must be there by name.
pub const EVENT_FLAG_IMAGE: u32 = 8;
/// Flag of an [`EVENT_SNAPSHOT`]: it is refused while there are connections, which the next VMM will not have.
pub const EVENT_FLAG_UNCONNECTED: u32 = 32;

/// An image whose pages were written while the sandbox ran is written, or nobody wants it any more ([`KEEP`]).
pub const EVENT_IMAGE_OVER: u32 = 30;

/// Readings of the host's clocks. Written by the VMM.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostClocks {
    /// `CLOCK_MONOTONIC`, in nanoseconds.
    pub monotonic_ns: u64,
    /// `CLOCK_REALTIME`, in nanoseconds since the epoch.
    pub realtime_ns: u64,
    /// `CLOCK_BOOTTIME`, in nanoseconds.
    pub boottime_ns: u64,
}
pin_layout!(HostClocks, 24, monotonic_ns: 0, realtime_ns: 8, boottime_ns: 16);
