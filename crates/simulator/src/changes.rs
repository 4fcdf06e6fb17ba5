//! Changes of the cluster while it runs: operators make configurations, members take them over and hand them on, and those who lie hand over others.
//!
//! Of four operators three must sign, and one of them signs whatever it is given. Members do what the real shell does, by the same rules
//! ([`crypto::takeover`]); here connections break all the time, so that everybody greets somebody else now and then. Nobody hears anything from whom it does
//! not know by the key that it shows.
//!
//! Checked are: that there is one configuration of each version, whoever goes by it; that nobody goes by one that too few honest operators signed, passes over
//! one, or goes back, also across a crash; that what anybody believes is signed by the keys of the configuration that it goes by, to a verifier that remembers
//! nothing; and that everybody comes to the newest one that anybody goes by.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use crypto::takeover::{Control, Fault};
use crypto::{
    Chain, Configuration, Holder, Operators, PeerVersions, Rejection, SecretKey, Signatures, SignedConfiguration, Takeover, Verifier,
};
use machine::Input;
use random::Random;
use types::codec::{Decode as _, Encode as _};
use types::{ClientId, Cluster, Digest, Party};

use crate::faults::Phase;
use crate::rights::Prefixes;
use crate::setting::Rights;
use crate::system::{Checker as _, System};
use crate::world::{Actor, Event, World, secret};

const MS: u64 = 1_000_000;
/// How many operators there are, and how many must sign. The last one signs whatever it is given.
const OPERATORS: usize = 4;
const NEEDED: u16 = 3;
/// How many places of a shard get another key in a run, at most: whoever slept through all of it still knows somebody who does not lie.
const KEYS_CHANGED_MAX: usize = 2;
/// How many good roots the second opinion remembers.
const VERIFIER_ROOTS_MAX: usize = 1 << 12;
/// How long until somebody greets another, in milliseconds, from and to.
const GREET_MS: (u64, u64) = (50, 600);
/// How long a replica goes on with its earlier key, in milliseconds, before its operator starts it with the new one.
const REKEY_MS: [u64; 4] = [1, 50, 500, 2_000];

/// What a member knows of configurations.
struct Member {
    takeover: Takeover,
    /// What its disk has of them.
    kept: Chain,
    /// The highest version by which it went.
    went_by: u64,
    peers: BTreeMap<Actor, PeerVersions>,
    secret: SecretKey,
}

/// What the operators do, and everybody knows of it.
pub(crate) struct Changes {
    random: Random,
    operators: Vec<SecretKey>,
    members: BTreeMap<Actor, Member>,
    /// What was signed by enough.
    newest: Chain,
    /// What was not, and is handed over by those who lie.
    signed_by_few: Vec<SignedConfiguration>,
    /// Which honest operators signed what.
    signed: BTreeMap<Digest, BTreeSet<u16>>,
    /// The configuration of each version that an honest member went by.
    gone_by: BTreeMap<u64, Digest>,
    /// How many places of each shard got another key.
    keys_changed: BTreeMap<u16, usize>,
    keys_drawn: u64,
    /// One that knows no other, for each configuration.
    verifiers: BTreeMap<Digest, Verifier>,
    /// The last key that was drawn for a replica's place.
    new_keys: BTreeMap<usize, Arc<SecretKey>>,
}

/// What is told of configurations.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub from: Actor,
    pub to: Actor,
    /// Whether the two have just connected.
    pub is_greeting: bool,
    /// A [`Control`].
    pub words: Bytes,
}

/// What the operators change.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// A replica gets another key.
    Rotate(usize),
    /// Another replica takes its place.
    Replace(usize),
    /// A client may do less or more.
    Limits(usize),
    /// A client may read and write other keys.
    Rights(usize),
    /// A client that cheats is revoked.
    Revoke(usize),
}

