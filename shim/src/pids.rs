//! The processes of a container, as the host numbers them: its leashes. Those inside have numbers of the sandbox's own.

use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{Message, MessageField};
use containerd_shim_protos::shim::oci::ProcessDetails;
use containerd_shim_protos::types::task::ProcessInfo;

use crate::container::Container;

/// The first process, and those that containerd has started beside it.
pub fn of(container: &Container) -> Vec<ProcessInfo> {
    let processes = container.processes();
    let init = (!processes.init.pid().eq(&0) && processes.init.end.is_none())
        .then(|| info(processes.init.pid(), None));
    let execs = processes.execs.iter().filter(|(_, process)| process.is_alive() && process.pid != 0);
    init.into_iter().chain(execs.map(|(id, process)| info(process.pid(), Some(id)))).collect()
}

fn info(pid: u32, exec: Option<&String>) -> ProcessInfo {
    let mut info = ProcessInfo::new();
    info.pid = pid;
    if let Some(exec) = exec {
        let mut details = ProcessDetails::new();
        details.exec_id.clone_from(exec);
        let value = details.write_to_bytes().unwrap_or_default();
        let type_url = "containerd.runc.v1.ProcessDetails".into();
        info.info = MessageField::some(Any { type_url, value, ..Any::default() });
    }
    info
}
