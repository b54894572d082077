//! Programs that the shim starts.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use vmm::process;

/// The first number of descriptors that a program gets beside its streams.
const FIRST: RawFd = 3;
/// Numbers that no such descriptor is put at.
const ABOVE: RawFd = 64;

/// Has the program end with the thread that starts it, so that nothing it does comes after the shim's end.
pub fn tie(command: &mut Command) {
    let shim = process::id();
    // SAFETY: the closure makes two system calls, which may be made between fork and exec.
    unsafe {
        command.pre_exec(move || {
            if process::die_with_parent(shim) { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
        });
    }
}

/// Gives the program descriptors, numbered from 3.
pub fn give(command: &mut Command, descriptors: Vec<OwnedFd>) {
    // SAFETY: the closure makes system calls alone. The numbers it takes over are the program's own: in the shim the
    // signals', the listener's and the log's descriptors lie there for good, so none of them is the pipe by which the
    // parent learns of a failure.
    unsafe {
        command.pre_exec(move || {
            let mut high = [-1; 8];
            for (descriptor, place) in descriptors.iter().zip(&mut high) {
                *place = libc::fcntl(descriptor.as_raw_fd(), libc::F_DUPFD_CLOEXEC, ABOVE);
            }
            for (number, from) in (FIRST..).zip(high.iter().take(descriptors.len())) {
                if libc::dup2(*from, number) < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
}
