//! The neighbour cache: the Ethernet address of each IP address on the link.
//!
//! ```text
//!              lookup                    reply
//!   (none) ----------> Incomplete ------------------> Known <------------- reply --------------+
//!       ^                  |  no reply within           |  lookup after FRESH_NANOS, or claim  |
//!       | evicted          v  ASK_WAIT_NANOS            v  of another Ethernet address         |
//!       +------------- Failed <---- no reply ----- Probing: unicast queries, then broadcast ---+
//!                          |  lookup after FAILED_HOLD_NANOS, or a claim
//!                          +-------> Incomplete
//! ```
//!
//! If the cache is full, an entry in state `Failed` or (not drawn) `Known` is evicted to make room for a new entry.
//! Configured entries are not evicted.
//!
//! A received frame never creates an entry, so received frames cannot fill the cache. A received frame changes the
//! Ethernet address of an entry only if the frame is a reply to an outstanding query. A verification (state `Probing`)
//! first sends unicast queries to the Ethernet address in use; this address is replaced only if these queries got no
//! reply ([`PROBE_WAIT_NANOS`]). A claim starts a verification, at most once per [`VERIFY_INTERVAL_NANOS`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::id::Mac;
use crate::time::Instant;

/// Largest number of cache entries; a subnet of a cluster commonly has fewer hosts.
pub(crate) const NEIGHBOURS_MAX: usize = 1024;

const MILLISECOND_NANOS: u64 = 1_000_000;

/// Wait times for the replies to successive broadcast or multicast queries. The first two wait times are short, so that
/// a lost query does not delay a connection for long.
const ASK_WAIT_NANOS: [u64; 4] =
    [50 * MILLISECOND_NANOS, 200 * MILLISECOND_NANOS, 1000 * MILLISECOND_NANOS, 1000 * MILLISECOND_NANOS];
/// Wait times for the replies to successive unicast queries to the Ethernet address in use. Broadcast or multicast
/// queries follow.
pub(crate) const PROBE_WAIT_NANOS: [u64; 3] =
    [50 * MILLISECOND_NANOS, 100 * MILLISECOND_NANOS, 200 * MILLISECOND_NANOS];
/// Minimum time from a reply to the start of the next verification because of a claim: 1 s.
pub(crate) const VERIFY_INTERVAL_NANOS: u64 = 1000 * MILLISECOND_NANOS;
/// If the last reply is at least this old, a lookup starts a verification: 30 s (RFC 4861, REACHABLE_TIME).
const FRESH_NANOS: u64 = 30_000 * MILLISECOND_NANOS;
/// After an entry fails, lookups of the entry return `Unreachable` for this time, and schedule no query: 1 s.
const FAILED_HOLD_NANOS: u64 = 1000 * MILLISECOND_NANOS;

const FOREVER: Instant = Instant::from_nanos(u64::MAX);

/// Result of looking up the Ethernet address for an IP address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Destination MAC of frames to the IP address: the MAC of the neighbour or of the gateway.
    Known(Mac),
    /// The MAC is not known yet: a query is due or outstanding. The caller resolves the IP address again when
    /// [`super::Neighbour::generation`] has changed.
    Pending,
    /// No neighbour replied, the cache is full, or the address is neither on the link nor behind a gateway.
    Unreachable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Origin {
    /// The Ethernet address is from a reply or from the kernel. The entry may be evicted to make room for a new entry.
    Asked,
    /// The Ethernet address is from the configuration. The entry is neither evicted nor changed by received frames.
    Configured,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// `asks` broadcast or multicast queries have been sent. At `due` the next query is sent; if all queries have been
    /// sent, the entry fails.
    Incomplete {
        asks: usize,
        due: Instant,
    },
    /// `mac` is in use. A lookup at `fresh_until` or later starts a verification. After a claim of another Ethernet
    /// address, a verification starts at `settled_until`, or at once if `settled_until` has passed.
    Known {
        mac: Mac,
        fresh_until: Instant,
        settled_until: Instant,
    },
    /// `mac` is in use and is being verified; `claimed` is true if a claim started this verification. `asks` queries
    /// have been sent, unicast first, then broadcast or multicast. At `due` the next query is sent; if all queries have
    /// been sent, the entry fails.
    Probing {
        mac: Mac,
        asks: usize,
        due: Instant,
        claimed: bool,
    },
    Failed {
        until: Instant,
    },
}

