//! Users and groups of a root file system, by its `/etc/passwd` and `/etc/group`.

use std::os::fd::AsFd;
use std::path::Path;

use vmm::boot::Creds;
use vmm::mounts;

use super::error::{BundleError, Result};

/// See the module.
#[derive(Debug)]
pub struct Accounts {
    passwd: Vec<u8>,
    group: Vec<u8>,
}

/// The lines of a file, as fields.
fn lines(file: &[u8]) -> impl Iterator<Item = Vec<&[u8]>> {
    file.split(|byte| *byte == b'\n').map(|line| line.split(|byte| *byte == b':').collect())
}

fn id(field: Option<&&[u8]>) -> Option<u32> {
    std::str::from_utf8(field?).ok()?.parse().ok().filter(|id| *id != u32::MAX)
}

impl Accounts {
    /// Those of the root file system that is opened as `root`. Files that it does not have are empty.
    pub fn read(root: impl AsFd) -> Self {
        let read = |name| mounts::read_in_root(root.as_fd(), Path::new(name)).unwrap_or_default();
        Self { passwd: read("etc/passwd"), group: read("etc/group") }
    }

    /// The home directory of a user; `/` when it has none.
    #[must_use]
    pub fn home_of(&self, uid: u32) -> &[u8] {
        let home = lines(&self.passwd).find_map(|fields| {
            let home = *fields.get(5)?;
            (id(fields.get(2)) == Some(uid) && !home.is_empty() && !home.contains(&0)).then_some(home)
        });
        home.unwrap_or(b"/")
    }

    /// Gives a process the ids of a user, and the groups that have it as a member beside those it has.
    pub(super) fn log_in(&self, name: &str, creds: &mut Creds) -> Result<()> {
        let of_user = |fields: Vec<&[u8]>| {
            let ids = (id(fields.get(2))?, id(fields.get(3))?);
            (fields.first() == Some(&name.as_bytes())).then_some(ids)
        };
        let found = lines(&self.passwd).find_map(of_user);
        (creds.uid, creds.gid) = found.ok_or_else(|| {
            let why = "whom the root file system's /etc/passwd does not have";
            BundleError::invalid("process.user.username", name, why)
        })?;
        for fields in lines(&self.group) {
            let mut members = fields.get(3).map_or(&b""[..], |list| list).split(|byte| *byte == b',');
            if let Some(group) = id(fields.get(2)).filter(|_| members.any(|member| member == name.as_bytes()))
                && group != creds.gid
                && !creds.groups.contains(&group)
            {
                creds.groups.push(group);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &[u8] =
        b"root:x:0:0:root:/root:/bin/sh\nbad\nx:x:y:0::/bad:\nme:x:7:70::/home/me:\nno:x:8:8:::\n";

    #[test]
    fn homes_are_found() {
        let accounts = Accounts { passwd: PASSWD.to_vec(), group: Vec::new() };
        assert_eq!(accounts.home_of(0), b"/root");
        assert_eq!(accounts.home_of(7), b"/home/me");
        assert_eq!((accounts.home_of(8), accounts.home_of(9)), (&b"/"[..], &b"/"[..]));
        assert_eq!((Accounts { passwd: Vec::new(), group: Vec::new() }).home_of(0), b"/");
    }

    #[test]
    fn names_are_users_of_the_root_file_system() {
        let group = b"root:x:0:\nmine:x:70:me\nbad\nwheel:x:5:you,me\nother:x:6:you\nalso:x:9:me".to_vec();
        let accounts = Accounts { passwd: PASSWD.to_vec(), group };
        let mut creds = Creds { uid: 0, gid: 0, groups: vec![9, 11] };
        accounts.log_in("me", &mut creds).unwrap();
        assert_eq!((creds.uid, creds.gid, &creds.groups[..]), (7, 70, &[9, 11, 5][..]));
        for unknown in ["you", "x", "bad", ""] {
            assert!(accounts.log_in(unknown, &mut creds).is_err(), "{unknown}");
        }
    }
}
