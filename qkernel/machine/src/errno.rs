//! `errno(3)` values without allocation.

use linux_raw_sys::errno as raw;

/// The kernel's result type.
pub type Result<T> = core::result::Result<T, Errno>;

/// A Linux error number (positive).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident)*) => {
        #[allow(missing_docs, clippy::cast_possible_wrap)]
        impl Errno { $(pub const $name: Errno = Errno(raw::$name as i32);)* }
        impl core::fmt::Debug for Errno {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match *self { $(Errno::$name => f.write_str(stringify!($name)),)* Errno(n) => write!(f, "errno {n}") }
            }
        }
    };
}

errnos! {
    EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT ENOTBLK EBUSY EEXIST
    EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE EROFS EMLINK EPIPE EDOM
    ERANGE EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY ELOOP ENODATA ETIME EOVERFLOW EILSEQ EUSERS ENOTSOCK
    EDESTADDRREQ EMSGSIZE EPROTOTYPE ENOPROTOOPT EPROTONOSUPPORT ESOCKTNOSUPPORT EOPNOTSUPP EPFNOSUPPORT
    EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL ENETDOWN ENETUNREACH ENETRESET ECONNABORTED ECONNRESET ENOBUFS EISCONN
    ENOTCONN ESHUTDOWN ETOOMANYREFS ETIMEDOUT ECONNREFUSED EHOSTDOWN EHOSTUNREACH EALREADY EINPROGRESS ESTALE
    EDQUOT ENOPKG ECANCELED ENOKEY EKEYEXPIRED EKEYREVOKED EOWNERDEAD ENOTRECOVERABLE EIDRM ENOMSG
}

impl Errno {
    /// Kernel-internal: the call was interrupted by a signal; it restarts if the handler has `SA_RESTART`,
    /// otherwise it returns `EINTR` (Linux's `ERESTARTSYS`).
    pub const RESTART: Errno = Errno(512);
    /// Kernel-internal: restarts after the handler, whatever its flags (Linux's `ERESTARTNOINTR`).
    pub const RESTART_ALWAYS: Errno = Errno(513);
    /// Kernel-internal: restarts unless a handler runs, then `EINTR` (Linux's `ERESTARTNOHAND`).
    pub const RESTART_NOHAND: Errno = Errno(514);
    /// Kernel-internal: like `RESTART_NOHAND`, but a restart goes on with the time that is left
    /// (Linux's `ERESTART_RESTARTBLOCK`); the task holds what `restart_syscall(2)` needs.
    pub const RESTART_BLOCK: Errno = Errno(516);
    /// `EAGAIN` under its other name.
    pub const EWOULDBLOCK: Errno = Errno::EAGAIN;
    /// `EOPNOTSUPP` under its other name.
    pub const ENOTSUP: Errno = Errno::EOPNOTSUPP;

    /// Turns a hostcall's result into a value or an error.
    pub fn check(result: i64) -> Result<u64> {
        u64::try_from(result).map_err(|_| Errno(i32::try_from(-result).unwrap_or(Errno::EIO.0)))
    }
}
