//! All that the kernel learns from the host or is told by the VMM, beside what the first container is made of.
//!
//! Nothing else keeps such facts: under another VMM this sets them anew. Where that one has the former one's files, what it does not say
//! stays: the network is the same.

use abi::boot::BootInfo;

use crate::hibernate::deadlines::Rules;
use crate::hibernate::{Outbound, idle, timers};
use crate::net::{host_tables, settings};
use crate::proc::cpuinfo;
use crate::spec::Spec;
use crate::syscall;
use machine::mm::{copies, sites, template};
use machine::platform;

/// Takes the facts out of what the VMM says.
pub(super) fn set(boot: &BootInfo, spec: &mut Spec) {
    syscall::table::set_strace(boot.strace != 0);
    copies::share_files(boot.share_files != 0);
    template::set(boot.template_frames);
    sites::patch(boot.patch_calls != 0 && platform::current().mirrors());
    cpuinfo::set_host_flags(spec.cpu_flags.take());
    let is_first = boot.keeps_news == 0;
    if is_first || !spec.sysctls.is_empty() {
        settings::take(core::mem::take(&mut spec.sysctls));
    }
    if is_first || !spec.net_tables.is_empty() {
        host_tables::take(core::mem::take(&mut spec.net_tables));
    }
    if is_first || spec.timers.is_some() {
        let (ahead_ns, grid_ns) = spec.timers.map_or((0, 0), |timers| (timers.ahead_ns, timers.grid_ns));
        timers::set_rules(Rules { ahead_ns, grid_ns });
    }
    idle::set(idle::Settings {
        timeout_ns: spec.idle_timeout_ns,
        ignored: core::mem::take(&mut spec.idle_ignores),
        awake_at_most_ns: spec.awake_at_most_ns,
        outbound: if spec.outbound_sleeps { Outbound::Sleep } else { Outbound::Awake },
    });
}
