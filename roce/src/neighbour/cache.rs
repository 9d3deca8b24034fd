//! The neighbour cache: which Ethernet address an IP address on the link has.
//!
//! ```text
//!              lookup                 answer
//!   (nothing) -------> Incomplete ----------------> Known <---- answer ----+
//!       ^                  |  asked ASKS times        |  lookup when stale |
//!       | evicted          v  in vain                 v                    |
//!       +------------- Failed <---- in vain ------ Probing ----------------+
//!                          |  lookup after the hold
//!                          +-------> Incomplete
//! ```
//!
//! What a stranger can do: answer a question that was asked, change the address of a neighbour that is
//! known (as failover does), and enter itself by asking for us, in a bounded corner of the cache that
//! gives way to every neighbour that somebody here asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::id::Mac;
use crate::time::Instant;

/// Neighbours in the cache: more hosts than one subnet of a cluster commonly has.
pub const NEIGHBOURS_MAX: usize = 1024;
/// Neighbours in the cache that nobody here asked for.
pub const LEARNED_MAX: usize = 128;

const MILLISECOND_NANOS: u64 = 1_000_000;

/// How long the answer to each question is waited for. The first are short: a lost question should
/// cost less than the connection that waits for it.
const ASK_WAIT_NANOS: [u64; 4] =
    [50 * MILLISECOND_NANOS, 200 * MILLISECOND_NANOS, 1000 * MILLISECOND_NANOS, 1000 * MILLISECOND_NANOS];
/// How long an address is taken for right without asking again (RFC 4861, REACHABLE_TIME).
const FRESH_NANOS: u64 = 30_000 * MILLISECOND_NANOS;
/// How long a neighbour that did not answer is not asked again.
const FAILED_HOLD_NANOS: u64 = 1000 * MILLISECOND_NANOS;

const FOREVER: Instant = Instant::from_nanos(u64::MAX);

/// What is known of the way to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Frames go to this Ethernet address.
    Known(Mac),
    /// The neighbour has been asked; ask again when the generation has changed.
    Pending,
    /// There is no way: no neighbour answers, or the address is neither on the link nor behind a
    /// gateway.
    Unreachable,
}

/// How an entry came to be; decides what may change or evict it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Origin {
    /// The neighbour asked for us. Evicted first.
    Learned,
    /// Somebody here asked for it.
    Asked,
    /// Given from outside. Neither evicted nor changed by what the wire says.
    Configured,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Incomplete { asks: usize, due: Instant },
    Known { mac: Mac, fresh_until: Instant },
    Probing { mac: Mac, asks: usize, due: Instant },
    Failed { until: Instant },
}

impl State {
    fn mac(self) -> Option<Mac> {
        match self {
            State::Known { mac, .. } | State::Probing { mac, .. } => Some(mac),
            State::Incomplete { .. } | State::Failed { .. } => None,
        }
    }

    fn due(self) -> Option<Instant> {
        match self {
            State::Incomplete { due, .. } | State::Probing { due, .. } => Some(due),
            State::Known { .. } | State::Failed { .. } => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    origin: Origin,
    state: State,
    used: Instant,
}

/// A question to be sent: to the neighbour itself where its old address is known, else to all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) ip: IpAddr,
    pub(super) probe: Option<Mac>,
}

/// What the cache counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CacheCounters {
    pub(super) learned: u64,
    pub(super) evicted: u64,
    pub(super) unanswered: u64,
    pub(super) full: u64,
}

/// The cache itself. Ordered maps: a simulation must repeat, and so must its order of questions.
#[derive(Debug, Default)]
pub(super) struct Cache {
    entries: BTreeMap<IpAddr, Entry>,
    timers: BTreeSet<(Instant, IpAddr)>,
    generation: u64,
    pub(super) counters: CacheCounters,
}

