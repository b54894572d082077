//! A request for a process or a container: its records, and the descriptors that came with them.

use std::os::fd::OwnedFd;

use abi::boot::{
    self, EXEC_RECORDS_MAX, MOUNT_READ_ONLY, MOUNT_VOLUME, TAG_ARG, TAG_CAPABILITIES, TAG_CONTAINER,
    TAG_CREDS, TAG_CWD, TAG_DOMAINNAME, TAG_ENV, TAG_FLAGS, TAG_HOSTNAME, TAG_ID_MAPS, TAG_IPC_SETTING,
    TAG_IPC_SPACE, TAG_LIMIT, TAG_MASKED, TAG_MOUNT, TAG_OOM_SCORE_ADJ, TAG_PID_SPACE, TAG_READ_ONLY,
    TAG_RLIMIT, TAG_SECCOMP, TAG_STREAM, TAG_UMASK, TAG_WINSIZE,
};
use abi::hostcall::NO_HANDLE;

use crate::boot::put;
use crate::errno::Errno;
use crate::hostcall::host_io::HostIo;

/// Most views of the host's files that a further container may have.
pub const VIEWS_MAX: usize = 56;

/// The records that a request for a process may have.
const OF_PROCESS: &[u32] = &[
    TAG_ARG,
    TAG_ENV,
    TAG_CWD,
    TAG_CREDS,
    TAG_CAPABILITIES,
    TAG_FLAGS,
    TAG_RLIMIT,
    TAG_SECCOMP,
    TAG_STREAM,
    TAG_UMASK,
    TAG_OOM_SCORE_ADJ,
    TAG_WINSIZE,
];
/// Those that a request for a container may have beside.
const OF_CONTAINER: &[u32] = &[
    TAG_HOSTNAME,
    TAG_DOMAINNAME,
    TAG_MOUNT,
    TAG_PID_SPACE,
    TAG_IPC_SPACE,
    TAG_IPC_SETTING,
    TAG_ID_MAPS,
    TAG_MASKED,
    TAG_READ_ONLY,
    TAG_LIMIT,
];

/// See the module. Streams and views are numbered by their places among the descriptors.
#[derive(Debug)]
pub struct Request {
    records: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

impl Request {
    /// For a process, of records as [`boot::records`] reads them.
    pub fn for_process(records: Vec<u8>, descriptors: Vec<OwnedFd>) -> Result<Self, String> {
        Self::check(records, descriptors, &|tag| OF_PROCESS.contains(&tag))
    }

    /// For a container.
    pub fn for_container(records: Vec<u8>, descriptors: Vec<OwnedFd>) -> Result<Self, String> {
        let request = Self::check(records, descriptors, &|tag| {
            OF_PROCESS.contains(&tag) || OF_CONTAINER.contains(&tag)
        })?;
        let has_root = boot::records(&request.records).any(|record| record.tag == TAG_MOUNT);
        if has_root { Ok(request) } else { Err("no root file system is named".into()) }
    }

    fn check(
        records: Vec<u8>,
        descriptors: Vec<OwnedFd>,
        is_known: &dyn Fn(u32) -> bool,
    ) -> Result<Self, String> {
        if u64::try_from(records.len()).map_or(true, |len| len > EXEC_RECORDS_MAX) {
            return Err(format!("its arguments and environment take more than {EXEC_RECORDS_MAX} bytes"));
        }
        let mut len = 0;
        for record in boot::records(&records) {
            len += 8 + record.data.len();
            let is_there = |at: usize| at < descriptors.len();
            let is_good = match record.tag {
                TAG_STREAM => place_of_stream(record.data).is_some_and(is_there),
                TAG_MOUNT => place_of_view(record.data).is_some_and(|at| at.is_none_or(is_there)),
                _ => true,
            };
            if !is_good || !is_known(record.tag) {
                return Err(format!("record {} of the request is malformed", record.tag));
            }
        }
        if len != records.len() {
            return Err("the request is cut off".into());
        }
        if !boot::records(&records).any(|record| record.tag == TAG_ARG) {
            return Err("no program is named".into());
        }
        Ok(Self { records, descriptors })
    }

    /// Sets the container in which the request's process is to run.
    #[must_use]
    pub fn within(mut self, container: u64) -> Self {
        put(&mut self.records, TAG_CONTAINER, &[&container.to_le_bytes()]);
        self
    }

