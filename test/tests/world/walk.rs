//! The walk through all worlds.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::{Rules, Step, World};

/// The result of a walk.
#[derive(Debug, Default)]
pub struct Walk {
    pub states: usize,
    pub quiet: usize,
    pub depth: u32,
    pub flaw: Option<(&'static str, Vec<Step>)>,
}

/// Goes through every order, breadth first, until it finds a flaw.
pub fn walk(first: World, rules: Rules) -> Walk {
    let mut ids: HashMap<World, u32> = HashMap::new();
    // Where each state was first come from, and how far from the first one it is.
    let mut from: Vec<(u32, Option<Step>, u32)> = vec![(0, None, 0)];
    let mut worlds = std::collections::VecDeque::from([first.clone()]);
    ids.insert(first, 0);
    let mut edges: Vec<(u32, u32)> = Vec::new();
    let mut found = Walk::default();
    let mut id = 0;
    while let Some(world) = worlds.pop_front() {
        let internal = world.internal(rules);
        let is_quiet = internal.is_empty();
        found.quiet += usize::from(is_quiet);
        found.depth = from[id as usize].2;
        let broken = world.broken_now().or_else(|| world.broken_when_quiet().filter(|_| is_quiet));
        if let Some(flaw) = broken {
            let mut trace = Vec::new();
            let mut at = id;
            while let (before, Some(step), _) = from[at as usize] {
                trace.push(step);
                at = before;
            }
            trace.reverse();
            found.states = from.len();
            found.flaw = Some((flaw, trace));
            return found;
        }
        let own = internal.len();
        for (at, (step, next)) in internal.into_iter().chain(world.external(rules)).enumerate() {
            let next = next.normal();
            let new = u32::try_from(from.len()).unwrap();
            let to = match ids.entry(next) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(place) => {
                    worlds.push_back(place.key().clone());
                    from.push((id, Some(step), found.depth + 1));
                    *place.insert(new)
                }
            };
            if at < own {
                edges.push((id, to));
            }
        }
        id += 1;
    }
    found.states = from.len();
    if !comes_to_rest(from.len(), &edges) {
        found.flaw = Some(("it never comes to rest by itself", Vec::new()));
    }
    found
}

/// Whether these edges lead in no circle.
fn comes_to_rest(states: usize, edges: &[(u32, u32)]) -> bool {
    let mut incoming = vec![0_u32; states];
    let mut outgoing = vec![Vec::new(); states];
    for (from, to) in edges {
        incoming[*to as usize] += 1;
        outgoing[*from as usize].push(*to);
    }
    let mut free: Vec<usize> = (0..states).filter(|state| incoming[*state] == 0).collect();
    let mut left = states;
    while let Some(state) = free.pop() {
        left -= 1;
        for to in &outgoing[state] {
            incoming[*to as usize] -= 1;
            if incoming[*to as usize] == 0 {
                free.push(*to as usize);
            }
        }
    }
    left == 0
}
