//! How much processor time an owner may have in each period. Who has had more waits for as many periods as that takes.

/// An owner's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Processor time in each period, in nanoseconds. All CPUs together may have more of it than a period has.
    pub ns: u64,
    pub period_ns: u64,
}

/// Limits and periods within which the host's control groups keep theirs, too, in nanoseconds.
const QUOTA_MIN_NS: u64 = 1_000_000;
const QUOTA_MAX_NS: u64 = 1_000_000_000_000;
const PERIOD_MIN_NS: u64 = 1_000_000;
const PERIOD_MAX_NS: u64 = 1_000_000_000;

impl Quota {
    /// So many microseconds in each period of so many.
    pub fn from_us(quota: u64, period: u64) -> Self {
        Self {
            ns: quota.saturating_mul(1000).clamp(QUOTA_MIN_NS, QUOTA_MAX_NS),
            period_ns: period.saturating_mul(1000).clamp(PERIOD_MIN_NS, PERIOD_MAX_NS),
        }
    }
}

/// Counters of how an owner's limit has held it up so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttling {
    /// Periods in which the owner had something to do, and those in which it had to wait.
    pub periods: u64,
    pub throttled_periods: u64,
    pub throttled_ns: u64,
}

/// The processor time that is left for an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    Unlimited,
    /// So many nanoseconds.
    Some(u64),
    /// Nothing before this time. `is_news`: the time was not told before.
    Nothing {
        until_ns: u64,
        is_news: bool,
    },
}

#[derive(Clone, Copy)]
struct Wait {
    since_ns: u64,
    until_ns: u64,
}

/// See the module. Times are of the monotonic clock.
pub(super) struct Budget {
    quota: Option<Quota>,
    /// Negative: it has had more than it may.
    left_ns: i64,
    period_ends_ns: u64,
    wait: Option<Wait>,
    figures: Throttling,
}

impl Budget {
    pub const fn new() -> Self {
        let figures = Throttling { periods: 0, throttled_periods: 0, throttled_ns: 0 };
        Self { quota: None, left_ns: 0, period_ends_ns: 0, wait: None, figures }
    }

    /// Begins a period under another limit, or without one.
    pub fn set(&mut self, quota: Option<Quota>, now_ns: u64) {
        self.end_wait(now_ns);
        self.quota = quota;
        if let Some(quota) = quota {
            self.left_ns = quota.ns.cast_signed();
            self.period_ends_ns = now_ns.saturating_add(quota.period_ns);
        }
    }

    pub fn quota(&self) -> Option<Quota> {
        self.quota
    }

    /// Whether the owner has to wait.
    pub fn is_throttled(&self) -> bool {
        self.wait.is_some()
    }

    /// It has had so much.
    pub fn charge(&mut self, ns: u64) {
        if self.quota.is_some() {
            self.left_ns = self.left_ns.saturating_sub_unsigned(ns);
        }
    }

    /// Returns the time that is left now. Begins and ends waits.
    pub fn look(&mut self, now_ns: u64) -> Left {
        let Some(quota) = self.quota else { return Left::Unlimited };
        if let Some(wait) = self.wait.filter(|wait| now_ns < wait.until_ns) {
            return Left::Nothing { until_ns: wait.until_ns, is_news: false };
        }
        if now_ns >= self.period_ends_ns {
            self.begin_period(quota, now_ns);
        }
        if let Ok(left) = u64::try_from(self.left_ns)
            && left > 0
        {
            return Left::Some(left);
        }
        let periods = self.left_ns.unsigned_abs() / quota.ns;
        let until_ns = self.period_ends_ns.saturating_add(periods.saturating_mul(quota.period_ns));
        self.wait = Some(Wait { since_ns: now_ns, until_ns });
        Left::Nothing { until_ns, is_news: true }
    }

    fn begin_period(&mut self, quota: Quota, now_ns: u64) {
        let periods_until = |time_ns: u64| 1 + time_ns.saturating_sub(self.period_ends_ns) / quota.period_ns;
        let periods = periods_until(now_ns);
        // A sandbox that slept meanwhile would have had none of the later ones.
        let counted = self.wait.map_or(1, |wait| periods_until(wait.until_ns).min(periods));
        self.figures.periods += counted;
        self.figures.throttled_periods += if self.wait.is_some() { counted } else { 0 };
        self.end_wait(now_ns);
        let more = i64::try_from(quota.ns.saturating_mul(periods)).unwrap_or(i64::MAX);
        self.left_ns = self.left_ns.saturating_add(more).min(quota.ns.cast_signed());
        self.period_ends_ns = self.period_ends_ns.saturating_add(periods.saturating_mul(quota.period_ns));
    }

