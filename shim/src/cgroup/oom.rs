//! Word of processes that were killed for lack of memory: by the host, when a group has none left, or by the sandbox's own
//! kernel, at the container's limit.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;

use runtime::cgroup::Groups;
use runtime::cgroup::files::Table;
use runtime::orders::OomKills;
use rustix::event::EventfdFlags;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

/// Watches one container.
#[derive(Debug)]
pub enum OomWatch {
    Group(GroupWatch),
    Guest(OomKills),
}

impl OomWatch {
    /// Readable when it is time to [`OomWatch::look`].
    #[must_use]
    pub fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Group(watch) => watch.notice.as_raw_fd(),
            Self::Guest(kills) => kills.as_raw_fd(),
        }
    }

    /// Whether a process was killed since the last look; `None`: there is nothing to watch any more.
    pub fn look(&mut self) -> Option<bool> {
        match self {
            Self::Group(watch) => watch.look(),
            Self::Guest(kills) => kills.look(),
        }
    }
}

/// Watches one group of the host's.
#[derive(Debug)]
pub struct GroupWatch {
    notice: OwnedFd,
    /// The file that has the number of processes which were killed.
    file: PathBuf,
    killed: u64,
}

impl GroupWatch {
    /// `None`: the host does not say.
    #[must_use]
    pub fn new(groups: &Groups) -> Option<Self> {
        let (notice, file) = match groups {
            Groups::None => return None,
            Groups::V1(groups) => {
                let group = groups.get("memory")?;
                let file = group.join("memory.oom_control");
                let notice =
                    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
                let control = std::fs::File::open(&file).ok()?;
                let order = format!("{} {}", notice.as_raw_fd(), control.as_raw_fd());
                std::fs::write(group.join("cgroup.event_control"), order).ok()?;
                (notice, file)
            }
            Groups::V2(group) => {
                let file = group.join("memory.events");
                let notice = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
                inotify::add_watch(&notice, &file, WatchFlags::MODIFY).ok()?;
                (notice, file)
            }
        };
        Some(Self { killed: killed(&file).unwrap_or(0), notice, file })
    }

    fn look(&mut self) -> Option<bool> {
        let mut notices = [0; 1024];
        while rustix::io::read(self.notice.as_fd(), &mut notices).is_ok_and(|got| got == notices.len()) {}
        let killed = killed(&self.file)?;
        let is_more = killed > self.killed;
        self.killed = killed;
        Some(is_more)
    }
}

fn killed(file: &std::path::Path) -> Option<u64> {
    Some(Table::read(&std::fs::read_to_string(file).ok()?).get("oom_kill"))
}
