//! The verdict, remembered until the next boot.

use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::report::KvmReport;
use crate::directory::Directory;

/// Changes with the measurement and with the rules by which it is judged.
const VERSION: u32 = 1;
/// Far more than a report has.
const MAX_BYTES: u64 = 16 << 10;

#[derive(Serialize, Deserialize)]
struct CachedReport {
    version: u32,
    boot_id: String,
    report: KvmReport,
}

fn boot_id() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

/// This boot's report, if a file holds one that only root or this user can have written.
pub fn load(path: &Path) -> Option<KvmReport> {
    let file =
        File::options().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path).ok()?;
    let metadata = file.metadata().ok()?;
    // SAFETY: no preconditions.
    let user = unsafe { libc::geteuid() };
    let trusted = metadata.is_file()
        && (metadata.uid() == 0 || metadata.uid() == user)
        && metadata.mode() & 0o022 == 0
        && metadata.len() <= MAX_BYTES;
    if !trusted {
        return None;
    }
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    let cached: CachedReport = serde_json::from_str(&text).ok()?;
    (cached.version == VERSION && cached.boot_id == boot_id()?).then_some(cached.report)
}

/// Keeps the report; does nothing where this user may not write the directory.
pub fn store(path: &Path, report: &KvmReport) {
    let Some(boot_id) = boot_id() else { return };
    let Some(directory) = path.parent() else { return };
    // It may be the state root as well, which others than its owner must not be able to write.
    if Directory::make(directory).is_err() {
        return;
    }
    let cached = CachedReport { version: VERSION, boot_id, report: report.clone() };
    let Ok(text) = serde_json::to_vec(&cached) else { return };
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    let written = File::options()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(&temporary)
        .and_then(|mut file| file.write_all(&text))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_report_is_kept_for_one_boot_and_only_from_a_trusted_file() {
        let directory = std::env::temp_dir().join(format!("kvm-probe-test-{}", std::process::id()));
        let path = directory.join("probe.json");
        let report = KvmReport::new(true, Verdict::Interpreted);
        store(&path, &report);
        assert_eq!(load(&path), Some(report));
        assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o7777, 0o700);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace(&boot_id().unwrap(), "another boot")).unwrap();
        assert_eq!(load(&path), None);
        fs::write(&path, &text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(load(&path), None);
        fs::remove_dir_all(&directory).unwrap();
    }
}
