use alloc::vec;

use super::*;

const MS: u64 = 1_000_000;
const SANDBOX: Owner = Owner::SANDBOX;
const ONE: Owner = Owner::new(1);
const TWO: Owner = Owner::new(2);

/// A task that may run anywhere.
fn any<T>(task: T) -> (T, CpuSet) {
    (task, CpuSet::ALL)
}

/// A task of a simulation, by its number.
struct Job {
    owner: Owner,
    /// It runs for so long and then sleeps for so long, again and again. A sleep of 0 is none.
    runs_ns: u64,
    sleeps_ns: u64,
    left_ns: u64,
    wakes_ns: Option<u64>,
}

/// CPUs that run jobs as `schedule` and `before_user` do, in steps of this.
const STEP_NS: u64 = MS / 4;

struct Simulation {
    queue: RunQueue<usize>,
    jobs: Vec<Job>,
    /// The job that a CPU runs, when its slice ends, and until when it may run.
    cpus: Vec<Option<(usize, u64, u64)>>,
    now_ns: u64,
    had_ns: Vec<u64>,
    refills: Vec<(Owner, u64)>,
}

impl Simulation {
    fn new(cpus: usize) -> Self {
        let mut queue = RunQueue::new();
        queue.begin_owner(ONE, 0);
        queue.begin_owner(TWO, 0);
        Self {
            queue,
            jobs: Vec::new(),
            cpus: (0..cpus).map(|_| None).collect(),
            now_ns: 0,
            had_ns: vec![0; 3],
            refills: Vec::new(),
        }
    }

    fn job(&mut self, owner: Owner, runs_ns: u64, sleeps_ns: u64) {
        self.jobs.push(Job { owner, runs_ns, sleeps_ns, left_ns: runs_ns, wakes_ns: Some(self.now_ns) });
    }

    fn hog(&mut self, owner: Owner, count: usize) {
        (0..count).for_each(|_| self.job(owner, u64::MAX, 0));
    }

    fn step(&mut self) {
        let now = self.now_ns;
        for (number, job) in self.jobs.iter_mut().enumerate() {
            if job.wakes_ns.is_some_and(|at| at <= now) {
                job.wakes_ns = None;
                self.queue.add(job.owner, QueueClass::Kernel, any(number), now);
            }
        }
        let (due, later): (Vec<_>, Vec<_>) = self.refills.iter().partition(|(_, at)| *at <= now);
        self.refills = later;
        for (owner, _) in due {
            self.refills.extend(self.queue.refill(owner, now).map(|at| (owner, at)));
        }
        for cpu in 0..self.cpus.len() {
            self.run(cpu);
        }
        self.now_ns += STEP_NS;
    }

    fn run(&mut self, cpu: usize) {
        let now = self.now_ns;
        if let Some((number, slice, granted)) = self.cpus[cpu] {
            let job = &mut self.jobs[number];
            if job.left_ns == 0 {
                job.left_ns = job.runs_ns;
                job.wakes_ns = Some(now + job.sleeps_ns);
                self.queue.leave(cpu, now);
                self.cpus[cpu] = None;
            } else if now >= slice && self.queue.waiting() > 0 {
                self.queue.leave(cpu, now);
                self.queue.add(job.owner, QueueClass::Boundary, any(number), now);
                self.cpus[cpu] = None;
            } else if now >= granted {
                self.admit(cpu, number, slice);
            }
        }
        while self.cpus[cpu].is_none() {
            let Some((number, slice)) = self.queue.pick(cpu, false, now, |_| true) else { return };
            self.admit(cpu, number, now + slice);
        }
        if let Some((number, ..)) = self.cpus[cpu] {
            let job = &mut self.jobs[number];
            job.left_ns = job.left_ns.saturating_sub(STEP_NS);
            self.had_ns[usize::from(job.owner.number())] += STEP_NS;
        }
    }