    fn end_wait(&mut self, now_ns: u64) {
        self.figures.throttled_ns += self.waited_ns(now_ns);
        self.wait = None;
    }

    fn waited_ns(&self, now_ns: u64) -> u64 {
        self.wait.map_or(0, |wait| now_ns.min(wait.until_ns).saturating_sub(wait.since_ns))
    }

    pub fn figures(&self, now_ns: u64) -> Throttling {
        let throttled_ns = self.figures.throttled_ns + self.waited_ns(now_ns);
        Throttling { throttled_ns, ..self.figures }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn tenth() -> Budget {
        let mut budget = Budget::new();
        budget.set(Some(Quota::from_us(10_000, 100_000)), 0);
        budget
    }

    #[test]
    fn without_a_limit_there_is_no_end() {
        let mut budget = Budget::new();
        budget.charge(u64::MAX);
        assert_eq!(budget.look(5), Left::Unlimited);
        let mut budget = tenth();
        budget.set(None, 7);
        assert_eq!(budget.look(5), Left::Unlimited);
    }

    #[test]
    fn what_is_used_up_comes_back_with_the_next_period() {
        let mut budget = tenth();
        assert_eq!(budget.look(MS), Left::Some(10 * MS));
        budget.charge(4 * MS);
        assert_eq!(budget.look(5 * MS), Left::Some(6 * MS));
        budget.charge(6 * MS);
        assert_eq!(budget.look(11 * MS), Left::Nothing { until_ns: 100 * MS, is_news: true });
        assert_eq!(budget.look(99 * MS), Left::Nothing { until_ns: 100 * MS, is_news: false });
        assert!(budget.is_throttled());
        assert_eq!(budget.figures(51 * MS).throttled_ns, 40 * MS);
        assert_eq!(budget.look(102 * MS), Left::Some(10 * MS));
        assert!(!budget.is_throttled());
        let figures = Throttling { periods: 1, throttled_periods: 1, throttled_ns: 89 * MS };
        assert_eq!(budget.figures(150 * MS), figures);
        // Periods keep their beat.
        budget.charge(10 * MS);
        assert_eq!(budget.look(160 * MS), Left::Nothing { until_ns: 200 * MS, is_news: true });
    }

    #[test]
    fn what_is_not_used_does_not_add_up() {
        let mut budget = tenth();
        budget.charge(MS);
        assert_eq!(budget.look(1005 * MS), Left::Some(10 * MS));
        assert_eq!(budget.figures(1005 * MS), Throttling { periods: 1, ..Throttling::default() });
    }

    #[test]
    fn who_has_had_too_much_waits_for_all_of_it() {
        let mut budget = tenth();
        budget.charge(35 * MS);
        // 25 too many: the third period from now leaves 5 of its 10.
        assert_eq!(budget.look(40 * MS), Left::Nothing { until_ns: 300 * MS, is_news: true });
        // What the kernel still does for it counts, too.
        budget.charge(8 * MS);
        assert_eq!(budget.look(300 * MS), Left::Nothing { until_ns: 400 * MS, is_news: true });
        assert_eq!(budget.look(400 * MS), Left::Some(7 * MS));
        assert_eq!(budget.figures(400 * MS).throttled_periods, 4);
        // The sandbox sleeps: more than enough comes back, and the sleep was no wait.
        budget.charge(27 * MS);
        assert_eq!(budget.look(450 * MS), Left::Nothing { until_ns: 700 * MS, is_news: true });
        assert_eq!(budget.look(3_600_000 * MS), Left::Some(10 * MS));
        let figures = Throttling { periods: 7, throttled_periods: 7, throttled_ns: (360 + 250) * MS };
        assert_eq!(budget.figures(3_600_000 * MS), figures);
    }

    #[test]
    fn another_limit_holds_at_once() {
        let mut budget = tenth();
        budget.charge(50 * MS);
        assert!(matches!(budget.look(50 * MS), Left::Nothing { .. }));
        budget.set(Some(Quota::from_us(20_000, 50_000)), 60 * MS);
        assert!(!budget.is_throttled());
        assert_eq!(budget.look(61 * MS), Left::Some(20 * MS));
        assert_eq!(budget.figures(61 * MS).throttled_ns, 10 * MS);
    }

    #[test]
    fn limits_are_kept_within_reason() {
        assert_eq!(Quota::from_us(1, 1), Quota { ns: QUOTA_MIN_NS, period_ns: PERIOD_MIN_NS });
        assert_eq!(Quota::from_us(u64::MAX, u64::MAX), Quota { ns: QUOTA_MAX_NS, period_ns: PERIOD_MAX_NS });
    }
}