impl Changes {
    pub fn new(seed: u64, cluster: &Arc<Cluster>, secrets: impl Iterator<Item = (Actor, SecretKey)>) -> Self {
        let mut operators: Vec<SecretKey> = (0..OPERATORS).map(|at| secret(seed, &format!("operator {at}"))).collect();
        operators.sort_by_key(SecretKey::public);
        let holder = |key: &[u8; 32]| Holder { public_key: *key, address: String::new(), http: String::new() };
        let shard = |shard| cluster.replicas_of(shard).filter_map(|replica| cluster.replica_key(replica)).map(holder).collect();
        let holders = cluster.shards().map(shard).collect();
        let keys = Operators { needed: NEEDED, keys: operators.iter().map(SecretKey::public).collect() };
        let first = Configuration::first(cluster, "simulated", Signatures::Ed25519, holders, keys);
        let newest = Chain::new((**cluster).clone(), first);
        let member = |(actor, secret)| {
            let (takeover, kept) = (Takeover::new(newest.clone()), newest.clone());
            (actor, Member { takeover, kept, went_by: 0, peers: BTreeMap::new(), secret })
        };
        Self {
            random: Random::stream(seed, "changes"),
            operators,
            members: secrets.map(member).collect(),
            newest: newest.clone(),
            signed_by_few: Vec::new(),
            signed: BTreeMap::new(),
            gone_by: BTreeMap::new(),
            keys_changed: BTreeMap::new(),
            keys_drawn: 0,
            verifiers: BTreeMap::new(),
            new_keys: BTreeMap::new(),
        }
    }

    fn member(&mut self, actor: Actor) -> &mut Member {
        self.members.get_mut(&actor).expect("everybody is a member")
    }

    /// The version by which `actor` goes.
    fn version(&self, actor: Actor) -> u64 {
        self.members.get(&actor).map_or(0, |member| member.takeover.chain().version())
    }

    /// The next configuration, changed by `change`, with the signatures of these operators.
    fn make(&mut self, by: &[usize], change: impl FnOnce(&mut Configuration)) -> SignedConfiguration {
        let before = self.newest.newest();
        let mut configuration = Configuration { version: before.version + 1, previous: self.newest.digest(), ..before.clone() };
        change(&mut configuration);
        let mut signed = SignedConfiguration { configuration, signatures: Vec::new() };
        let digest = signed.configuration.digest(self.newest.id());
        for at in by {
            let signature = signed.configuration.sign(self.newest.id(), &before.operators, &self.operators[*at]);
            signed.add(signature.expect("it is one of them"));
            if *at < OPERATORS - 1 {
                self.signed.entry(digest).or_default().extend(u16::try_from(*at));
            }
        }
        signed
    }
}

impl<S: System> World<S> {
    fn party(&self, actor: Actor) -> Party {
        match actor {
            Actor::Replica(at) => Party::Replica(self.replicas[at].id),
            Actor::Client(at) => self.clients[at].party(),
        }
    }

    fn is_up(&self, actor: Actor) -> bool {
        match actor {
            Actor::Replica(at) => self.replicas[at].node.is_some(),
            Actor::Client(_) => true,
        }
    }

    fn follows_rules(&self, actor: Actor) -> bool {
        match actor {
            Actor::Replica(at) => self.replicas[at].is_honest(),
            Actor::Client(at) => self.clients[at].is_honest(),
        }
    }

    /// Whether `one` takes `other` for who it says it is, by the key that it shows.
    fn knows(&self, one: Actor, other: Actor) -> bool {
        let Some(changes) = &self.changes else { return true };
        let (Some(own), Some(peer)) = (changes.members.get(&one), changes.members.get(&other)) else { return true };
        let newest = own.takeover.chain().newest();
        let key = match self.party(other) {
            Party::Replica(id) => Some(newest.replicas[usize::from(id.shard.0)][usize::from(id.index)].public_key),
            Party::Client(id, _) => newest.clients.iter().find(|(client, _)| *client == id).map(|(_, permission)| permission.public_key),
        };
        key == Some(peer.secret.public())
    }