    fn admit(&mut self, cpu: usize, number: usize, slice: u64) {
        let (now, owner) = (self.now_ns, self.jobs[number].owner);
        self.cpus[cpu] = match self.queue.ask(owner, now) {
            Grant::Unlimited => Some((number, slice, u64::MAX)),
            Grant::Until(granted) => Some((number, slice, granted)),
            Grant::Wait(until) => {
                self.refills.extend(until.map(|until| (owner, until)));
                self.queue.leave(cpu, now);
                self.queue.add(owner, QueueClass::Boundary, any(number), now);
                None
            }
        };
    }

    /// Runs for so many milliseconds; returns how many of them each owner has had.
    fn run_for(&mut self, ms: u64) -> [u64; 3] {
        self.had_ns = vec![0; 3];
        let end = self.now_ns + ms * MS;
        while self.now_ns < end {
            self.step();
        }
        [0, 1, 2].map(|owner| self.had_ns[owner] / MS)
    }
}

fn near(value: u64, wanted: u64, tolerance: u64) {
    assert!(value.abs_diff(wanted) <= tolerance, "{value} is not about {wanted}");
}

#[test]
fn one_owners_tasks_take_turns() {
    let mut queue = RunQueue::new();
    for task in 0..3 {
        queue.add(SANDBOX, QueueClass::Kernel, any(task), 0);
    }
    for round in 0..7 {
        let (task, slice) = queue.pick(0, false, 0, |_| true).unwrap();
        assert_eq!((task, slice), (round % 3, TIME_SLICE_NS));
        queue.leave(0, 0);
        queue.add(SANDBOX, QueueClass::Kernel, any(task), 0);
    }
    // One that is still on a CPU is left to that.
    let (task, _) = queue.pick(0, false, 0, |task| *task != 1).unwrap();
    assert_eq!(task, 2);
}

#[test]
fn busy_owners_have_time_by_their_shares() {
    for cpus in [1, 2] {
        let mut simulation = Simulation::new(cpus);
        simulation.queue.set_shares(ONE, 256);
        simulation.hog(ONE, 3);
        simulation.hog(TWO, 3);
        let [_, one, two] = simulation.run_for(10_000);
        near(one, 2000 * cpus as u64, 100);
        near(two, 8000 * cpus as u64, 100);
    }
}

#[test]
fn the_number_of_tasks_makes_no_difference() {
    let mut simulation = Simulation::new(2);
    simulation.hog(ONE, 100);
    simulation.hog(TWO, 2);
    let [_, one, two] = simulation.run_for(5000);
    near(one, 5000, 100);
    near(two, 5000, 100);
}

#[test]
fn what_one_leaves_others_have() {
    let mut simulation = Simulation::new(2);
    simulation.queue.set_shares(TWO, 100_000);
    simulation.hog(ONE, 1);
    assert_eq!(simulation.run_for(1000), [0, 1000, 0]);
    // One task cannot have more than one CPU, whatever its shares.
    simulation.hog(SANDBOX, 2);
    simulation.hog(TWO, 1);
    let [first, one, two] = simulation.run_for(6000);
    near(two, 6000, 50);
    near(one, 3000, 100);
    near(first, 3000, 100);
}

#[test]
fn nobody_saves_up_time_by_sleeping() {
    let mut simulation = Simulation::new(1);
    simulation.hog(ONE, 2);
    simulation.job(TWO, 20 * MS, 3000 * MS);
    simulation.run_for(3000);
    // After so long a sleep it has its share, and no more.
    simulation.hog(TWO, 2);
    let [_, one, _] = simulation.run_for(1000);
    near(one, 500, 30);
    // Nor does one that has a CPU, and would have more of the others for its shares, if it had the tasks.
    let mut simulation = Simulation::new(2);
    simulation.queue.set_shares(ONE, 4096);
    simulation.hog(ONE, 1);
    simulation.hog(TWO, 4);
    simulation.run_for(3000);
    simulation.queue.set_shares(ONE, 1024);
    simulation.hog(ONE, 3);
    let [_, one, _] = simulation.run_for(1000);
    near(one, 1000, 50);
}

