//! A request for a process or a container: its records, and the descriptors that came with them.

use std::os::fd::OwnedFd;

use abi::boot::{EXEC_RECORDS_MAX, MOUNT_READ_ONLY, MOUNT_VOLUME};
use abi::mount::Kind;
use abi::records::{Record, RecordError, Scope, decode};
use abi::report::ContainerId;

use crate::errno::Errno;
use crate::hostcall::host_io::HostIo;

/// Most views of the host's files that a further container may have.
pub const VIEWS_MAX: usize = 56;

/// See the module. Streams and views are numbered by their places among the descriptors.
#[derive(Debug)]
pub struct Request {
    records: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

impl Request {
    /// For a process, of [`abi::records`].
    pub fn for_process(records: Vec<u8>, descriptors: Vec<OwnedFd>) -> Result<Self, String> {
        Self::check(records, descriptors, Scope::Process)
    }

    /// For a container.
    pub fn for_container(records: Vec<u8>, descriptors: Vec<OwnedFd>) -> Result<Self, String> {
        let request = Self::check(records, descriptors, Scope::Container)?;
        let has_root = decode(&request.records).any(|record| matches!(record, Ok(Record::Mount(_))));
        if has_root { Ok(request) } else { Err("no root file system is named".into()) }
    }

    fn check(records: Vec<u8>, descriptors: Vec<OwnedFd>, most: Scope) -> Result<Self, String> {
        if u64::try_from(records.len()).map_or(true, |len| len > EXEC_RECORDS_MAX) {
            return Err(format!("its arguments and environment take more than {EXEC_RECORDS_MAX} bytes"));
        }
        let bad = |number| format!("record {number} of the request is malformed");
        let mut has_program = false;
        for record in decode(&records) {
            let mut record = record.map_err(|error| match error {
                RecordError::CutOff => "the request is cut off".into(),
                RecordError::Unknown { number } | RecordError::Malformed { number } => bad(number),
            })?;
            let number = record.number();
            let is_there = place(&mut record).is_none_or(|at| (*at as usize) < descriptors.len());
            // Overlays are made by VMMs alone.
            let has_lower = matches!(&record, Record::Mount(mount) if mount.files().is_some_and(|files| files.lower.is_some()));
            if record.scope() > most || !is_there || has_lower {
                return Err(bad(number));
            }
            has_program |= matches!(record, Record::Arg(_));
        }
        if has_program { Ok(Self { records, descriptors }) } else { Err("no program is named".into()) }
    }

    /// Sets the container in which the request's process is to run.
    #[must_use]
    pub fn within(mut self, container: ContainerId) -> Self {
        Record::Container(container.0).encode(&mut self.records);
        self
    }

    /// Bytes of its records.
    pub(crate) fn len(&self) -> i64 {
        i64::try_from(self.records.len()).unwrap_or(i64::MAX)
    }

    /// The records for the kernel, which gets the descriptors with them.
    pub(crate) fn give(self, io: &HostIo) -> Result<Vec<u8>, Errno> {
        let mut given = Vec::new();
        let out = self.with_handles(io, &mut given);
        if out.is_err() {
            given.into_iter().for_each(|handle| io.disown(handle));
        }
        out
    }

    /// The records with handles in the place of places; `given` gets the handles.
    fn with_handles(self, io: &HostIo, given: &mut Vec<u32>) -> Result<Vec<u8>, Errno> {
        let mut descriptors: Vec<Option<OwnedFd>> = self.descriptors.into_iter().map(Some).collect();
        let mut out = Vec::with_capacity(self.records.len());
        for record in decode(&self.records) {
            let mut record = record.map_err(|_| Errno(libc::EINVAL))?;
            if let Some(at) = place(&mut record).copied() {
                let fd = descriptors.get_mut(at as usize).and_then(Option::take);
                let handle = adopt(io, &record, fd.ok_or(Errno(libc::EBADF))?)?;
                given.push(handle);
                place(&mut record).into_iter().for_each(|place| *place = handle);
            }
            record.encode(&mut out);
        }
        Ok(out)
    }
}

/// The handle of a record that comes with a descriptor, in whose place a request has the descriptor's.
fn place<'a>(record: &'a mut Record<'_>) -> Option<&'a mut u32> {
    match record {
        Record::Stream(stream) => Some(&mut stream.handle),
        Record::Mount(mount) => match &mut mount.kind {
            Kind::Host(_, files) => Some(&mut files.root),
            Kind::Own(..) => None,
        },
        _ => None,
    }
}

/// Takes in the descriptor that came with a record.
fn adopt(io: &HostIo, record: &Record<'_>, fd: OwnedFd) -> Result<u32, Errno> {
    let Record::Mount(mount) = record else { return io.adopt_own_stream(fd) };
    if mount.has(MOUNT_VOLUME) {
        io.files().adopt_volume(fd, mount.has(MOUNT_READ_ONLY))
    } else if mount.has(MOUNT_READ_ONLY) {
        io.files().adopt_read_only_mount(fd)
    } else {
        io.files().adopt_mount(fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boot::{BootSpec, Mount, Stream};
    use abi::mount::{FileSystem, Handles, HostKind};

    fn directory() -> OwnedFd {
        std::fs::File::open("/").unwrap().into()
    }

    /// A root whose descriptor is at a place.
    fn root(place: u32) -> Mount {
        Mount::of_host(HostKind::Root, Handles { root: place, lower: None }, "/".into(), 0)
    }

    fn spec() -> BootSpec {
        let root = root(1);
        BootSpec {
            args: vec![b"sh".to_vec()],
            streams: vec![Stream { fd: 0, handle: 0, flags: 0 }],
            mounts: vec![root, Mount::of_kernel(FileSystem::Proc, "/proc".into(), 0)],
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
        let lower = root(1).map_files(|files| Handles { lower: Some(0), ..files });
        let overlay = BootSpec { mounts: vec![lower], ..spec() }.container_records();
        assert!(Request::for_container(overlay, descriptors()).unwrap_err().contains("record 34"));
        let rootless = BootSpec { mounts: Vec::new(), ..spec() }.container_records();
        assert!(Request::for_container(rootless, descriptors()).unwrap_err().contains("no root"));
        let request = Request::for_container(records.clone(), descriptors()).unwrap();
        let io = HostIo::new(std::sync::Arc::new(|_| {})).unwrap();
        let given = request.give(&io).unwrap();
        assert_eq!((given.len(), io.files().len()), (records.len(), 2));
        let handles = decode(&given).filter_map(|record| match record.unwrap() {
            Record::Mount(mount) => Some((mount.files().is_some(), mount.path)),
            _ => None,
        });
        assert_eq!(handles.collect::<Vec<_>>(), [(true, &b"/"[..]), (false, b"/proc")]);
    }

    #[test]
    fn a_descriptor_that_is_named_twice_is_refused_and_all_are_given_back() {
        let twice = BootSpec { mounts: vec![root(0)], ..spec() };
        let request = Request::for_container(twice.container_records(), descriptors()).unwrap();
        let io = HostIo::new(std::sync::Arc::new(|_| {})).unwrap();
        assert_eq!(request.give(&io).unwrap_err(), Errno(libc::EBADF));
        assert!(io.files().is_empty());
    }

    #[test]
    fn a_process_is_sent_to_its_container() {
        let records = BootSpec { mounts: Vec::new(), ..spec() }.process_records();
        let request = Request::for_process(records, descriptors()).unwrap().within(ContainerId(7));
        assert_eq!(decode(&request.records).last(), Some(Ok(Record::Container(7))));
    }
}
