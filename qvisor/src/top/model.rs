//! The content of the screen of `top`, and the effects of keys on it.

use ratatui::crossterm::event::KeyCode;
use ratatui::widgets::TableState;
use runtime::overview::Glance;
use runtime::status::{SandboxState, Status};

/// An order for the chosen sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Hibernate,
    Wake,
    Kill,
}

/// The request that a key stands for.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    Stay,
    Quit,
    Order(Order, String),
    /// A shell in the sandbox.
    Exec(String),
}

/// By what the list is sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    #[default]
    Name,
    Memory,
    Wakes,
    Unchanged,
}

impl Sort {
    fn next(self) -> Self {
        match self {
            Self::Name => Self::Memory,
            Self::Memory => Self::Wakes,
            Self::Wakes => Self::Unchanged,
            Self::Unchanged => Self::Name,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Memory => "memory",
            Self::Wakes => "wakes",
            Self::Unchanged => "time in its state",
        }
    }
}

#[derive(Default)]
pub struct Model {
    pub glances: Vec<Glance>,
    pub sort: Sort,
    pub table: TableState,
    /// How the last order went, or why nothing could be seen.
    pub message: String,
    /// The sandbox that is to be killed, if `y` says so.
    pub to_kill: Option<String>,
    /// Somebody has looked.
    pub is_known: bool,
}

impl Model {
    /// The chosen one stays the chosen one, wherever it stands now.
    pub fn looked(&mut self, result: Result<Vec<Glance>, String>) {
        let chosen = self.chosen().map(|glance| glance.state.id.clone());
        match result {
            Ok(glances) => self.glances = glances,
            Err(why) => self.message = why,
        }
        self.is_known = true;
        self.sort_keeping(chosen);
    }

    fn sort_keeping(&mut self, chosen: Option<String>) {
        let stats = |glance: &Glance| glance.stats.clone().unwrap_or_default();
        let key = |glance: &Glance| match self.sort {
            Sort::Name => 0,
            Sort::Memory => stats(glance).memory.vmm_pss_bytes,
            Sort::Wakes => stats(glance).wakes,
            Sort::Unchanged => stats(glance).unchanged_ms,
        };
        // The largest first; of equals the first by name.
        self.glances.sort_by(|a, b| key(b).cmp(&key(a)).then_with(|| a.state.id.cmp(&b.state.id)));
        let place = self.glances.iter().position(|glance| Some(&glance.state.id) == chosen.as_ref());
        let last = self.glances.len().checked_sub(1);
        self.table.select(place.or(last.map(|last| self.table.selected().unwrap_or(0).min(last))));
    }

    pub fn chosen(&self) -> Option<&Glance> {
        self.glances.get(self.table.selected()?)
    }

    pub fn count(&self, wanted: impl Fn(&Glance) -> bool) -> usize {
        self.glances.iter().filter(|glance| !glance.is_further && wanted(glance)).count()
    }

    pub fn key(&mut self, key: KeyCode, with_control: bool) -> Step {
        if let Some(id) = self.to_kill.take() {
            self.message = String::new();
            return if key == KeyCode::Char('y') { Step::Order(Order::Kill, id) } else { Step::Stay };
        }
        let id = self.chosen().map(|glance| glance.state.id.clone());
        let order = |order| id.clone().map_or(Step::Stay, |id| Step::Order(order, id));
        match key {
            KeyCode::Char('c') if with_control => return Step::Quit,
            KeyCode::Char('q') | KeyCode::Esc => return Step::Quit,
            KeyCode::Char('h') => return order(Order::Hibernate),
            KeyCode::Char('w') => return order(Order::Wake),
            KeyCode::Char('e') => return id.map_or(Step::Stay, Step::Exec),
            KeyCode::Char('k') => {
                self.message =
                    id.as_ref().map_or_else(String::new, |id| format!("kill {id}? y ends it at once"));
                self.to_kill = id;
            }
            KeyCode::Char('s') => {
                self.sort = self.sort.next();
                self.sort_keeping(id);
            }
            KeyCode::Up => self.table.select_previous(),
            KeyCode::Down => {
                let last = self.glances.len().saturating_sub(1);
                let next = self.table.selected().map_or(0, |at| at + 1);
                self.table.select(Some(next.min(last)));
            }
            KeyCode::Home => self.table.select_first(),
            KeyCode::End => self.table.select(self.glances.len().checked_sub(1)),
            _ => {}
        }
        Step::Stay
    }
}

/// The state of a sandbox, in one word.
pub fn state(glance: &Glance) -> String {
    match (glance.state.status, glance.state.sandbox_state) {
        _ if glance.is_silent => "silent".into(),
        (Status::Running, Some(state)) => state.to_string(),
        (status, _) => status.to_string(),
    }
}

pub fn is_asleep(glance: &Glance) -> bool {
    glance.state.sandbox_state == Some(SandboxState::Hibernated)
}

