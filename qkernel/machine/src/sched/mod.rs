//! The scheduler: one run queue, N vCPUs, round robin with a time slice; user code is pre-empted, the kernel is not.
//! Between owners the run queue divides the time ([`queue`]).
//!
//! What the queue's lock guards is in [`state`]; [`schedule`] decides and [`switch`] switches; [`wake`], [`sleep`], [`turns`], [`user`]
//! and [`idle`] are the ways there.

mod affinity;
mod budget;
mod charged;
mod count;
mod cpu;
mod cpu_set;
mod freeze;
mod guarded;
mod idle;
mod life;
mod load;
mod notify;
pub mod pause;
pub mod periods;
pub mod pressure;
mod queue;
mod rest;
mod rest_place;
mod revive;
mod schedule;
pub mod set_times;
pub mod shares;
mod sleep;
pub mod stack;
mod state;
mod stretch;
mod switch;
mod task;
pub mod timer;
mod turns;
mod urgent;
mod user;
pub mod wait;
mod waiting;
mod wake;
pub mod work;

pub use affinity::bind;
pub use budget::{Quota, Throttling};
pub use charged::{ChargedTo, charge_to};
pub use cpu::current;
pub use cpu_set::CpuSet;
pub use freeze::{Frozen, freeze, freeze_queue, is_at_rest};
pub use idle::{adopt_idle, run_others, wait_for_work};
pub use load::{Averages, LOAD_SHIFT};
pub use notify::rouse_another;
pub use revive::{fetch_all, forget_cpus};
pub use sleep::{Sleep, is_interrupted, sleep_until};
pub use state::{has_parked, has_waiting, load_averages, pressure, running_tasks};
pub use task::{Run, Runnable, SchedState, Transfers};
pub use turns::{go_on, has_news, let_others_go_on, yield_now};
pub use urgent::{Urgent, be_urgent};
pub use user::{before_user, handle_pending};
pub use waiting::Waiting;
pub use wake::{call_attention, start, wake, wake_interruptible, woken_in_pause};