#[test]
fn who_naps_is_served_soon_and_has_no_more_than_its_share() {
    let mut simulation = Simulation::new(1);
    simulation.hog(ONE, 1);
    simulation.job(TWO, 9 * MS, MS);
    simulation.job(TWO, 9 * MS, MS);
    let [_, one, two] = simulation.run_for(5000);
    near(one, 2500, 200);
    near(two, 2500, 200);
}

#[test]
fn who_had_a_cpu_alone_owes_nothing_for_it() {
    let mut simulation = Simulation::new(2);
    simulation.queue.set_shares(ONE, 4096);
    simulation.hog(ONE, 1);
    simulation.hog(TWO, 1);
    simulation.run_for(60_000);
    simulation.hog(SANDBOX, 1);
    let [first, _, two] = simulation.run_for(1000);
    near(first, 500, 50);
    near(two, 500, 50);
}

#[test]
fn few_shares_are_served_in_small_pieces() {
    let mut simulation = Simulation::new(1);
    simulation.queue.set_shares(ONE, 2);
    simulation.hog(ONE, 1);
    simulation.hog(TWO, 1);
    let [_, one, _] = simulation.run_for(10_000);
    near(one, 20, 5);
    let mut queue = RunQueue::new();
    queue.begin_owner(ONE, 0);
    queue.set_shares(ONE, 2);
    for owner in [ONE, SANDBOX] {
        queue.add(owner, QueueClass::Kernel, any(owner), 0);
    }
    assert_eq!(queue.pick(0, false, 0, |_| true), Some((ONE, SLICE_MIN_NS)));
    assert_eq!(queue.pick(1, false, 0, |_| true), Some((SANDBOX, TIME_SLICE_NS)));
}

#[test]
fn who_may_hold_a_mutex_comes_first_as_far_as_user_code() {
    let mut queue = RunQueue::new();
    queue.begin_owner(ONE, 0);
    queue.set_quota(ONE, Some(Quota::from_us(1000, 100_000)), 0);
    queue.add(SANDBOX, QueueClass::Kernel, any("other"), 0);
    queue.add(ONE, QueueClass::Kernel, any("busy"), 0);
    let ticket = queue.add(ONE, QueueClass::Urgent, any("holder"), 0);
    assert!(queue.remove(SANDBOX, ticket, 0).is_some());
    queue.add(ONE, QueueClass::Urgent, any("holder"), 0);
    assert_eq!(queue.pick(0, false, 0, |_| true), Some(("holder", 0)));
    // It has used up the budget: what is in the kernel goes on, and what is on the way to user code does not.
    assert_eq!(queue.ask(ONE, 5 * MS), Grant::Wait(Some(500 * MS)));
    queue.leave(0, 5 * MS);
    let ticket = queue.add(ONE, QueueClass::Boundary, any("holder"), 5 * MS);
    assert_eq!((queue.waiting(), queue.parked()), (2, 1));
    assert_eq!(queue.pick(0, false, 5 * MS, |task| *task != "other").unwrap().0, "busy");
    assert_eq!(queue.pick(1, false, 5 * MS, |task| *task != "other"), None);
    // But it is killed at once.
    assert!(queue.promote(ONE, ticket, 5 * MS).is_some());
    assert_eq!((queue.waiting(), queue.parked()), (2, 0));
    assert_eq!(queue.pick(1, false, 5 * MS, |_| true), Some(("holder", 0)));
}

