//! The ends of processes. That of the first one is told last.

use containerd_shim_protos::events::task::TaskExit;
use containerd_shim_protos::protobuf::MessageField;
use vmm::process::exit_code;

use super::{Container, Process, Stage, Surroundings};
use crate::events::Topic;

impl Container {
    /// A leash has ended with this wait status.
    pub fn ended(&self, exec: &str, status: i32, around: &Surroundings) {
        {
            let mut processes = self.processes();
            let Ok(process) = processes.find(exec) else { return };
            match process.stage {
                Stage::Starting => {
                    process.early = Some(status);
                    return;
                }
                Stage::Stopped => return,
                Stage::Created | Stage::Running if exec.is_empty() => processes.held_end = Some(status),
                Stage::Created | Stage::Running => {
                    let pid = process.pid();
                    self.tell(exec, process, pid, status, around);
                }
            }
        }
        self.let_go(around);
    }

    /// Tells the end of the first process, if it has ended and no other one is left.
    pub(super) fn let_go(&self, around: &Surroundings) {
        let mut processes = self.processes();
        let Some(status) = processes.held_end else { return };
        let mut is_last = true;
        for process in processes.execs.values().filter(|process| process.is_alive()) {
            // The sandbox is gone; a leash that lives on is on its way.
            process.signal(libc::SIGKILL);
            is_last = false;
        }
        if is_last {
            processes.held_end = None;
            let pid = processes.init.pid();
            self.tell(&self.id, &mut processes.init, pid, status, around);
        }
    }

    fn tell(&self, id: &str, process: &mut Process, pid: u32, status: i32, around: &Surroundings) {
        let end = process.finish(exit_code(status).into());
        let mut event = TaskExit::new();
        event.container_id.clone_from(&self.id);
        id.clone_into(&mut event.id);
        event.pid = pid;
        event.exit_status = end.status;
        event.exited_at = MessageField::some(end.at);
        around.publisher.publish(Topic::Exit, &event);
    }
}
