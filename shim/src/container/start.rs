//! The start of a container's first process.

use containerd_shim_protos::events::task::TaskStart;

use super::{Container, Stage, Surroundings};
use crate::events::Topic;
use crate::failure::{Failure, Result};

impl Container {
    /// Starts the first process; result: its pid.
    pub fn start(&self, around: &Surroundings) -> Result<u32> {
        let _change = self.change();
        {
            let mut processes = self.processes();
            processes.init.must_be(Stage::Created, "start")?;
            processes.init.stage = Stage::Starting;
        }
        let result = if self.has_hooks {
            self.command(&["start", self.sandbox.as_str()], &around.reaper)
        } else {
            runtime::container::start(&self.root, &self.sandbox).map(drop).map_err(|error| error.to_string())
        };
        let (pid, early) = {
            let mut processes = self.processes();
            processes.init.stage = if result.is_ok() { Stage::Running } else { Stage::Created };
            (processes.init.pid(), processes.init.early.take())
        };
        if result.is_ok() {
            let mut event = TaskStart::new();
            event.container_id.clone_from(&self.id);
            event.pid = pid;
            around.publisher.publish(Topic::Start, &event);
        }
        if let Some(status) = early {
            self.ended("", status, around);
        }
        result.map(|()| pid).map_err(|why| Failure::other(format!("OCI runtime start failed: {why}")))
    }
}
