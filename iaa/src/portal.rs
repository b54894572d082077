//! How descriptors reach a work queue.

#![allow(unsafe_code)]

use std::{arch::asm, fs::File, io, io::Write, os::fd::AsFd, ptr, sync::Arc};

use rustix::{
    io::Errno,
    mm::{MapFlags, ProtFlags, mmap, munmap},
};
use zerocopy::IntoBytes;

use crate::{layout::Descriptor, memory::Shared};

/// A work queue's answer to a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// The queue has it. The device may use the memory that it names until its record has a status.
    Accepted,
    /// The queue is full.
    Retry,
    /// The queue takes none, and will not.
    Refused,
}

/// A way to a work queue.
pub trait Portal {
    /// Hands a descriptor to the queue, once.
    fn submit(&self, descriptor: &Descriptor) -> Submitted;

    /// Called again and again by who has nothing to do until a job ends.
    fn wait(&self) {
        std::hint::spin_loop();
    }

    /// Tells of memory that descriptors will name. A device that shares the process's address space needs no telling.
    fn share(&self, _memory: &Shared) {}
}

impl<P: Portal + ?Sized> Portal for Arc<P> {
    fn submit(&self, descriptor: &Descriptor) -> Submitted {
        (**self).submit(descriptor)
    }

    fn wait(&self) {
        (**self).wait();
    }

    fn share(&self, memory: &Shared) {
        (**self).share(memory);
    }
}

/// A queue's device node that is written to: the kernel submits. It takes descriptors from the process that opened it alone,
/// and needs no right to map the queue, which Sapphire and Emerald Rapids give to CAP_SYS_RAWIO only (INTEL-SA-01084).
pub struct WritePortal {
    node: File,
}

impl WritePortal {
    /// Over a queue's node, opened for writing by this process.
    #[must_use]
    pub fn new(node: File) -> Self {
        Self { node }
    }
}

impl Portal for WritePortal {
    fn submit(&self, descriptor: &Descriptor) -> Submitted {
        loop {
            return match (&self.node).write(descriptor.as_bytes()) {
                Ok(written) if written == size_of::<Descriptor>() => Submitted::Accepted,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.raw_os_error() == Some(Errno::AGAIN.raw_os_error()) => Submitted::Retry,
                _ => Submitted::Refused,
            };
        }
    }
}

/// A queue's page, mapped into this process.
pub struct MappedPortal {
    page: *mut u8,
    is_shared: bool,
    /// How many more a dedicated queue has room for is its owner's to count: it drops what does not fit.
    _node: File,
}

// SAFETY: the page is the device's, and each submission is one instruction.
unsafe impl Send for MappedPortal {}
// SAFETY: as above; the device takes the submissions of any processors one after the other.
unsafe impl Sync for MappedPortal {}

const PAGE_BYTES: usize = 4096;

impl MappedPortal {
    /// Maps a queue's node. A *shared* queue says when it is full; of a *dedicated* one the driver's number of jobs in flight
    /// must not be more than its size.
    ///
    /// # Errors
    /// The kernel does not let it be mapped, or the processor lacks the instruction.
    pub fn new(node: File, is_shared: bool) -> io::Result<Self> {
        if !has_instruction(is_shared) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        // SAFETY: a new mapping, at a place that the kernel chooses, overlaps nothing.
        let page = unsafe {
            mmap(ptr::null_mut(), PAGE_BYTES, ProtFlags::WRITE, MapFlags::SHARED, node.as_fd(), 0)
        }?;
        Ok(Self { page: page.cast(), is_shared, _node: node })
    }
}

impl Drop for MappedPortal {
    fn drop(&mut self) {
        // SAFETY: it was mapped by `new`, and nobody else has its address.
        unsafe { _ = munmap(self.page.cast(), PAGE_BYTES) };
    }
}

/// Whether the processor has ENQCMD, for shared queues, or MOVDIR64B, for dedicated ones.
fn has_instruction(is_shared: bool) -> bool {
    let features = std::arch::x86_64::__cpuid_count(7, 0).ecx;
    features >> (if is_shared { 29 } else { 28 }) & 1 == 1
}

impl Portal for MappedPortal {
    fn submit(&self, descriptor: &Descriptor) -> Submitted {
        // Everything that the descriptor names is written before it is seen.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        if self.is_shared {
            let is_full: u8;
            // SAFETY: ENQCMD (F2 0F 38 F8 /r, here `enqcmd rax, [rdx]`) reads the descriptor's 64 bytes and writes to the page,
            // aligned to 64, which is mapped as long as `self` is; `new` saw that the processor has it.
            unsafe {
                asm!(".byte 0xf2, 0x0f, 0x38, 0xf8, 0x02", "setz {full}", full = out(reg_byte) is_full, in("rax") self.page,
                    in("rdx") descriptor, options(nostack));
            }
            return if is_full == 0 { Submitted::Accepted } else { Submitted::Retry };
        }
        // SAFETY: MOVDIR64B (66 0F 38 F8 /r, here `movdir64b rax, [rdx]`), otherwise as above.
        unsafe {
            asm!(".byte 0x66, 0x0f, 0x38, 0xf8, 0x02", in("rax") self.page, in("rdx") descriptor, options(nostack));
        }
        Submitted::Accepted
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Read, os::unix::net::UnixStream};

    use super::*;

    #[test]
    fn a_write_carries_the_bytes_of_a_descriptor() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let portal = WritePortal::new(File::from(std::os::fd::OwnedFd::from(ours)));
        let descriptor =
            Descriptor { flags: 0x4201_000c, completion: 0x1122, inputs: 7, ..Descriptor::default() };
        assert_eq!(portal.submit(&descriptor), Submitted::Accepted);
        let mut bytes = [0; 64];
        theirs.read_exact(&mut bytes).unwrap();
        assert_eq!((&bytes[4..10], bytes[60]), (&[0x0c, 0, 1, 0x42, 0x22, 0x11][..], 7));
    }

    #[test]
    fn a_full_queue_is_tried_again_and_a_closed_one_is_not() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let portal = WritePortal::new(File::from(std::os::fd::OwnedFd::from(ours)));
        let mut last = Submitted::Accepted;
        for _ in 0..100_000 {
            last = portal.submit(&Descriptor::default());
            if last != Submitted::Accepted {
                break;
            }
        }
        assert_eq!(last, Submitted::Retry);
        drop(theirs);
        let read_only = WritePortal::new(File::open("/dev/null").unwrap());
        assert_eq!(read_only.submit(&Descriptor::default()), Submitted::Refused);
    }

    #[test]
    fn what_is_no_queue_is_not_mapped() {
        assert!(MappedPortal::new(File::open("/dev/null").unwrap(), true).is_err());
        assert!(MappedPortal::new(File::open("/dev/null").unwrap(), false).is_err());
    }
}
