//! The steps that come from outside: orders, wake events, processes that come in, and failures.

use qkernel::hibernate::state_machine as kernel;
use qkernel::hibernate::state_machine::PATIENCE_NS;
use runtime::supervisor::state_machine as supervisor;
use runtime::supervisor::state_machine::{Cause, HIBERNATE_PATIENCE};

use super::{Event, Rules, SOCKET, Step, World, start};

impl World {
    /// Inputs from outside.
    pub fn external(&self, rules: Rules) -> Vec<(Step, World)> {
        let mut all = Vec::new();
        self.orders(&mut all);
        self.holds(&mut all);
        let mut add = |step, change: &dyn Fn(&mut World)| all.push((step, self.changed(change)));
        if self.budget.execs > 0 && self.can_hibernate {
            add(Step::Exec, &|next| {
                next.budget.execs -= 1;
                next.post(Event::Exec);
                if next.supervisor.is_hibernated() || next.supervisor.hibernation().is_some() {
                    let cause = Cause::Request("exec");
                    next.tell_supervisor(supervisor::Input::WantRunning { cause, now: start() });
                }
            });
        }
        self.delays(&mut all);
        let mut add = |step, change: &dyn Fn(&mut World)| all.push((step, self.changed(change)));
        if self.budget.wake_events > 0
            && let Some(cpu) = self.cpus.iter().position(Vec::is_empty)
        {
            add(Step::WakeEvent, &|next| {
                next.budget.wake_events -= 1;
                next.wake_by(cpu, SOCKET, rules);
            });
        }
        all
    }

    /// This world with a change.
    fn changed(&self, change: &dyn Fn(&mut World)) -> World {
        let mut next = self.clone();
        change(&mut next);
        next
    }

    /// To hibernate, to go on, and the start of its first process.
    fn orders(&self, all: &mut Vec<(Step, World)>) {
        let mut add = |step, change: &dyn Fn(&mut World)| all.push((step, self.changed(change)));
        if self.budget.orders > 0 {
            add(Step::WantRest, &|next| {
                next.budget.orders -= 1;
                let hibernates = next.can_hibernate;
                let (cause, now) = (Cause::Order, start());
                next.tell_supervisor(supervisor::Input::WantRest { cause, hibernates, now });
            });
            add(Step::WantRunning, &|next| {
                next.budget.orders -= 1;
                next.tell_supervisor(supervisor::Input::WantRunning { cause: Cause::Order, now: start() });
            });
            if !self.can_hibernate {
                add(Step::Starts, &|next| {
                    next.budget.orders -= 1;
                    next.can_hibernate = true;
                });
            }
        }
    }

    /// `pause` and `resume`.
    fn holds(&self, all: &mut Vec<(Step, World)>) {
        let mut add = |step, change: &dyn Fn(&mut World)| all.push((step, self.changed(change)));
        if self.budget.holds > 0 {
            let hold = |next: &mut World, hibernates| {
                next.budget.holds -= 1;
                let (cause, now) = (Cause::Pause, start());
                next.tell_supervisor(supervisor::Input::WantRest { cause, hibernates, now });
            };
            if self.supervisor.is_held() {
                add(Step::Resumes, &|next| {
                    next.budget.holds -= 1;
                    let (cause, now) = (Cause::Resume, start());
                    next.tell_supervisor(supervisor::Input::WantRunning { cause, now });
                });
            } else {
                add(Step::Holds, &|next| hold(next, false));
                if self.can_hibernate {
                    add(Step::HoldsHibernated, &|next| hold(next, true));
                }
            }
        }
    }

    /// Hibernations that take too long.
    fn delays(&self, all: &mut Vec<(Step, World)>) {
        let mut add = |step, change: &dyn Fn(&mut World)| all.push((step, self.changed(change)));
        if self.budget.failures > 0 {
            if self.supervisor.hibernation().is_some() {
                add(Step::GivesUp, &|next| {
                    next.budget.failures -= 1;
                    next.tell_supervisor(supervisor::Input::Tick { now: start() + HIBERNATE_PATIENCE });
                });
            }
            if self.kernel.wants_freeze()
                && let Some(cpu) = self.cpus.iter().position(Vec::is_empty)
            {
                add(Step::NotFrozen, &|next| {
                    next.budget.failures -= 1;
                    next.feed(cpu, kernel::Input::NotFrozen { now_ns: PATIENCE_NS });
                });
            }
        }
    }
}