    /// Whether the two have a connection: each knows the other.
    pub fn are_connected(&self, one: Actor, other: Actor) -> bool {
        one == other || (self.knows(one, other) && self.knows(other, one))
    }

    /// Whether `to` may refuse for no fault of `from` what is signed badly: they go by different keys.
    pub fn may_differ(&self, from: Actor, to: Actor, rejection: &Rejection) -> bool {
        let Some(changes) = &self.changes else { return false };
        let is_ahead = changes.version(from) > changes.version(to);
        matches!(rejection, Rejection::EarlierKey { .. }) || (matches!(rejection, Rejection::BadSignature { .. }) && is_ahead)
    }

    /// The configuration by which `to` goes is what counts, to a verifier that knows no other.
    pub fn check_belief(&mut self, to: Actor, message: &S::Message) {
        let Some(changes) = &mut self.changes else { return };
        let chain = changes.members.get(&to).expect("everybody is a member").takeover.chain();
        let version = chain.version();
        let verifier = changes.verifiers.entry(chain.digest()).or_insert_with(|| {
            Verifier::new(Arc::new(chain.cluster()), Signatures::Ed25519, VERIFIER_ROOTS_MAX).expect("keys drawn from a seed are good keys")
        });
        if let Err(why) = verifier.verify(message.clone()) {
            let who = self.party(to);
            self.violation("configurations", format!("{who} goes by configuration {version}, and believed what is not good by it: {why}"));
        }
    }

    // The operators.

    /// The operators change something.
    pub fn reconfigure(&mut self) {
        let Some(change) = self.draw_change() else { return };
        let Some(mut changes) = self.changes.take() else { return };
        changes.keys_drawn += 1;
        let secret = Arc::new(secret(self.seed, &format!("new key {}", changes.keys_drawn)));
        let public_key = secret.public();
        let transactions = changes.random.pick(&[None, Some(4), Some(64)]);
        let prefixes = matches!(change, Change::Rights(_)).then(|| Prefixes::draw::<S>(&mut changes.random));
        let replicas: Vec<_> = self.replicas.iter().map(|replica| replica.id).collect();
        let apply = |next: &mut Configuration| match change {
            Change::Rotate(at) | Change::Replace(at) => {
                let id = replicas[at];
                next.replicas[usize::from(id.shard.0)][usize::from(id.index)].public_key = public_key;
            }
            Change::Limits(at) => next.clients[at].1.limits.transactions = transactions,
            Change::Rights(at) => {
                let permission = &mut next.clients[at].1;
                let Prefixes { read, write } = prefixes.unwrap_or_else(Prefixes::all);
                (permission.read_prefixes, permission.write_prefixes) = (read, write);
            }
            Change::Revoke(at) => next.clients.retain(|(client, _)| *client != ClientId(at as u64 + 1)),
        };
        // Now and then two are made at once. No honest operator signs both.
        let honest = changes.random.index(OPERATORS - 1);
        let others: Vec<usize> = (0..OPERATORS).filter(|at| *at != honest).collect();
        let is_contested = changes.random.chance(400);
        let signed = changes.make(if is_contested { &others } else { &[0, 1, 2] }, apply);
        if is_contested {
            let other = changes.make(&[honest, OPERATORS - 1], |next| next.clients.iter_mut().for_each(|(_, it)| it.limits.keys = Some(9)));
            changes.signed_by_few.push(other);
        }
        if let Err(error) = changes.newest.extend(signed) {
            let what = format!("what honest operators signed is refused: {error}");
            self.changes = Some(changes);
            return self.violation("configurations", what);
        }
        let version = changes.newest.version();
        self.counts.configurations += 1;
        self.trace.line(self.now, || format!("configuration {version}: {change:?}"));
        self.trace.mark(self.now, 0xc0f ^ version << 16);
        let some = changes.random.pick(&[1, 1, 3, replicas.len()]);
        let down_ms = changes.random.pick(&REKEY_MS);
        let mut to: Vec<usize> = (0..replicas.len()).collect();
        changes.random.shuffle(&mut to);
        if let Change::Rotate(at) | Change::Replace(at) = change {
            changes.new_keys.insert(at, Arc::clone(&secret));
        }
        self.changes = Some(changes);
        match change {
            Change::Rotate(at) => self.after(down_ms * MS, Event::Rekey { at, secret }),
            Change::Replace(at) => {
                // The earlier holder is switched off first.
                self.counts.disks_lost += 1;
                if let Err(error) = self.replicas[at].lose_disk_and_say_so() {
                    self.violation("disk", format!("{} cannot begin with an empty disk: {error}", replicas[at]));
                }
                self.after(down_ms * MS, Event::Rekey { at, secret });
            }
            Change::Limits(_) | Change::Rights(_) | Change::Revoke(_) => {}
        }
        to.into_iter().take(some).for_each(|at| self.apply(at));
    }