    /// Bytes of its records.
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// The records for the kernel, which gets the descriptors with them.
    pub(super) fn give(self, io: &HostIo) -> Result<Vec<u8>, Errno> {
        let mut descriptors: Vec<Option<OwnedFd>> = self.descriptors.into_iter().map(Some).collect();
        let mut given = Vec::new();
        let out = replace_places(&self.records, |tag, at, flags| {
            let fd = descriptors.get_mut(at).and_then(Option::take).ok_or(Errno(libc::EBADF))?;
            let handle = match tag {
                TAG_STREAM => io.adopt_own_stream(fd)?,
                _ if flags & MOUNT_VOLUME != 0 => {
                    io.files().adopt_volume(fd, flags & MOUNT_READ_ONLY != 0)?
                }
                _ if flags & MOUNT_READ_ONLY != 0 => io.files().adopt_read_only_mount(fd)?,
                _ => io.files().adopt_mount(fd)?,
            };
            given.push(handle);
            Ok(handle)
        });
        if out.is_err() {
            given.into_iter().for_each(|handle| io.disown(handle));
        }
        out
    }
}

/// The records with handles in the place of places, which `handle` gives for a tag, a place and a mount's flags.
fn replace_places(
    records: &[u8],
    mut handle: impl FnMut(u32, usize, u32) -> Result<u32, Errno>,
) -> Result<Vec<u8>, Errno> {
    let mut out = Vec::with_capacity(records.len());
    for record in boot::records(records) {
        let data = record.data;
        match record.tag {
            TAG_STREAM => {
                let at = place_of_stream(data).ok_or(Errno(libc::EINVAL))?;
                let handle = handle(TAG_STREAM, at, 0)?.to_le_bytes();
                put(&mut out, TAG_STREAM, &[slice(data, 0, 4), &handle, slice(data, 8, 12)]);
            }
            TAG_MOUNT if place_of_view(data) != Some(None) => {
                let at = place_of_view(data).flatten().ok_or(Errno(libc::EINVAL))?;
                let handle = handle(TAG_MOUNT, at, word(data, 4).unwrap_or(0))?.to_le_bytes();
                put(&mut out, TAG_MOUNT, &[&handle, slice(data, 4, data.len())]);
            }
            tag => put(&mut out, tag, &[data]),
        }
    }
    Ok(out)
}

fn slice(data: &[u8], from: usize, to: usize) -> &[u8] {
    data.get(from..to).unwrap_or_default()
}

fn word(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*data.get(at..)?.first_chunk()?))
}

/// The place of a stream (descriptor, place, flags).
fn place_of_stream(data: &[u8]) -> Option<usize> {
    word(data, 8)?;
    usize::try_from(word(data, 4)?).ok()
}

/// The place of a mount (place, flags, words); `Some(None)`: the kernel makes that file system itself.
fn place_of_view(data: &[u8]) -> Option<Option<usize>> {
    word(data, 4)?;
    match word(data, 0)? {
        NO_HANDLE => Some(None),
        at => Some(Some(usize::try_from(at).ok()?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boot::{BootSpec, Mount, Stream};

    fn directory() -> OwnedFd {
        std::fs::File::open("/").unwrap().into()
    }

    fn spec() -> BootSpec {
        let root = Mount { handle: 1, path: b"/".to_vec(), ..Mount::default() };
        BootSpec {
            args: vec![b"sh".to_vec()],
            streams: vec![Stream { fd: 0, handle: 0, flags: 0 }],
            mounts: vec![root, Mount::of_kernel("proc", b"/proc".to_vec(), 0)],
            ..BootSpec::default()
        }
    }

    fn descriptors() -> Vec<OwnedFd> {
        vec![std::fs::File::open("/dev/null").unwrap().into(), directory()]
    }

    #[test]
    fn a_container_has_a_root_and_its_views_come_with_it() {
        let records = spec().container_records();
        assert!(Request::for_process(records.clone(), descriptors()).unwrap_err().contains("malformed"));
        let one = descriptors().into_iter().take(1).collect();
        assert!(Request::for_container(records.clone(), one).unwrap_err().contains("malformed"));
        let rootless = BootSpec { mounts: Vec::new(), ..spec() }.container_records();
        assert!(Request::for_container(rootless, descriptors()).unwrap_err().contains("no root"));
        let request = Request::for_container(records.clone(), descriptors()).unwrap();
        let io = HostIo::new(std::sync::Arc::new(|_| {})).unwrap();
        let given = request.give(&io).unwrap();
        assert_eq!((given.len(), io.files().len()), (records.len(), 2));
        let mounts: Vec<_> = boot::records(&given).filter(|record| record.tag == TAG_MOUNT).collect();
        assert!(word(mounts[0].data, 0).is_some_and(|handle| handle != NO_HANDLE));
        assert_eq!(word(mounts[1].data, 0), Some(NO_HANDLE));
    }

    #[test]
    fn a_descriptor_that_is_named_twice_is_refused_and_all_are_given_back() {
        let twice =
            BootSpec { mounts: vec![Mount { handle: 0, path: b"/".to_vec(), ..Mount::default() }], ..spec() };
        let request = Request::for_container(twice.container_records(), descriptors()).unwrap();
        let io = HostIo::new(std::sync::Arc::new(|_| {})).unwrap();
        assert_eq!(request.give(&io).unwrap_err(), Errno(libc::EBADF));
        assert!(io.files().is_empty());
    }

    #[test]
    fn a_process_is_sent_to_its_container() {
        let records = BootSpec { mounts: Vec::new(), ..spec() }.process_records();
        let request = Request::for_process(records, descriptors()).unwrap().within(7);
        let last = boot::records(&request.records).last().unwrap();
        assert_eq!((last.tag, last.data), (TAG_CONTAINER, &7_u64.to_le_bytes()[..]));
    }
}
