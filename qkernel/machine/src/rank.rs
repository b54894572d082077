//! The order of the kernel's locks. A task takes them from lower to higher ranks only, so no two can wait for each other.

/// A lock's place in the order, from outer to inner. Who holds a lock takes only such as stand below it. First come the
/// mutexes, then the spin locks, so whoever holds a spin lock takes no mutex.
///
/// Builds with the feature `checks` end the sandbox when a task takes a lock against the order, or sleeps with a spin
/// lock held (`crate::lock_order`). An attempt (`try_lock`) cannot wait, so any order will do for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Rank {
    // Mutexes.
    /// A pass of the collector of sockets that only messages hold. Held while what it has found is closed.
    Collection,
    /// Mounts that move or go, one at a time.
    MountMoves,
    /// Work on two pipes at once.
    TwoPipes,
    /// A pipe's content. Held while it is filled from a file, or read into one. Of two the outer one is read.
    Pipe,
    /// The text of an open file of `/proc` or `/sys`. Held while it is made, which looks at everything.
    Text,
    /// The keys of a container.
    Keys,
    /// The host begins to watch a file.
    Feeding,
    /// Which epoll sets watch each other.
    EpollNesting,
    /// The items of an epoll set. Of two sets the outer one watches the inner one.
    Epoll,
    /// One rename at a time.
    Renames,
    /// The names in a directory. Of two directories the one with the lower address comes first.
    Directory,
    /// An open file's position.
    Position,
    /// A file's content.
    Inode,
    /// A socket's received messages.
    Inbox,
    /// The seals of a memfd.
    Seals,
    /// Whether a memory file may be mapped to be written.
    Sealing,
    /// An address space. Of two, as in `fork(2)`, the outer one is the parent's.
    AddressSpace,
    /// The queue of operations for an address space's stub.
    Mirror,

    // Spin locks of the kernel proper.
    /// The state of the hibernation.
    Hibernation,
    /// Input from the host's terminal.
    ConsoleInput,
    /// Output to it.
    ConsoleOutput,
    /// The line discipline of a terminal.
    Terminal,
    /// Waiters for futexes of one hash. Of two hashes the lower one comes first.
    Futex,
    /// All processes, with their groups and sessions.
    ProcessTree,
    /// The timers of a process.
    ProcessTimers,
    /// The resource limits of a process.
    Limits,
    /// Pending signals of a process: the signal lock.
    Signals,
    /// The process that was killed for its memory.
    OomVictim,
    /// The tasks of a process.
    Tasks,
    /// Pending signals of a task, and its mask.
    TaskSignals,
    /// How far a process is stopped.
    Stop,
    /// The descriptors of a process.
    FileTable,
    /// The tree of mounts.
    Mounts,
    /// The System V objects of one kind, or the names of message queues.
    Ipc,
    /// The host's events of watched files. Held while they are read and told.
    Feed,
    /// Who watches which file.
    Watches,
    /// The locks of a file that the host holds for the sandbox. Held while the host is asked for them, which takes no
    /// time.
    HostLocks,
    /// The state of one thing. Inside, only values as below and locks of the machine are taken.
    Leaf,
    /// A value that is replaced as a whole ([`crate::spin::Shared`]). Nothing is taken inside.
    Value,

    // Spin locks of the machine.
    /// Operations that the host carries out by itself.
    InFlight,
    /// The clock page that programs see.
    ClockPage,
    /// Which chunks of the file window show a host file.
    FileChunks,
    /// The chunks of the file window.
    Window,
    /// Which address spaces map an object.
    Mappers,
    /// All address spaces.
    Spaces,
    /// All page stores.
    PageStores,
    /// The frames of a page store.
    Pages,
    /// Which frames' content comes back.
    Claims,
    /// The working set: what is touched, pinned and hidden of it.
    WorkingSet,
    /// The kernel's clock.
    Clock,
    /// The generator of random numbers.
    Random,
    /// A wait queue. Of two, the inner one is an epoll set's that watches what the outer one belongs to.
    WaitQueue,
    /// The items of an epoll set that are ready.
    EpollReady,
    /// Files with signals to send.
    NoticesDue,
    /// The link of one of them to the next.
    NoticeLink,
    /// The timers of a CPU.
    Timers,
    /// Tasks that wait for a CPU.
    RunQueue,
    /// The memory that a thread sees.
    ThreadMemory,
    /// The task that a CPU runs.
    CpuTask,
    /// Kernel stacks of tasks that have ended.
    Stacks,
    /// The rows of the handles.
    Objects,
    /// The frame allocator.
    Frames,
    /// The kernel's heap.
    Heap,
}

impl Rank {
    /// How many there are.
    pub const COUNT: usize = Self::Heap as usize + 1;
}