    fn draw_change(&mut self) -> Option<Change> {
        let (replicas, honest) = (self.replicas.len(), self.setting.clients);
        let cheats = self.setting.byzantine_clients.len();
        let changes = self.changes.as_mut()?;
        let (kind, at) = (changes.random.below(10), changes.random.index(replicas));
        let client = changes.random.index(honest);
        let revoked = changes.random.index(cheats.max(1)) + honest;
        let is_there = changes.newest.newest().clients.iter().any(|(id, _)| *id == ClientId(revoked as u64 + 1));
        // Where all may do everything, runs are what they were before rights were changed.
        if self.setting.rights == Rights::Some && changes.random.chance(500) {
            let client = changes.random.index(honest + cheats);
            return self.client_place(client).map(Change::Rights);
        }
        Some(match kind {
            0..=3 if self.may_change_key(at) => Change::Rotate(at),
            4..=5 if self.may_change_key(at) => Change::Replace(at),
            6 if cheats > 0 && is_there => Change::Revoke(revoked),
            _ => Change::Limits(self.client_place(client)?),
        })
    }

    /// The place of a client in the newest configuration.
    fn client_place(&self, client: usize) -> Option<usize> {
        let newest = self.changes.as_ref()?.newest.newest();
        newest.clients.iter().position(|(id, _)| *id == ClientId(client as u64 + 1))
    }

    /// What `bezant config apply` looks at: with those of the shard that are out, or do not go by the newest, no more than `f` would be out.
    fn may_change_key(&mut self, at: usize) -> bool {
        let Some(changes) = &self.changes else { return false };
        let (shard, newest) = (self.replicas[at].id.shard, changes.newest.version());
        let is_out = |other: usize| {
            let actor = Actor::Replica(other);
            let is_behind = changes.version(actor) < newest || self.replicas[other].node.is_none() || !self.has_newest_key(other);
            is_behind || self.is_at_fault(other) || self.replicas[other].is_being_rebuilt()
        };
        let others = (0..self.replicas.len()).filter(|other| self.replicas[*other].id.shard == shard && *other != at);
        let may = others.filter(|other| is_out(*other)).count() < self.setting.faults && self.has_newest_key(at) && !self.is_at_fault(at);
        let Some(changes) = &mut self.changes else { return false };
        let changed = changes.keys_changed.entry(shard.0).or_default();
        if !may || *changed >= KEYS_CHANGED_MAX {
            return false;
        }
        *changed += 1;
        true
    }

    fn has_newest_key(&self, at: usize) -> bool {
        let (Some(changes), id) = (&self.changes, self.replicas[at].id) else { return true };
        let key = changes.newest.newest().replicas[usize::from(id.shard.0)][usize::from(id.index)].public_key;
        changes.members.get(&Actor::Replica(at)).is_some_and(|member| member.secret.public() == key)
    }

    /// The operators hand a replica all that it lacks.
    pub fn apply(&mut self, at: usize) {
        let to = Actor::Replica(at);
        let Some(changes) = &self.changes else { return };
        let lacks = changes.newest.after(changes.version(to)).to_vec();
        for next in lacks {
            if self.is_up(to) {
                self.hear_configuration(to, None, next);
            }
        }
    }

