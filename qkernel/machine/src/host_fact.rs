//! Facts that are learnt from the host, or told by the VMM. Under another VMM they may be others: so no cell that is set once for all
//! holds one, and `qkernel/statics.txt` lists each as one of the host's. Those that every call looks at are atomics of their own.

use alloc::sync::Arc;

use crate::rank::Rank;
use crate::spin::SpinLock;

/// A fact, once it is known.
pub struct HostFact<T>(SpinLock<Option<Arc<T>>>);

impl<T> HostFact<T> {
    /// Nobody has told it yet.
    pub const fn unknown() -> Self {
        Self(SpinLock::new(Rank::Leaf, None))
    }

    /// Sets it, or sets it anew; who has read the former value keeps that.
    pub fn set(&self, value: T) -> Arc<T> {
        let value = Arc::new(value);
        // The former one is dropped without the lock.
        let _former = self.0.lock().replace(value.clone());
        value
    }

    /// Returns the fact, if it is known.
    pub fn get(&self) -> Option<Arc<T>> {
        self.0.lock().clone()
    }

    /// Returns the fact, and learns it first if it is not known. Where several learn it at once, one value is everybody's.
    pub fn learn(&self, learn: impl FnOnce() -> T) -> Arc<T> {
        if let Some(known) = self.get() {
            return known;
        }
        let learnt = Arc::new(learn());
        self.0.lock().get_or_insert(learnt).clone()
    }

    /// Makes it unknown: it is learnt anew when somebody asks.
    pub fn forget(&self) {
        let _former = self.0.lock().take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fact_is_set_anew_and_readers_keep_what_they_have() {
        let fact = HostFact::unknown();
        assert!(fact.get().is_none());
        fact.set(1);
        let read = fact.get();
        fact.set(2);
        assert_eq!((read.as_deref(), fact.get().as_deref()), (Some(&1), Some(&2)));
    }

    #[test]
    fn a_fact_is_learnt_once_until_it_is_forgotten() {
        let (fact, mut asked) = (HostFact::unknown(), 0);
        let mut ask = || {
            let mut learn = || {
                asked += 1;
                asked
            };
            *fact.learn(&mut learn)
        };
        assert_eq!((ask(), ask()), (1, 1));
        fact.forget();
        assert_eq!(*fact.learn(|| 7), 7);
        assert_eq!(fact.get().as_deref(), Some(&7));
    }
}
