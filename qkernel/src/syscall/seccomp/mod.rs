//! `seccomp(2)`, and the options of `prctl(2)` that do the same.

pub mod entry;

use abi::seccomp::{
    ALLOW, ERRNO, INSTRUCTION_BYTES, Instruction, KILL_PROCESS, KILL_THREAD, LOG, PROGRAM_MAX, TRACE, TRAP,
};
use bitflags::bitflags;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;

use crate::creds::CAP_SYS_ADMIN;
use crate::seccomp::filter::NewFilter;
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use crate::task::seccomp::{Added, add, become_strict};

const SET_MODE_STRICT: u32 = 0;
const SET_MODE_FILTER: u32 = 1;
const GET_ACTION_AVAIL: u32 = 2;
/// The modes of `PR_SET_SECCOMP`.
const MODE_STRICT: u64 = 1;
const MODE_FILTER: u64 = 2;

bitflags! {
    /// `SECCOMP_FILTER_FLAG_*`. Those of listeners, which answer calls in the kernel's stead, are not known here.
    struct Flags: u32 {
        const TSYNC = 1;
        const LOG = 2;
        /// Speculation is the host's affair.
        const SPEC_ALLOW = 4;
        const TSYNC_ESRCH = 16;
    }
}

/// `seccomp(2)`.
pub(super) fn seccomp(cx: &Ctx<'_>, operation: u32, flags: u32, arg: UserAddr) -> SyscallResult {
    match operation {
        SET_MODE_STRICT if flags == 0 && arg.is_null() => become_strict(cx.task).map(|()| 0),
        SET_MODE_FILTER => set_filter(cx, Flags::from_bits(flags).ok_or(Errno::EINVAL)?, arg),
        GET_ACTION_AVAIL if flags == 0 => {
            let action: u32 = cx.user().read(arg)?;
            match action {
                KILL_PROCESS | KILL_THREAD | TRAP | ERRNO | TRACE | LOG | ALLOW => Ok(0),
                _ => Err(Errno::EOPNOTSUPP),
            }
        }
        _ => Err(Errno::EINVAL),
    }
}

/// `PR_SET_SECCOMP`.
pub(super) fn by_prctl(cx: &Ctx<'_>, mode: u64, filter: UserAddr) -> SyscallResult {
    match mode {
        MODE_STRICT => become_strict(cx.task).map(|()| 0),
        MODE_FILTER => set_filter(cx, Flags::empty(), filter),
        _ => Err(Errno::EINVAL),
    }
}

fn set_filter(cx: &Ctx<'_>, flags: Flags, program: UserAddr) -> SyscallResult {
    // `struct sock_fprog`: the number of instructions (16 bits), and where they are.
    let header: [u64; 2] = cx.user().read(program)?;
    let len = usize::from(abi::word::low16(header[0]));
    if len == 0 || len > PROGRAM_MAX {
        return Err(Errno::EINVAL);
    }
    if !cx.task.confinement.no_new_privs() && !cx.task.creds.get().has(CAP_SYS_ADMIN) {
        return Err(Errno::EACCES);
    }
    let code = read_program(cx, UserAddr::new(header[1]), len)?;
    let filter = NewFilter::new(code, flags.contains(Flags::LOG))?;
    match add(cx.task, filter, flags.contains(Flags::TSYNC))? {
        Added::Done => Ok(0),
        Added::Differs { .. } if flags.contains(Flags::TSYNC_ESRCH) => Err(Errno::ESRCH),
        Added::Differs { tid } => Ok(u64::from(tid)),
    }
}

fn read_program(cx: &Ctx<'_>, addr: UserAddr, len: usize) -> Result<alloc::vec::Vec<Instruction>> {
    let bytes: alloc::vec::Vec<[u8; INSTRUCTION_BYTES]> = cx.user().read_array(addr, len)?;
    Ok(bytes.into_iter().map(Instruction::from_bytes).collect())
}
