//! How often a vCPU left the guest by KVM's own count (`KVM_GET_STATS_FD`), which includes what KVM handles itself.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::FileExt;

use kvm_ioctls::VcpuFd;

/// `_IO(KVMIO, 0xce)`
const KVM_GET_STATS_FD: libc::c_ulong = 0xaece;
/// Bytes of `struct kvm_stats_header`, and of `struct kvm_stats_desc` before its name.
const HEADER_BYTES: usize = 24;
const DESCRIPTOR_BYTES: usize = 16;
/// More than any KVM has.
const DESCRIPTORS_MAX: u32 = 1024;
const NAME_MAX: u32 = 256;

/// The counter `exits` of one vCPU.
#[derive(Debug)]
pub struct ExitCount {
    file: File,
    offset: u64,
}

impl ExitCount {
    /// `None` where KVM has no such counter (before Linux 5.14).
    pub fn of(vcpu: &VcpuFd) -> Option<Self> {
        // SAFETY: the request takes no argument and returns a descriptor.
        let fd = unsafe { libc::ioctl(vcpu.as_raw_fd(), KVM_GET_STATS_FD, 0) };
        let fd = RawFd::try_from(fd).ok().filter(|fd| *fd >= 0)?;
        // SAFETY: the call just returned this descriptor.
        let file = unsafe { File::from_raw_fd(fd) };
        let mut header = [0; HEADER_BYTES];
        file.read_exact_at(&mut header, 0).ok()?;
        let [_, name_size, count, _, descriptors, data] = words(&header)?;
        if name_size > NAME_MAX || count > DESCRIPTORS_MAX {
            return None;
        }
        let mut entry = vec![0; DESCRIPTOR_BYTES + usize::try_from(name_size).ok()?];
        for at in 0..u64::from(count) {
            let place = u64::from(descriptors) + at * entry.len() as u64;
            file.read_exact_at(&mut entry, place).ok()?;
            let (head, name) = entry.split_at_checked(DESCRIPTOR_BYTES)?;
            if name.split(|byte| *byte == 0).next() == Some(b"exits") {
                // flags, exponent and size, offset, bucket size
                let [_, _, offset, _] = words(head)?;
                return Some(Self { file, offset: u64::from(data) + u64::from(offset) });
            }
        }
        None
    }

    /// Exits so far.
    pub fn value(&self) -> u64 {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, self.offset).map_or(0, |()| u64::from_ne_bytes(bytes))
    }
}

fn words<const N: usize>(bytes: &[u8]) -> Option<[u32; N]> {
    let mut out = [0; N];
    let chunks = bytes.chunks_exact(4);
    for (word, chunk) in out.iter_mut().zip(chunks) {
        *word = u32::from_ne_bytes(chunk.try_into().ok()?);
    }
    Some(out)
}