    /// A replica's operator starts it with its new key. Its folder was brought up to date.
    pub fn rekey(&mut self, at: usize, secret: &SecretKey) {
        let (actor, id) = (Actor::Replica(at), self.replicas[at].id);
        let Some(changes) = &mut self.changes else { return };
        let newest = changes.newest.clone();
        let member = changes.member(actor);
        member.went_by = member.went_by.max(newest.version());
        (member.secret, member.kept) = (SecretKey::from_bytes(secret.to_bytes()), newest);
        self.trace.line(self.now, || format!("{id} gets its new key"));
        self.replicas[at].stop();
        self.restart(at);
    }

    // The members.

    /// A replica's process begins, by what its disk has; nothing when another has its place.
    pub fn comes_back(&mut self, at: usize) -> bool {
        let (actor, id) = (Actor::Replica(at), self.replicas[at].id);
        let is_honest = self.replicas[at].is_honest();
        let Some(changes) = &mut self.changes else { return true };
        let member = changes.member(actor);
        (member.takeover, member.peers) = (Takeover::new(member.kept.clone()), BTreeMap::new());
        let (version, went_by) = (member.takeover.chain().version(), member.went_by);
        let cluster = Arc::new(member.takeover.chain().cluster());
        let secret = SecretKey::from_bytes(member.secret.to_bytes());
        let is_holder = cluster.replica_key(id) == Some(&secret.public());
        let verifier =
            Arc::new(Verifier::new(cluster.clone(), Signatures::Ed25519, 1 << 14).expect("keys drawn from a seed are good keys"));
        let mut earlier: Vec<Cluster> = member.takeover.chain().clusters().skip(1).map(|(_, it)| it).collect();
        earlier.reverse();
        earlier.iter().for_each(|cluster| verifier.note_earlier(cluster));
        self.verifiers[at] = verifier.clone();
        self.checker.goes_by(id, &cluster);
        self.checker.has_taken_over(id);
        self.replicas[at].belongs_to(cluster, secret, verifier);
        if is_honest && version < went_by {
            self.violation("configurations", format!("{id} comes back with configuration {version}, and went by {went_by} before"));
        }
        is_holder
    }

    /// Somebody connects with somebody else.
    pub fn greet(&mut self, from: Actor) {
        let Some(changes) = &mut self.changes else { return };
        let to = Actor::Replica(changes.random.index(self.replicas.len()));
        let wait_ms = changes.random.between(GREET_MS.0, GREET_MS.1);
        let version = changes.version(from);
        changes.member(from).peers.insert(to, PeerVersions::default());
        if from != to && self.is_up(from) && self.is_up(to) {
            self.tell(from, to, true, &Control::Version(version));
        }
        if self.phase != Phase::Done {
            self.after(wait_ms * MS, Event::Greet(from));
        }
    }

    fn tell(&mut self, from: Actor, to: Actor, is_greeting: bool, control: &Control) {
        let words = Bytes::from(control.to_bytes());
        for delay in self.network.fate(from, to) {
            self.after(delay, Event::Tell(Told { from, to, is_greeting, words: words.clone() }));
        }
    }

    /// Hands `to` what it lacks, or, if `from` lies, something else.
    fn hand(&mut self, from: Actor, to: Actor) {
        if !self.follows_rules(from) && self.lie(from, to) {
            return;
        }
        let is_client = matches!(from, Actor::Client(_));
        let Some(changes) = self.changes.as_mut().filter(|_| !is_client) else { return };
        let member = changes.member(from);
        let peer = member.peers.entry(to).or_default();
        let mut handed = Vec::new();
        while let Some(next) = peer.next_of(member.takeover.chain().version()) {
            peer.is_handed(next);
            handed.extend(member.takeover.chain().after(next - 1).first().cloned());
        }
        handed.into_iter().for_each(|signed| self.tell(from, to, false, &Control::Configuration(Box::new(signed))));
    }