impl State {
    fn known(mac: Mac, now: Instant) -> State {
        let (fresh_until, settled_until) =
            (now.plus_nanos(FRESH_NANOS), now.plus_nanos(VERIFY_INTERVAL_NANOS));
        State::Known { mac, fresh_until, settled_until }
    }

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

    /// Returns the destination of the outstanding query: `Some(None)` for broadcast or multicast, `None` if no query is
    /// outstanding.
    fn asked(self) -> Option<Option<Mac>> {
        match self {
            State::Incomplete { asks, .. } if asks > 0 => Some(None),
            State::Probing { mac, asks, .. } if asks > 0 => {
                Some((asks <= PROBE_WAIT_NANOS.len()).then_some(mac))
            }
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    origin: Origin,
    state: State,
    used: Instant,
}

/// A query to send for `ip`: unicast to `probe`, the Ethernet address to verify; broadcast or multicast if `probe` is
/// `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) ip: IpAddr,
    pub(super) probe: Option<Mac>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CacheCounters {
    pub(super) evicted: u64,
    pub(super) unanswered: u64,
    pub(super) full: u64,
    pub(super) moves_claimed: u64,
    pub(super) moves_refuted: u64,
    pub(super) moves_followed: u64,
}

/// `entries` and `timers` are sorted, so that queries are sent in the same order in each run of a simulation.
#[derive(Debug, Default)]
pub(super) struct Cache {
    entries: BTreeMap<IpAddr, Entry>,
    timers: BTreeSet<(Instant, IpAddr)>,
    generation: u64,
    pub(super) counters: CacheCounters,
}

impl Cache {
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Increments the generation after a change of a gateway, because this change may change the results of
    /// [`super::Neighbour::resolve`].
    pub(super) fn renew(&mut self) {
        self.generation += 1;
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.timers.first().map(|&(due, _)| due)
    }

    pub(super) fn mac_of(&self, ip: IpAddr) -> Option<Mac> {
        self.entries.get(&ip)?.state.mac()
    }

    pub(super) fn contains(&self, ip: IpAddr) -> bool {
        self.entries.contains_key(&ip)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Iterates over the neighbours with an outstanding or due query, in the order in which their timers expire.
    pub(super) fn wanted(&self) -> impl Iterator<Item = IpAddr> {
        self.timers.iter().map(|&(_, ip)| ip)
    }

    /// Looks up the neighbour `ip`. Schedules a query if `ip` has no entry, or an entry that is due for verification,
    /// or an entry that failed `FAILED_HOLD_NANOS` ago or earlier.
    pub(super) fn lookup(&mut self, ip: IpAddr, now: Instant) -> Resolution {
        let Some(entry) = self.entries.get_mut(&ip) else {
            return self.ask_first(ip, now);
        };
        entry.used = now;
        match entry.state {
            State::Incomplete { .. } => Resolution::Pending,
            State::Probing { mac, .. } => Resolution::Known(mac),
            State::Known { mac, fresh_until, .. } => {
                if now >= fresh_until {
                    self.set_state(ip, State::Probing { mac, asks: 0, due: now, claimed: false });
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
        if !self.make_room() {
            self.counters.full += 1;
            return Resolution::Unreachable;
        }
        self.insert(ip, Origin::Asked, State::Incomplete { asks: 0, due: now }, now);
        Resolution::Pending
    }

    /// Returns a query that is due at `now`, and rearms the timer of its entry. If the timer of an entry expires after
    /// all queries of the entry have been sent, the entry becomes `Failed`.
    pub(super) fn next_ask(&mut self, now: Instant) -> Option<Ask> {
        while let Some(&(due, ip)) = self.timers.first() {
            if due > now {
                return None;
            }
            let state = self.entries.get(&ip)?.state;
            let Some(asking) = next_question(state, now) else {
                self.give_up(ip, now);
                continue;
            };
            self.set_state(ip, asking);
            return Some(Ask { ip, probe: asking.asked().flatten() });
        }
        None
    }

    pub(super) fn give_up(&mut self, ip: IpAddr, now: Instant) {
        if self.entries.get(&ip).is_some_and(|entry| entry.origin == Origin::Asked) {
            self.counters.unanswered += 1;
            self.generation += 1;
            self.set_state(ip, State::Failed { until: now.plus_nanos(FAILED_HOLD_NANOS) });
        }
    }

    /// Processes a reply that gives `mac` for `ip`. If no query for `ip` is outstanding, or the outstanding query was
    /// sent to another Ethernet address, processes the reply as a claim. Returns false if `ip` has no entry, or if the
    /// reply contradicts an entry of the configuration.
    pub(super) fn on_answer(&mut self, ip: IpAddr, mac: Mac, now: Instant) -> bool {
        let Some(state) = self.entries.get(&ip).map(|entry| entry.state) else { return false };
        if state.asked().is_none_or(|asked| asked.is_some_and(|asked| asked != mac)) {
            return self.on_claim(ip, mac, now);
        }
        if let State::Probing { mac: old, claimed, .. } = state {
            self.counters.moves_followed += u64::from(old != mac);
            self.counters.moves_refuted += u64::from(claimed && old == mac);
        }
        self.set_state(ip, State::known(mac, now));
        self.generation += u64::from(state.mac() != Some(mac));
        true
    }

    /// Processes a claim of `mac` for `ip`. Returns false if `ip` has no entry, or if the claim contradicts an entry of
    /// the configuration.
    pub(super) fn on_claim(&mut self, ip: IpAddr, mac: Mac, now: Instant) -> bool {
        let Some(entry) = self.entries.get(&ip) else { return false };
        let state = entry.state;
        let differs = state.mac().is_some_and(|known| known != mac);
        self.counters.moves_claimed += u64::from(differs);
        if entry.origin == Origin::Configured {
            return !differs;
        }
        match state {
            State::Known { mac, settled_until, .. } if differs => {
                let due = settled_until.max(now);
                self.set_state(ip, State::Probing { mac, asks: 0, due, claimed: true });
            }
            // Because the claim shows that the neighbour is up, a query is due at once, not after `FAILED_HOLD_NANOS`.
            State::Failed { .. } => self.set_state(ip, State::Incomplete { asks: 0, due: now }),
            State::Known { .. } | State::Probing { .. } | State::Incomplete { .. } => {}
        }
        true
    }

    /// Sets the Ethernet address of `ip`; no later lookup or claim starts a verification of `ip`. Returns false if
    /// the cache is full and no entry may be evicted.
    pub(super) fn set(&mut self, ip: IpAddr, mac: Mac, origin: Origin) -> bool {
        let state = State::Known { mac, fresh_until: FOREVER, settled_until: FOREVER };
        if self.mac_of(ip) != Some(mac) {
            self.generation += 1;
        }
        if let Some(entry) = self.entries.get_mut(&ip) {
            entry.origin = origin;
            self.set_state(ip, state);
            return true;
        }
        let room = self.make_room();
        if room {
            self.insert(ip, origin, state, Instant::ZERO);
        }
        room
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

    /// If the cache is full, evicts the entry whose last lookup is the oldest. Configured entries, and entries with a
    /// due or outstanding query, are not evicted. Returns false if no entry may be evicted.
    fn make_room(&mut self) -> bool {
        if self.entries.len() < NEIGHBOURS_MAX {
            return true;
        }
        let idle = |entry: &Entry| entry.origin == Origin::Asked && entry.state.due().is_none();
        let victims = self.entries.iter().filter(|(_, entry)| idle(entry));
        let victim = victims.min_by_key(|(_, entry)| entry.used).map(|(&ip, _)| ip);
        if let Some(ip) = victim {
            self.counters.evicted += 1;
            self.entries.remove(&ip);
        }
        victim.is_some()
    }
}

/// Returns the state after a query is sent at `now`; `None` if all queries have been sent.
fn next_question(state: State, now: Instant) -> Option<State> {
    match state {
        State::Incomplete { asks, .. } => {
            let due = now.plus_nanos(*ASK_WAIT_NANOS.get(asks)?);
            Some(State::Incomplete { asks: asks + 1, due })
        }
        State::Probing { mac, asks, claimed, .. } => {
            let wait_nanos = PROBE_WAIT_NANOS.iter().chain(&ASK_WAIT_NANOS).nth(asks)?;
            Some(State::Probing { mac, asks: asks + 1, due: now.plus_nanos(*wait_nanos), claimed })
        }
        State::Known { .. } | State::Failed { .. } => None,
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
        assert!(cache.on_answer(host(1), MAC, at_millis(1)));
        assert_eq!((cache.next_due(), cache.generation()), (None, 1));
        assert_eq!(cache.lookup(host(1), at_millis(2)), Resolution::Known(MAC));
        assert!(cache.on_answer(host(1), MAC, at_millis(3)));
        assert_eq!(cache.generation(), 1, "nothing changed");
    }

    fn cache_with_host_1() -> Cache {
        let mut cache = Cache::default();
        answered(&mut cache, 1, MAC, 0);
        cache
    }

    fn answered(cache: &mut Cache, n: usize, mac: Mac, millis: u64) {
        cache.lookup(host(n), at_millis(millis));
        while cache.next_ask(at_millis(millis)).is_some() {}
        assert!(cache.on_answer(host(n), mac, at_millis(millis)));
    }

    #[test]
    fn a_stale_address_stays_in_use_while_it_is_verified() {
        let mut cache = cache_with_host_1();
        cache.lookup(host(1), at_millis(29_999));
        assert_eq!(cache.next_due(), None);
        assert_eq!(cache.lookup(host(1), at_millis(30_000)), Resolution::Known(MAC));
        assert_eq!(cache.next_ask(at_millis(30_000)), Some(Ask { ip: host(1), probe: Some(MAC) }));
        assert_eq!(cache.lookup(host(1), at_millis(30_001)), Resolution::Known(MAC));
        cache.on_answer(host(1), MAC, at_millis(30_002));
        assert_eq!((cache.next_due(), cache.generation(), cache.counters.moves_refuted), (None, 1, 0));
        cache.lookup(host(1), at_millis(70_000));
        let asked = ask_times(&mut cache);
        assert_eq!(asked[..3], [(70_000, Some(MAC)), (70_050, Some(MAC)), (70_150, Some(MAC))]);
        assert_eq!(asked[3..], [(70_350, None), (70_400, None), (70_600, None), (71_600, None)]);
        assert_eq!(cache.lookup(host(1), at_millis(72_600)), Resolution::Unreachable);
    }

    #[test]
    fn a_claim_of_what_is_known_changes_nothing() {
        let mut cache = cache_with_host_1();
        assert!(cache.on_claim(host(1), MAC, at_millis(1)));
        cache.lookup(host(1), at_millis(2));
        assert_eq!((cache.next_due(), cache.generation()), (None, 1), "still fresh");
        assert_eq!(cache.counters.moves_claimed, 0);
    }

    #[test]
    fn the_neighbour_that_was_not_used_longest_makes_room() {
        let mut cache = Cache::default();
        (0..NEIGHBOURS_MAX).for_each(|n| answered(&mut cache, n, MAC, n as u64));
        cache.lookup(host(0), at_millis(5000));
        cache.lookup(host(9999), at_millis(5001));
        assert_eq!((cache.mac_of(host(0)), cache.mac_of(host(1))), (Some(MAC), None));
        assert_eq!((cache.len(), cache.counters.evicted), (NEIGHBOURS_MAX, 1));
    }

    #[test]
    fn a_claim_is_refuted_by_the_old_address() {
        let mut cache = cache_with_host_1();
        assert!(cache.on_claim(host(1), OTHER, at_millis(2000)));
        assert_eq!(cache.lookup(host(1), at_millis(2000)), Resolution::Known(MAC));
        assert_eq!(cache.next_ask(at_millis(2000)), Some(Ask { ip: host(1), probe: Some(MAC) }));
        // During the verification of `MAC`, the Ethernet address in use for the neighbour, a reply with a different
        // Ethernet address counts as a claim.
        assert!(cache.on_answer(host(1), OTHER, at_millis(2001)));
        assert_eq!(cache.mac_of(host(1)), Some(MAC));
        assert!(cache.on_answer(host(1), MAC, at_millis(2002)));
        assert_eq!((cache.next_due(), cache.generation()), (None, 1));
        let counters = cache.counters;
        assert_eq!((counters.moves_claimed, counters.moves_refuted, counters.moves_followed), (2, 1, 0));
    }

    #[test]
    fn claims_cost_one_verification_in_an_interval() {
        let mut cache = cache_with_host_1();
        let mut probes = 0;
        for millis in 0..10_000 {
            cache.on_claim(host(1), OTHER, at_millis(millis));
            while cache.next_ask(at_millis(millis)).is_some() {
                probes += 1;
                cache.on_answer(host(1), MAC, at_millis(millis));
            }
        }
        assert_eq!((probes, cache.mac_of(host(1))), (9, Some(MAC)));
    }

    #[test]
    fn a_neighbour_that_moved_is_followed_when_its_old_address_is_silent() {
        let mut cache = cache_with_host_1();
        // The claim is received 1 ms after a reply. The verification does not start at once, but
        // `VERIFY_INTERVAL_NANOS` after the reply.
        assert!(cache.on_claim(host(1), OTHER, at_millis(1)));
        let mut asks = Vec::new();
        for millis in 1..3000 {
            while let Some(ask) = cache.next_ask(at_millis(millis)) {
                asks.push((millis, ask.probe));
                if ask.probe.is_none() {
                    assert!(cache.on_answer(host(1), OTHER, at_millis(millis)));
                }
            }
        }
        assert_eq!(asks, [(1000, Some(MAC)), (1050, Some(MAC)), (1150, Some(MAC)), (1350, None)]);
        assert_eq!(cache.lookup(host(1), at_millis(3000)), Resolution::Known(OTHER));
        assert_eq!((cache.generation(), cache.counters.moves_followed), (2, 1));
    }

    #[test]
    fn an_answer_counts_only_where_a_question_is_under_way() {
        let mut cache = Cache::default();
        assert!(!cache.on_answer(host(1), MAC, at_millis(0)), "nobody asked");
        cache.lookup(host(1), at_millis(0));
        cache.on_answer(host(1), OTHER, at_millis(0));
        assert_eq!(cache.mac_of(host(1)), None, "the question has not been sent");
        cache.on_claim(host(1), OTHER, at_millis(0));
        assert_eq!(cache.mac_of(host(1)), None, "no answer");
    }

    #[test]
    fn a_failed_neighbour_that_shows_up_is_asked_at_once() {
        let mut cache = cache_with_host_1();
        cache.lookup(host(1), at_millis(40_000));
        ask_times(&mut cache);
        assert_eq!(cache.lookup(host(1), at_millis(42_700)), Resolution::Unreachable);
        assert!(cache.on_claim(host(1), OTHER, at_millis(42_701)));
        assert_eq!(cache.next_ask(at_millis(42_701)), Some(Ask { ip: host(1), probe: None }));
        assert!(cache.on_answer(host(1), OTHER, at_millis(42_702)));
        assert_eq!(cache.mac_of(host(1)), Some(OTHER));
    }

    #[test]
    fn a_configured_neighbour_is_fixed() {
        let mut cache = Cache::default();
        assert!(cache.set(host(1), MAC, Origin::Configured));
        assert!(!cache.on_answer(host(1), OTHER, at_millis(1)));
        assert!(!cache.on_claim(host(1), OTHER, at_millis(1)));
        assert_eq!(cache.lookup(host(1), at_millis(1_000_000)), Resolution::Known(MAC));
        assert_eq!(cache.next_due(), None);
    }

    #[test]
    fn the_cache_is_bounded_and_those_being_asked_stay() {
        let mut cache = Cache::default();
        for n in 0..NEIGHBOURS_MAX {
            assert_eq!(cache.lookup(host(n), at_millis(n as u64)), Resolution::Pending);
        }
        assert_eq!(cache.lookup(host(9999), at_millis(9999)), Resolution::Unreachable);
        assert!(!cache.set(host(9999), MAC, Origin::Configured));
        assert_eq!((cache.len(), cache.counters.full), (NEIGHBOURS_MAX, 1));
        while cache.next_ask(at_millis(9999)).is_some_and(|ask| ask.ip != host(3)) {}
        assert!(cache.on_answer(host(3), MAC, at_millis(9999)));
        assert_eq!(cache.lookup(host(9999), at_millis(9999)), Resolution::Pending);
        assert_eq!((cache.mac_of(host(3)), cache.len()), (None, NEIGHBOURS_MAX));
    }
}
