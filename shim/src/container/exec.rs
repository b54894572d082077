//! Further processes in a container.

use containerd_shim_protos::events::task::{TaskExecAdded, TaskExecStarted};
use containerd_shim_protos::shim::shim::ExecProcessRequest;
use containerd_shim_protos::ttrpc::Code;
use serde_json::Value;

use super::create::Begun;
use super::{Container, Process, Stage, Surroundings};
use crate::events::Topic;
use crate::failure::{Failure, Result};
use crate::reaper::Owner;
use crate::streams::Names;

impl Container {
    /// Adds a process, which is started later.
    pub fn add(&self, request: &ExecProcessRequest, around: &Surroundings) -> Result<()> {
        let _change = self.change();
        let mut spec: Value = serde_json::from_slice(&request.spec.value)
            .map_err(|error| Failure::invalid(format!("cannot read the process to run: {error}")))?;
        let Some(members) = spec.as_object_mut() else {
            return Err(Failure::invalid("cannot read the process to run: it is no object"));
        };
        members.insert("terminal".into(), request.terminal.into());
        let mut processes = self.processes();
        if request.exec_id.is_empty() {
            return Err(Failure::invalid("cannot run a process without an ID"));
        }
        if processes.execs.contains_key(&request.exec_id) {
            return Err(Failure::new(
                Code::ALREADY_EXISTS,
                format!("id {}: already exists", request.exec_id),
            ));
        }
        if processes.is_paused {
            return Err(Failure::precondition("cannot exec in a paused state"));
        }
        if processes.init.stage == Stage::Stopped {
            return Err(Failure::precondition("cannot exec in a stopped state"));
        }
        let names = Names {
            stdin: request.stdin.clone(),
            stdout: request.stdout.clone(),
            stderr: request.stderr.clone(),
            terminal: request.terminal,
        };
        processes.execs.insert(request.exec_id.clone(), Process::new(names));
        processes.specs.insert(request.exec_id.clone(), spec.to_string().into_bytes());
        drop(processes);
        let mut event = TaskExecAdded::new();
        event.container_id.clone_from(&self.id);
        event.exec_id.clone_from(&request.exec_id);
        around.publisher.publish(Topic::ExecAdded, &event);
        Ok(())
    }

    /// Starts a process that was added; result: its pid.
    pub fn start_exec(&self, exec: &str, around: &Surroundings) -> Result<u32> {
        let (names, spec) = {
            let mut processes = self.processes();
            if processes.init.stage != Stage::Running || processes.held_end.is_some() {
                let why = format!("container {} init process is not running", self.id);
                return Err(Failure::precondition(why));
            }
            let process = processes.find(exec)?;
            process.must_be(Stage::Created, "start")?;
            process.stage = Stage::Starting;
            let names = process.names.clone();
            (names, processes.specs.remove(exec).unwrap_or_default())
        };
        let result = self.begin(exec, names, &spec, around);
        let early = {
            let mut processes = self.processes();
            let process = processes.find(exec)?;
            if result.is_ok() {
                process.stage = Stage::Running;
            } else {
                // As a process that could not be run: nobody waits for it in vain.
                process.finish(255);
            }
            process.early.take()
        };
        if let Ok(pid) = result {
            let mut event = TaskExecStarted::new();
            event.container_id.clone_from(&self.id);
            exec.clone_into(&mut event.exec_id);
            event.pid = pid;
            around.publisher.publish(Topic::ExecStarted, &event);
        }
        if let Some(status) = early {
            self.ended(exec, status, around);
        }
        self.let_go(around);
        result
    }

    fn begin(&self, exec: &str, names: Names, spec: &[u8], around: &Surroundings) -> Result<u32> {
        let name = self.file("exec");
        let (file, pid_file) = (self.bundle.join(format!("{name}.json")), format!("{name}.pid"));
        let failed = |why: String| Failure::other(format!("OCI runtime exec failed: {why}"));
        std::fs::write(&file, spec).map_err(|error| failed(error.to_string()))?;
        // Who gives it neither input nor a terminal, as kubelet's probes do, may only want its exit code.
        let probe = (names.stdin.is_empty() && !names.terminal).then_some("--probe");
        let words = ["exec", "--detach"].into_iter().chain(probe).chain(["--process"]).map(Into::into);
        let pid_path = self.bundle.join(&pid_file);
        let rest = [file.clone().into(), "--pid-file".into(), pid_path.clone().into()];
        let arguments = words.chain(rest).collect();
        let expectation = around.reaper.expect();
        let begun = Begun::new(around, &self.id, names, &self.bundle, &name);
        let ready =
            begun.and_then(|begun| begun.run(around, &self.dormouse, arguments, self.sandbox.as_str()));
        let result = ready.and_then(|ready| {
            // Held until the process is complete, so that whoever closes its input finds it.
            let mut processes = self.processes();
            let process = processes.find(exec)?;
            ready.settle(process, &pid_file).inspect_err(|_| process.signal(libc::SIGKILL))?;
            let owner = Owner { container: self.id.clone(), exec: exec.to_owned() };
            process.early = expectation.claim(process.pid, owner);
            Ok(process.pid())
        });
        let _ = (std::fs::remove_file(&file), std::fs::remove_file(&pid_path));
        result
    }
}