/// Why it is what it is.
pub fn why(glance: &Glance) -> String {
    let Some(reasons) = &glance.reasons else { return String::new() };
    let woken = reasons.woken_by.as_ref().map(|woken| format!("woken by {}", woken.words()));
    match &reasons.kept_awake {
        Some(kept) if !is_asleep(glance) => format!("kept awake by {}", kept.words()),
        _ => woken.unwrap_or_default(),
    }
}

/// A size in words, such as `4.0M`.
pub fn size(bytes: u64) -> String {
    let mut tenths = bytes.saturating_mul(10);
    for unit in ["B", "K", "M", "G"] {
        if tenths < 10_000 {
            return if unit == "B" {
                format!("{bytes}B")
            } else {
                format!("{}.{}{unit}", tenths / 10, tenths % 10)
            };
        }
        tenths /= 1024;
    }
    format!("{}.{}T", tenths / 10, tenths % 10)
}

/// A time in words, such as `5s`, `7m12s` or `3h05m`.
pub fn time(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
pub mod tests {
    use runtime::state::OciState;
    use vmm::hibernate::stats::{MemoryStats, Stats, WakeClass};

    use super::*;

    pub fn glance(id: &str, asleep: bool, wakes: u64) -> Glance {
        let state = OciState {
            oci_version: "1.2.0".into(),
            id: id.into(),
            status: Status::Running,
            pid: 1,
            bundle: "/".into(),
            annotations: [("sandbox-namespace", "shop"), ("sandbox-name", "cart")]
                .map(|(name, value)| (format!("io.kubernetes.cri.{name}"), value.to_owned()))
                .into(),
            sandbox_state: Some(if asleep { SandboxState::Hibernated } else { SandboxState::Warm }),
            hibernate_error: None,
        };
        let memory =
            MemoryStats { vmm_pss_bytes: 5 << 20, swapped_bytes: 40 << 20, ..MemoryStats::default() };
        let stats = Stats {
            memory,
            wakes,
            unchanged_ms: 65_000,
            wake_times: vec![WakeClass { below_us: 8192, wakes }],
            ..Stats::default()
        };
        Glance { state, is_further: false, is_silent: false, stats: Some(stats), reasons: None, usage: None }
    }

    fn names(model: &Model) -> Vec<&str> {
        model.glances.iter().map(|glance| glance.state.id.as_str()).collect()
    }

    #[test]
    fn the_chosen_one_stays_chosen() {
        let mut model = Model::default();
        model.looked(Ok(vec![glance("a", true, 1), glance("b", false, 9), glance("c", true, 4)]));
        assert_eq!(model.chosen().unwrap().state.id, "a");
        model.key(KeyCode::Down, false);
        model.key(KeyCode::Char('s'), false);
        model.key(KeyCode::Char('s'), false);
        assert_eq!((names(&model), model.chosen().unwrap().state.id.as_str()), (vec!["b", "c", "a"], "b"));
        model.looked(Ok(vec![glance("a", true, 1), glance("c", true, 4)]));
        assert_eq!((names(&model), model.chosen().unwrap().state.id.as_str()), (vec!["c", "a"], "c"));
        model.looked(Err("no".into()));
        assert_eq!((names(&model), model.message.as_str()), (vec!["c", "a"], "no"));
        (0..5).for_each(|_| drop(model.key(KeyCode::Down, false)));
        assert_eq!(model.chosen().unwrap().state.id, "a");
        model.looked(Ok(Vec::new()));
        assert!(model.chosen().is_none());
        model.key(KeyCode::Down, false);
        assert_eq!(model.key(KeyCode::Char('h'), false), Step::Stay);
    }

    #[test]
    fn keys_give_orders_and_killing_is_asked_about() {
        let mut model = Model::default();
        model.looked(Ok(vec![glance("a", true, 1)]));
        assert_eq!(model.key(KeyCode::Char('w'), false), Step::Order(Order::Wake, "a".into()));
        assert_eq!(model.key(KeyCode::Char('e'), false), Step::Exec("a".into()));
        assert_eq!(model.key(KeyCode::Char('k'), false), Step::Stay);
        assert_eq!(model.key(KeyCode::Char('q'), false), Step::Stay, "any other key than y is a no");
        assert_eq!(model.key(KeyCode::Char('y'), false), Step::Stay);
        model.key(KeyCode::Char('k'), false);
        // Whoever comes to be chosen meanwhile is not the one.
        model.looked(Ok(vec![glance("b", true, 1)]));
        assert_eq!(model.key(KeyCode::Char('y'), false), Step::Order(Order::Kill, "a".into()));
        assert_eq!(model.key(KeyCode::Char('c'), true), Step::Quit);
    }

    #[test]
    fn sizes_and_times_are_short() {
        for (bytes, text) in [
            (0, "0B"),
            (999, "999B"),
            (1000, "0.9K"),
            (1024, "1.0K"),
            (5 << 20, "5.0M"),
            (3 << 30, "3.0G"),
            (u64::MAX, "1677721.5T"),
        ] {
            assert_eq!(size(bytes), text);
        }
        for (seconds, text) in [(5, "5s"), (432, "7m12s"), (11_100, "3h05m"), (90_000, "1d01h")] {
            assert_eq!(time(seconds * 1000), text);
        }
    }
}