    /// A liar's ways. Gives whether it hands over nothing else.
    fn lie(&mut self, from: Actor, to: Actor) -> bool {
        let Some(changes) = &mut self.changes else { return false };
        let known = changes.version(to);
        let chain = changes.member(from).takeover.chain();
        let newest = chain.newest().clone();
        let (old, previous) = (chain.after(0).first().cloned(), chain.digest());
        let by_few = changes.signed_by_few.last().cloned();
        let control = match changes.random.below(7) {
            0 => Control::Version(u64::MAX),
            // An old one, as it was, and as if it were the next.
            1 => match old {
                Some(old) => Control::Configuration(Box::new(old)),
                None => return true,
            },
            2 => match old {
                Some(mut old) => {
                    (old.configuration.version, old.configuration.previous) = (known + 1, previous);
                    Control::Configuration(Box::new(old))
                }
                None => return true,
            },
            // What too few have signed: one operator signs anything.
            3 | 4 => match by_few {
                Some(few) => Control::Configuration(Box::new(few)),
                None => return true,
            },
            5 => {
                let next = Configuration { version: newest.version + 1, previous, clients: Vec::new(), ..newest.clone() };
                let mut signed = SignedConfiguration { configuration: next, signatures: Vec::new() };
                let signature = signed.configuration.sign(changes.newest.id(), &newest.operators, &changes.operators[OPERATORS - 1]);
                signature.into_iter().for_each(|signature| signed.add(signature));
                Control::Configuration(Box::new(signed))
            }
            _ => return changes.random.chance(500),
        };
        self.tell(from, to, false, &control);
        true
    }

    /// Somebody hears of configurations.
    pub fn hear_told(&mut self, told: Told) {
        let Told { from, to, is_greeting, words } = told;
        self.trace.mark(self.now, 0x7e11 ^ (words.len() as u64) << 16);
        if !self.is_up(to) || !self.are_connected(from, to) {
            return;
        }
        let Ok(control) = Control::from_bytes(words, self.cluster.id()) else { return };
        let Some(changes) = &mut self.changes else { return };
        let peer = changes.member(to).peers.entry(from).or_default();
        if is_greeting {
            *peer = PeerVersions::default();
        }
        match control {
            Control::Version(version) => peer.knows(version),
            Control::Configuration(signed) => {
                peer.hands_over(signed.configuration.version);
                self.hear_configuration(to, Some(from), *signed);
            }
        }
        if is_greeting {
            let version = self.changes.as_ref().map_or(0, |changes| changes.version(to));
            self.tell(to, from, false, &Control::Version(version));
        }
        self.hand(to, from);
    }

    /// Somebody is handed a configuration, by a peer or by the operators.
    fn hear_configuration(&mut self, to: Actor, from: Option<Actor>, signed: SignedConfiguration) {
        let Some(changes) = &mut self.changes else { return };
        let version = signed.configuration.version;
        // Now and then the disk is full. A client goes on without having written it.
        let is_full = matches!(to, Actor::Replica(_)) && changes.random.chance(60);
        let member = changes.member(to);
        match member.takeover.check(signed) {
            Ok(pending) => {
                if !is_full {
                    member.kept = pending.chain().clone();
                }
                let Ok(cluster) = member.takeover.go_by(pending, if is_full { Err(()) } else { Ok(()) }) else { return };
                if let Some(from) = from {
                    changes.member(to).peers.entry(from).or_default().knows(version);
                }
                self.goes_by(to, cluster);
            }
            Err(error) => {
                let fault = Fault::of(&error);
                if fault == Fault::None
                    && let Some(from) = from
                {
                    changes.member(to).peers.entry(from).or_default().knows(version);
                }
                let (who, by) = (self.party(to), from.map(|from| self.party(from)));
                self.trace.line(self.now, || format!("{who} refuses a configuration of {by:?}: {error}"));
                let is_honest = from.is_none_or(|from| self.follows_rules(from));
                if fault != Fault::None && is_honest {
                    self.violation("configurations", format!("{who} refuses what {by:?}, which is honest, handed over: {error}"));
                }
            }
        }
    }

