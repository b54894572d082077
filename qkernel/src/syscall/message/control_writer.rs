//! Control data that messages are received with (`cmsg(3)`).

use abi::word::low32;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::fs::file::File;
use crate::net::SOL_SOCKET;
use crate::net::ancillary::SenderCreds;
use crate::syscall::message::{CMSG_BYTES, CmsgHdr, SCM_PIDFD, SCM_RIGHTS};
use crate::syscall::pidfd;
use crate::task::context::Ctx;
use machine::errno::Result;
use machine::mm::UserAddr;

/// Writes control messages to user memory.
pub(super) struct ControlWriter<'a> {
    pub(super) cx: &'a Ctx<'a>,
    pub(super) at: UserAddr,
    pub(super) left: u64,
    pub(super) used: u64,
    /// Something didn't fit.
    pub(super) cut: bool,
}

impl ControlWriter<'_> {
    /// Writes one control message, cut to the room there is.
    pub(super) fn put(&mut self, kind: u32, data: &[u8]) -> Result<()> {
        if self.at.is_null() || self.left < CMSG_BYTES as u64 {
            self.cut = true;
            return Ok(());
        }
        let room = usize::try_from(self.left).unwrap_or(usize::MAX) - CMSG_BYTES;
        self.cut |= room < data.len();
        let data = &data[..data.len().min(room)];
        let len = (CMSG_BYTES + data.len()) as u64;
        let header = CmsgHdr { len, level: SOL_SOCKET, kind };
        self.cx.user().write(self.at, &header)?;
        self.cx.user().write_bytes(self.at.offset(CMSG_BYTES as u64), data)?;
        let step = len.next_multiple_of(8).min(self.left);
        self.at = self.at.offset(step);
        self.left -= step;
        self.used += step;
        Ok(())
    }

    /// Opens the sender's process and reports the descriptor (`SCM_PIDFD`), or the error in its place.
    pub(super) fn put_pidfd(&mut self, sender: Option<SenderCreds>) -> Result<()> {
        if self.at.is_null() || self.left < (CMSG_BYTES + size_of::<i32>()) as u64 {
            self.cut = true;
            return Ok(());
        }
        let Some(sender) = sender else { return Ok(()) };
        let opened = pidfd::of_sender(self.cx, sender).and_then(|file| self.cx.install(file, true));
        let shown = opened.map_or_else(|error| -error.0, |fd| low32(fd).cast_signed());
        self.put(SCM_PIDFD, &shown.to_ne_bytes())
    }

    /// Writes whole control messages.
    pub(super) fn put_raw(&mut self, messages: &[u8]) -> Result<()> {
        let fit = messages.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.cut |= fit < messages.len();
        self.cx.user().write_bytes(self.at, &messages[..fit])?;
        self.at = self.at.offset(fit as u64);
        self.left -= fit as u64;
        self.used += fit as u64;
        Ok(())
    }

    /// Installs files and reports their descriptors; files that there is no room for are closed.
    pub(super) fn put_files(&mut self, files: Vec<Arc<File>>, close_on_exec: bool) -> Result<()> {
        if files.is_empty() {
            return Ok(());
        }
        let room = self.left.saturating_sub(CMSG_BYTES as u64) / 4;
        let room = if self.at.is_null() { 0 } else { usize::try_from(room).unwrap_or(usize::MAX) };
        let wanted = files.len();
        let mut fds: Vec<u8> = Vec::new();
        for file in files.into_iter().take(room) {
            let Ok(fd) = self.cx.install(file, close_on_exec) else { break };
            fds.extend_from_slice(&low32(fd).to_ne_bytes());
        }
        self.cut |= fds.len() / 4 < wanted;
        if fds.is_empty() { Ok(()) } else { self.put(SCM_RIGHTS, &fds) }
    }
}