#[test]
fn a_pause_lets_parked_tasks_come_to_rest() {
    let mut queue = RunQueue::new();
    queue.begin_owner(ONE, 0);
    queue.set_quota(ONE, Some(Quota::from_us(1000, 100_000)), 0);
    queue.add(ONE, QueueClass::Kernel, any(1), 0);
    queue.pick(0, false, 0, |_| true).unwrap();
    assert_eq!(queue.ask(ONE, 2 * MS), Grant::Wait(Some(200 * MS)));
    queue.leave(0, 2 * MS);
    queue.add(ONE, QueueClass::Boundary, any(1), 2 * MS);
    assert!(!queue.is_empty() && queue.pick(0, false, 2 * MS, |_| true).is_none());
    assert_eq!(queue.pick(0, true, 2 * MS, |_| true).unwrap().0, 1);
    assert!(queue.is_empty() && queue.parked() == 0);
}

#[test]
fn a_limit_holds_whether_or_not_others_are_busy() {
    for others in [0, 3] {
        for tasks in [1, 7] {
            let mut simulation = Simulation::new(2);
            simulation.queue.set_quota(ONE, Some(Quota::from_us(10_000, 100_000)), 0);
            simulation.hog(ONE, tasks);
            simulation.hog(TWO, others);
            let [_, one, two] = simulation.run_for(5000);
            near(one, 500, 30);
            near(two, if others == 0 { 0 } else { 9500 }, 30);
            let figures = simulation.queue.throttling(ONE, simulation.now_ns);
            near(figures.periods, 50, 2);
            assert!(figures.throttled_periods > 40 && figures.throttled_ns > 1000 * MS, "{figures:?}");
        }
    }
}

#[test]
fn a_limit_of_more_than_one_cpu_holds() {
    let mut simulation = Simulation::new(4);
    simulation.queue.set_quota(ONE, Some(Quota::from_us(150_000, 100_000)), 0);
    simulation.hog(ONE, 8);
    let [_, one, _] = simulation.run_for(5000);
    near(one, 7500, 100);
}

#[test]
fn all_tasks_of_a_throttled_owner_have_their_turns() {
    let mut simulation = Simulation::new(1);
    simulation.queue.set_quota(ONE, Some(Quota::from_us(10_000, 100_000)), 0);
    for _ in 0..5 {
        simulation.job(ONE, 1000 * MS, 0);
    }
    simulation.run_for(5000);
    for job in &simulation.jobs {
        near((1000 * MS - job.left_ns) / MS, 100, 20);
    }
}

#[test]
fn an_end_of_the_limit_lets_all_go_on() {
    let mut simulation = Simulation::new(1);
    simulation.queue.set_quota(ONE, Some(Quota::from_us(1000, 1_000_000)), 0);
    simulation.hog(ONE, 3);
    simulation.run_for(100);
    assert_eq!((simulation.queue.waiting(), simulation.queue.parked()), (0, 3));
    simulation.queue.set_quota(ONE, None, simulation.now_ns);
    assert_eq!((simulation.queue.waiting(), simulation.queue.parked()), (3, 0));
    assert_eq!(simulation.run_for(100), [0, 100, 0]);
    // A number that is given to somebody else says nothing of its last owner.
    simulation.queue.end_owner(TWO, simulation.now_ns);
    simulation.queue.set_shares(TWO, 7);
    simulation.queue.end_owner(TWO, simulation.now_ns);
    assert_eq!(simulation.queue.lane(TWO).shares, SHARES);
    assert!(simulation.queue.keeps_time());
}

#[test]
fn bound_tasks_are_passed_by_where_they_may_not_run() {
    let mut queue = RunQueue::new();
    let first = CpuSet::of(1, 4);
    queue.add(SANDBOX, QueueClass::Kernel, ("first", first), 0);
    assert!(queue.has_for(0, false) && !queue.has_for(1, false));
    assert_eq!(queue.pick(1, false, 0, |_| true), None);
    queue.add(SANDBOX, QueueClass::Kernel, any("other"), 0);
    assert!(queue.has_for(1, false));
    assert_eq!(queue.pick(1, false, 0, |_| true).unwrap().0, "other");
    assert!(!queue.has_for(1, false));
    assert_eq!(queue.pick(0, false, 0, |_| true).unwrap().0, "first");
    assert!(queue.is_empty() && !queue.has_for(0, true));
}