impl Cache {
    /// A number that changes whenever the result of a lookup would.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// When the next question is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.timers.first().map(|&(due, _)| due)
    }

    /// The Ethernet address of `ip`, if known.
    pub(super) fn mac_of(&self, ip: IpAddr) -> Option<Mac> {
        self.entries.get(&ip)?.state.mac()
    }

    /// How many neighbours are known or asked for.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Neighbours whose answer is waited for.
    pub(super) fn wanted(&self) -> impl Iterator<Item = IpAddr> {
        self.timers.iter().map(|&(_, ip)| ip)
    }

    /// What is known of `ip`, which is on the link. Starts to ask where that is needed.
    pub(super) fn lookup(&mut self, ip: IpAddr, now: Instant) -> Resolution {
        let Some(entry) = self.entries.get_mut(&ip) else {
            return self.ask_first(ip, now);
        };
        entry.used = now;
        entry.origin = entry.origin.max(Origin::Asked);
        match entry.state {
            State::Incomplete { .. } => Resolution::Pending,
            State::Probing { mac, .. } => Resolution::Known(mac),
            State::Known { mac, fresh_until } => {
                if now >= fresh_until {
                    self.set_state(ip, State::Probing { mac, asks: 0, due: now });
                }
                Resolution::Known(mac)
            }
            State::Failed { until } if now < until => Resolution::Unreachable,
            State::Failed { .. } => {
                self.set_state(ip, State::Incomplete { asks: 0, due: now });
                Resolution::Pending
            }
        }
    }

    fn ask_first(&mut self, ip: IpAddr, now: Instant) -> Resolution {
        if !self.make_room(Origin::Asked) {
            self.counters.full += 1;
            return Resolution::Unreachable;
        }
        self.insert(ip, Origin::Asked, State::Incomplete { asks: 0, due: now }, now);
        Resolution::Pending
    }

    /// Takes the next question that is due at `now`. A neighbour asked often enough is given up on the
    /// way.
    pub(super) fn next_ask(&mut self, now: Instant) -> Option<Ask> {
        while let Some(&(due, ip)) = self.timers.first() {
            if due > now {
                return None;
            }
            let (asks, probe) = match self.entries.get(&ip)?.state {
                State::Incomplete { asks, .. } => (asks, None),
                State::Probing { asks, mac, .. } => (asks, Some(mac)),
                State::Known { .. } | State::Failed { .. } => return None,
            };
            let Some(&wait_nanos) = ASK_WAIT_NANOS.get(asks) else {
                self.counters.unanswered += 1;
                self.generation += 1;
                self.set_state(ip, State::Failed { until: now.plus_nanos(FAILED_HOLD_NANOS) });
                continue;
            };
            let (asks, due) = (asks + 1, now.plus_nanos(wait_nanos));
            self.set_state(
                ip,
                match probe {
                    None => State::Incomplete { asks, due },
                    Some(mac) => State::Probing { mac, asks, due },
                },
            );
            return Some(Ask { ip, probe });
        }
        None
    }

    /// Takes note that `ip` says it is at `mac`, as an answer to our question (`confirmed`) or of its
    /// own accord. False where nobody asked for `ip` or its entry is fixed.
    pub(super) fn hear(&mut self, ip: IpAddr, mac: Mac, confirmed: bool, now: Instant) -> bool {
        let Some(entry) = self.entries.get(&ip).filter(|entry| entry.origin != Origin::Configured) else {
            return false;
        };
        let same = entry.state.mac() == Some(mac);
        if same && !confirmed {
            return true;
        }
        let fresh_until = if confirmed { now.plus_nanos(FRESH_NANOS) } else { now };
        self.set_state(ip, State::Known { mac, fresh_until });
        self.generation += u64::from(!same);
        true
    }

    /// Enters a neighbour that asked for us, to be verified when it is first used.
    pub(super) fn learn(&mut self, ip: IpAddr, mac: Mac, now: Instant) {
        if self.entries.contains_key(&ip) {
            self.hear(ip, mac, false, now);
        } else if self.make_room(Origin::Learned) {
            self.counters.learned += 1;
            self.insert(ip, Origin::Learned, State::Known { mac, fresh_until: now }, now);
        }
    }

    /// Sets `ip` to `mac` until told otherwise. False where the cache is full.
    pub(super) fn set(&mut self, ip: IpAddr, mac: Mac, origin: Origin) -> bool {
        let state = State::Known { mac, fresh_until: FOREVER };
        if self.mac_of(ip) != Some(mac) {
            self.generation += 1;
        }
        if let Some(entry) = self.entries.get_mut(&ip) {
            entry.origin = origin;
            self.set_state(ip, state);
            return true;
        }
        let room = self.make_room(origin);
        if room {
            self.insert(ip, origin, state, Instant::ZERO);
        }
        room
    }

    /// Forgets `ip`, whatever is known of it.
    pub(super) fn forget(&mut self, ip: IpAddr) {
        if let Some(entry) = self.entries.remove(&ip) {
            self.generation += 1;
            self.timers.remove(&(entry.state.due().unwrap_or_default(), ip));
        }
    }

    fn insert(&mut self, ip: IpAddr, origin: Origin, state: State, used: Instant) {
        self.entries.insert(ip, Entry { origin, state, used });
        self.timers.extend(state.due().map(|due| (due, ip)));
    }

    fn set_state(&mut self, ip: IpAddr, state: State) {
        let Some(entry) = self.entries.get_mut(&ip) else { return };
        if let Some(due) = entry.state.due() {
            self.timers.remove(&(due, ip));
        }
        entry.state = state;
        self.timers.extend(state.due().map(|due| (due, ip)));
    }

    /// Evicts what is needed for one more entry of `origin`; false where nothing may be.
    fn make_room(&mut self, origin: Origin) -> bool {
        let learned = self.entries.values().filter(|entry| entry.origin == Origin::Learned).count();
        let full = self.entries.len() >= NEIGHBOURS_MAX;
        let corner_full = origin == Origin::Learned && learned >= LEARNED_MAX;
        if !full && !corner_full {
            return true;
        }
        // A stranger displaces only strangers.
        let limit = if origin == Origin::Learned { Origin::Learned } else { Origin::Asked };
        let idle = |entry: &Entry| entry.origin <= limit && entry.state.due().is_none();
        let victims = self.entries.iter().filter(|(_, entry)| idle(entry));
        let victim = victims.min_by_key(|(_, entry)| (entry.origin, entry.used)).map(|(&ip, _)| ip);
        if let Some(ip) = victim {
            self.counters.evicted += 1;
            self.entries.remove(&ip);
        }
        victim.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 9]);
    const OTHER: Mac = Mac([2, 0, 0, 0, 0, 8]);

    fn host(n: usize) -> IpAddr {
        Ipv4Addr::from_bits(0x0A00_0000 + n as u32).into()
    }

    fn at_millis(millis: u64) -> Instant {
        Instant::from_nanos(millis * MILLISECOND_NANOS)
    }

    /// The times in milliseconds at which questions go out until none is left.
    fn ask_times(cache: &mut Cache) -> Vec<(u64, Option<Mac>)> {
        let mut times = Vec::new();
        while let Some(due) = cache.next_due() {
            while let Some(ask) = cache.next_ask(due) {
                times.push((due.as_nanos() / MILLISECOND_NANOS, ask.probe));
            }
        }
        times
    }

    #[test]
    fn questions_are_fast_at_first_and_then_given_up() {
        let mut cache = Cache::default();
        assert_eq!(cache.lookup(host(1), at_millis(0)), Resolution::Pending);
        assert_eq!(ask_times(&mut cache), [(0, None), (50, None), (250, None), (1250, None)]);
        assert_eq!(cache.lookup(host(1), at_millis(2250)), Resolution::Unreachable);
        assert_eq!((cache.counters.unanswered, cache.generation()), (1, 1));
        assert_eq!(cache.lookup(host(1), at_millis(3250)), Resolution::Pending, "asked again after the hold");
        assert_eq!(cache.wanted().collect::<Vec<_>>(), [host(1)]);
    }

    #[test]
    fn an_answer_ends_the_questions_and_changes_the_generation() {
        let mut cache = Cache::default();
        cache.lookup(host(1), at_millis(0));
        assert!(cache.next_ask(at_millis(0)).is_some());
        assert!(cache.hear(host(1), MAC, true, at_millis(1)));
        assert_eq!((cache.next_due(), cache.generation()), (None, 1));
        assert_eq!(cache.lookup(host(1), at_millis(2)), Resolution::Known(MAC));
        assert!(cache.hear(host(1), MAC, true, at_millis(3)));
        assert_eq!(cache.generation(), 1, "nothing changed");
    }

    #[test]
    fn a_stale_address_stays_in_use_while_it_is_verified() {
        let mut cache = Cache::default();
        cache.lookup(host(1), at_millis(0));
        cache.hear(host(1), MAC, true, at_millis(0));
        cache.lookup(host(1), at_millis(29_999));
        assert_eq!(cache.next_due(), None);
        assert_eq!(cache.lookup(host(1), at_millis(30_000)), Resolution::Known(MAC));
        assert_eq!(cache.next_ask(at_millis(30_000)), Some(Ask { ip: host(1), probe: Some(MAC) }));
        assert_eq!(cache.lookup(host(1), at_millis(30_001)), Resolution::Known(MAC));
        cache.hear(host(1), MAC, true, at_millis(30_002));
        assert_eq!((cache.next_due(), cache.generation()), (None, 1));
        cache.lookup(host(1), at_millis(70_000));
        assert_eq!(ask_times(&mut cache).len(), ASK_WAIT_NANOS.len());
        assert_eq!(cache.lookup(host(1), at_millis(72_250)), Resolution::Unreachable);
    }

    #[test]
    fn hearing_what_is_known_changes_nothing() {
        let mut cache = Cache::default();
        cache.lookup(host(1), at_millis(0));
        cache.hear(host(1), MAC, true, at_millis(0));
        assert!(cache.hear(host(1), MAC, false, at_millis(1)));
        cache.lookup(host(1), at_millis(2));
        assert_eq!((cache.next_due(), cache.generation()), (None, 1), "still fresh");
    }

    #[test]
    fn the_neighbour_that_was_not_used_longest_makes_room() {
        let mut cache = Cache::default();
        for n in 0..NEIGHBOURS_MAX {
            cache.lookup(host(n), at_millis(n as u64));
            cache.hear(host(n), MAC, true, at_millis(n as u64));
        }
        cache.lookup(host(0), at_millis(5000));
        cache.lookup(host(9999), at_millis(5001));
        assert_eq!((cache.mac_of(host(0)), cache.mac_of(host(1))), (Some(MAC), None));
    }

    #[test]
    fn a_known_neighbour_may_move_and_an_unknown_one_is_not_heard() {
        let mut cache = Cache::default();
        assert!(!cache.hear(host(1), MAC, true, at_millis(0)));
        assert_eq!(cache.mac_of(host(1)), None);
        cache.lookup(host(1), at_millis(0));
        cache.hear(host(1), MAC, true, at_millis(0));
        assert!(cache.hear(host(1), OTHER, false, at_millis(1)));
        assert_eq!(cache.generation(), 2);
        // Not confirmed, hence verified at the next use.
        assert_eq!(cache.lookup(host(1), at_millis(2)), Resolution::Known(OTHER));
        assert_eq!(cache.next_ask(at_millis(2)), Some(Ask { ip: host(1), probe: Some(OTHER) }));
    }

    #[test]
    fn a_configured_neighbour_is_fixed() {
        let mut cache = Cache::default();
        assert!(cache.set(host(1), MAC, Origin::Configured));
        assert!(!cache.hear(host(1), OTHER, true, at_millis(1)));
        cache.learn(host(1), OTHER, at_millis(1));
        assert_eq!(cache.lookup(host(1), at_millis(1_000_000)), Resolution::Known(MAC));
        assert_eq!(cache.next_due(), None);
        cache.forget(host(1));
        assert_eq!(cache.lookup(host(1), at_millis(1_000_000)), Resolution::Pending);
        cache.forget(host(1));
        assert_eq!(cache.next_due(), None, "no timer outlives its entry");
    }

    #[test]
    fn strangers_displace_only_the_oldest_strangers() {
        let mut cache = Cache::default();
        cache.lookup(host(0), at_millis(0));
        cache.hear(host(0), MAC, true, at_millis(0));
        for n in 1..=LEARNED_MAX + 10 {
            cache.learn(host(n), MAC, at_millis(n as u64));
        }
        assert_eq!(cache.len(), 1 + LEARNED_MAX);
        assert_eq!((cache.counters.evicted, cache.generation()), (10, 1));
        assert_eq!((cache.mac_of(host(10)), cache.mac_of(host(11))), (None, Some(MAC)));
        assert_eq!(cache.mac_of(host(0)), Some(MAC));
        // Used here, a stranger is one no longer.
        cache.lookup(host(11), at_millis(500));
        (1000..1000 + 2 * LEARNED_MAX).for_each(|n| cache.learn(host(n), MAC, at_millis(n as u64)));
        assert_eq!(cache.mac_of(host(11)), Some(MAC));
    }

    #[test]
    fn the_cache_is_bounded_and_those_being_asked_stay() {
        let mut cache = Cache::default();
        for n in 0..NEIGHBOURS_MAX {
            assert_eq!(cache.lookup(host(n), at_millis(n as u64)), Resolution::Pending);
        }
        assert_eq!(cache.lookup(host(9999), at_millis(9999)), Resolution::Unreachable);
        assert!(!cache.set(host(9999), MAC, Origin::Configured));
        cache.learn(host(9999), MAC, at_millis(9999));
        assert_eq!((cache.len(), cache.counters.full), (NEIGHBOURS_MAX, 1));
        cache.hear(host(3), MAC, true, at_millis(9999));
        assert_eq!(cache.lookup(host(9999), at_millis(9999)), Resolution::Pending);
        assert_eq!((cache.mac_of(host(3)), cache.len()), (None, NEIGHBOURS_MAX));
    }
}
