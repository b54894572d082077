//! How a container, or a process in it, is forgotten.

use containerd_shim_protos::events::task::TaskDelete;
use containerd_shim_protos::protobuf::MessageField;
use containerd_shim_protos::shim::shim::DeleteResponse;

use super::process::End;
use super::{Container, Stage, Surroundings};
use crate::events::Topic;
use crate::failure::{Failure, Result};
use crate::log;
use crate::mounts;

/// Exit code of a container that was deleted before its start.
const KILLED: u32 = 128 + 9;

/// The process that was deleted, and how it had ended.
#[derive(Debug)]
pub struct Deleted {
    pid: u32,
    end: End,
}

impl Deleted {
    #[must_use]
    pub fn response(&self) -> DeleteResponse {
        let mut response = DeleteResponse::new();
        response.pid = self.pid;
        response.exit_status = self.end.status;
        response.exited_at = MessageField::some(self.end.at.clone());
        response
    }
}

impl Container {
    /// Removes what is left of the sandbox on the host.
    pub fn delete(&self, around: &Surroundings) -> Result<Deleted> {
        let _change = self.change();
        let console = {
            let processes = self.processes();
            if processes.init.is_alive() {
                processes.init.must_be(Stage::Stopped, "delete")?;
            }
            processes.init.console.clone()
        };
        if let Some(console) = console
            && !console.drain()
        {
            log::note(format_args!("failed to drain init process {} io", self.id));
        }
        let failed = |why: String| Failure::other(format!("failed to delete task: {why}"));
        // systemd is asked by children, as hooks are; see there.
        if self.has_hooks || self.dormouse.has_scopes() {
            self.command(&["delete", "--force", self.sandbox.as_str()], &around.reaper).map_err(failed)?;
        } else {
            runtime::container::delete(&self.root, &self.sandbox, true)
                .map_err(|error| failed(error.to_string()))?;
        }
        mounts::unmount_all(&self.rootfs)
            .map_err(|error| Failure::other(format!("failed rootfs umount: {error}")))?;
        let mut processes = self.processes();
        let end = processes.init.end.clone().unwrap_or_else(|| processes.init.finish(KILLED));
        Ok(Deleted { pid: processes.init.pid(), end })
    }

    /// Forgets an exec'd process.
    pub fn delete_exec(&self, exec: &str) -> Result<Deleted> {
        let console = {
            let mut processes = self.processes();
            let process = processes.find(exec)?;
            if process.is_alive() {
                process.must_be(Stage::Stopped, "delete")?;
            }
            process.console.clone()
        };
        if let Some(console) = console
            && !console.drain()
        {
            log::note(format_args!("failed to drain exec process {exec} io"));
        }
        let mut processes = self.processes();
        processes.specs.remove(exec);
        let missing = || Failure::not_found(format!("process does not exist {exec}: not found"));
        let mut process = processes.execs.remove(exec).ok_or_else(missing)?;
        let end = process.end.clone().unwrap_or_else(|| process.finish(0));
        Ok(Deleted { pid: process.pid(), end })
    }

    /// Tells that it was deleted.
    pub fn tell_deleted(&self, deleted: &Deleted, around: &Surroundings) {
        let mut event = TaskDelete::new();
        event.container_id.clone_from(&self.id);
        event.pid = deleted.pid;
        event.exit_status = deleted.end.status;
        event.exited_at = MessageField::some(deleted.end.at.clone());
        around.publisher.publish(Topic::Delete, &event);
    }
}