#[test]
fn who_waits_is_bound_anew_where_it_stands() {
    let mut queue = RunQueue::new();
    queue.begin_owner(ONE, 0);
    let [low, high] = [CpuSet::of(3, 4), CpuSet::of(12, 4)];
    for class in [QueueClass::Urgent, QueueClass::Kernel, QueueClass::Boundary] {
        let ticket = queue.add(ONE, class, ("task", low), 0);
        assert!(queue.has_for(1, false) && !queue.has_for(2, false));
        queue.bind(ONE, ticket, high);
        assert!(!queue.has_for(1, false) && queue.has_for(2, false));
        assert_eq!(queue.pick(1, false, 0, |_| true), None);
        queue.bind(ONE, ticket, CpuSet::ALL);
        assert!(queue.has_for(1, false));
        queue.bind(ONE, ticket, high);
        assert_eq!(queue.pick(3, false, 0, |_| true).unwrap().0, "task");
        // It waits no more.
        queue.bind(ONE, ticket, low);
        assert!(queue.is_empty() && !queue.has_for(0, true) && !queue.has_for(3, true));
    }
}

#[test]
fn bound_tasks_wait_for_budgets_as_others_do() {
    let mut queue = RunQueue::new();
    queue.begin_owner(ONE, 0);
    queue.set_quota(ONE, Some(Quota::from_us(1000, 100_000)), 0);
    queue.add(ONE, QueueClass::Kernel, any("hog"), 0);
    queue.pick(0, false, 0, |_| true).unwrap();
    assert!(matches!(queue.ask(ONE, 2 * MS), Grant::Wait(Some(_))));
    queue.leave(0, 2 * MS);
    let ticket = queue.add(ONE, QueueClass::Boundary, ("bound", CpuSet::of(2, 4)), 2 * MS);
    assert!(!queue.has_for(1, false) && queue.has_for(1, true) && !queue.has_for(0, true));
    // Bound tasks keep their CPUs when they come before others.
    assert!(queue.promote(ONE, ticket, 2 * MS).is_some());
    assert!(queue.has_for(1, false) && !queue.has_for(0, false));
}

#[test]
fn the_load_is_that_of_what_there_was_until_the_change() {
    const SECONDS: u64 = 1000 * MS;
    let mut queue = RunQueue::new();
    let nobody = Some(|_: Owner| 0);
    queue.sample(SECONDS, nobody);
    queue.begin_owner(ONE, SECONDS);
    queue.add(ONE, QueueClass::Kernel, any(1), SECONDS);
    queue.add(ONE, QueueClass::Urgent, any(2), SECONDS);
    queue.add(SANDBOX, QueueClass::Kernel, any(3), SECONDS);
    assert_eq!((queue.running(ONE), queue.running(SANDBOX), queue.running(TWO)), (2, 1, 0));
    assert!(queue.pick(0, false, SECONDS, |_| true).is_some());
    assert_eq!(queue.running(ONE), 2, "whoever runs counts as well");
    queue.sample(6 * SECONDS - 1, nobody);
    assert_eq!(queue.load(ONE), [0; 3]);
    queue.sample(6 * SECONDS, Some(|owner: Owner| usize::from(owner == SANDBOX)));
    assert_eq!(queue.load(ONE), queue.load(SANDBOX));
    assert!(queue.load(ONE)[0] > 0);
    // A paused sandbox has none, and forgets.
    let before = queue.load(ONE);
    queue.sample(66 * SECONDS, None::<fn(Owner) -> usize>);
    assert!(queue.load(ONE)[0] < before[0] / 2);
    queue.end_owner(ONE, 66 * SECONDS);
    assert_eq!(queue.load(ONE), [0; 3]);
}