    /// Somebody goes by a new configuration.
    fn goes_by(&mut self, actor: Actor, cluster: Arc<Cluster>) {
        let who = self.party(actor);
        self.check_gone_by(actor);
        let version = self.changes.as_ref().map_or(0, |changes| changes.version(actor));
        self.trace.line(self.now, || format!("{who} goes by configuration {version}"));
        let verifier = match actor {
            Actor::Replica(at) => &self.verifiers[at],
            Actor::Client(at) => &self.verifiers[self.replicas.len() + at],
        };
        verifier.reconfigure(cluster.clone()).expect("keys drawn from a seed are good keys");
        match actor {
            Actor::Client(at) => {
                if let Some(command) = S::client_reconfigured(cluster) {
                    self.give(at, Input::Command(command));
                }
            }
            Actor::Replica(at) if self.knows(actor, actor) => {
                self.checker.goes_by(self.replicas[at].id, &cluster);
                self.replicas[at].commands.extend(S::replica_reconfigured(cluster));
                self.want_turn(at);
            }
            // Another key has its place: it stops.
            Actor::Replica(at) => self.replicas[at].stop(),
        }
        let everybody: Vec<Actor> = self.changes.iter().flat_map(|changes| changes.members.keys().copied()).collect();
        let is_peer = |other: &Actor| *other != actor && (matches!(actor, Actor::Replica(_)) || matches!(other, Actor::Replica(_)));
        for other in everybody.into_iter().filter(is_peer) {
            if self.are_connected(actor, other) {
                self.tell(actor, other, false, &Control::Version(version));
                self.hand(actor, other);
            }
        }
    }

    fn check_gone_by(&mut self, actor: Actor) {
        if !self.follows_rules(actor) {
            return;
        }
        let who = self.party(actor);
        let Some(changes) = &mut self.changes else { return };
        let id = changes.newest.id();
        let member = changes.members.get_mut(&actor).expect("everybody is a member");
        let newest = member.takeover.chain().newest();
        let (version, digest, before) = (newest.version, newest.digest(id), member.went_by);
        member.went_by = member.went_by.max(version);
        // A client's folder may not have been written.
        let is_next = version == before + 1 || (matches!(actor, Actor::Client(_)) && version <= before);
        let signers = changes.signed.get(&digest).map_or(0, BTreeSet::len);
        let first = *changes.gone_by.entry(version).or_insert(digest);
        if !is_next {
            self.violation("configurations", format!("{who} went by configuration {before}, and then by {version}"));
        }
        if first != digest {
            self.violation("configurations", format!("{who} goes by another configuration {version} than somebody else"));
        }
        if signers + 1 < usize::from(NEEDED) {
            self.violation("configurations", format!("{who} goes by configuration {version}, which {signers} honest operators signed"));
        }
    }

    /// Who does not go by the newest configuration that anybody goes by.
    pub fn behind(&self) -> Vec<String> {
        let Some(changes) = &self.changes else { return Vec::new() };
        let honest = |actor: &&Actor| self.follows_rules(**actor) && self.is_up(**actor);
        let newest = changes.gone_by.keys().next_back().copied().unwrap_or(0);
        let behind = changes.members.keys().filter(honest).filter(|actor| changes.version(**actor) < newest);
        behind.map(|actor| format!("{} goes by configuration {} of {newest}", self.party(*actor), changes.version(*actor))).collect()
    }

    /// The faults are over: operators see to it that everybody has its key, and knows of it.
    pub fn settle(&mut self) {
        let Some(changes) = &self.changes else { return };
        let keys: Vec<(usize, Arc<SecretKey>)> = changes.new_keys.iter().map(|(at, key)| (*at, Arc::clone(key))).collect();
        for (at, key) in keys {
            if !self.has_newest_key(at) {
                self.rekey(at, &key);
            }
        }
        (0..self.replicas.len()).for_each(|at| self.apply(at));
    }
}
