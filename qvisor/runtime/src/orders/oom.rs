//! Word of processes that a sandbox's kernel killed for lack of memory, for whoever polls.

use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

use serde::Deserialize;
use vmm::process;

use crate::control::{self, OOM};
use crate::state::{Id, Root};

/// Reads of one look.
const READS_MAX: usize = 16;
/// Longest line in bytes; a sandbox that says a longer one is not listened to any more.
const LINE_MAX: usize = 1 << 20;

/// Such events of a sandbox, read as they come. Others, as of each wake, are not asked for: they would wake the reader as well.
#[derive(Debug)]
pub struct OomKills {
    stream: UnixStream,
    /// Bytes that are no whole line yet.
    text: Vec<u8>,
}

impl OomKills {
    /// `None`: the sandbox cannot be asked.
    #[must_use]
    pub fn of(root: &Root, id: &Id) -> Option<Self> {
        Some(Self { stream: control::events(&root.sandbox(id).ok()?, true).ok()?, text: Vec::new() })
    }

    /// Takes what has come. Result: whether a process was killed since the last look; `None`: the sandbox has ended.
    pub fn look(&mut self) -> Option<bool> {
        let (mut bytes, mut is_killed, mut is_over) = ([0; 4096], false, false);
        // A sandbox that never stops talking is heard again at the next look.
        for _ in 0..READS_MAX {
            let Some(got) = process::receive_now(&self.stream, &mut bytes) else { break };
            self.text.extend(bytes.iter().take(got));
            while let Some(end) = self.text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.text.drain(..=end).collect();
                is_killed |= is_oom(&line);
            }
            if got == 0 || self.text.len() > LINE_MAX {
                is_over = true;
                break;
            }
        }
        // What came before the end is told first.
        if is_over && !is_killed { None } else { Some(is_killed) }
    }
}

impl AsRawFd for OomKills {
    fn as_raw_fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }
}

fn is_oom(line: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Line {
        r#type: Option<String>,
    }
    serde_json::from_slice::<Line>(line).is_ok_and(|line| line.r#type.as_deref() == Some(OOM))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn kills_are_told_even_if_the_end_comes_with_them() {
        let (mut theirs, stream) = UnixStream::pair().unwrap();
        let mut kills = OomKills { stream, text: Vec::new() };
        assert_eq!(kills.look(), Some(false));
        theirs.write_all(b"{\"time_us\":1,\"to\":\"warm\"}\n{\"time_us\":2,\"type\":\"o").unwrap();
        assert_eq!(kills.look(), Some(false));
        theirs.write_all(b"om\"}\nnonsense\n").unwrap();
        assert_eq!(kills.look(), Some(true));
        assert_eq!(kills.look(), Some(false));
        theirs.write_all(b"{\"type\":\"oom\"}\n").unwrap();
        drop(theirs);
        assert_eq!(kills.look(), Some(true));
        assert_eq!(kills.look(), None);
    }
}
