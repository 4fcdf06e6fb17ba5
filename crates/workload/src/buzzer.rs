//! Buzzer: the social network of Augustus' paper (§4.4), by the application's own transactions (`buzzer-model`).
//!
//! There are two sets of users. Of one each follows from 1 to 20 others, as many as Zipf's law with exponent 1 draws, and has written a few posts;
//! the other are as yet alone. The paper's four benchmarks are:
//!
//! | workload | on | what |
//! |---|---|---|
//! | `buzzer-post` | users alone | posts of 140 letters |
//! | `buzzer-follow` | users alone | one follows another |
//! | `buzzer-timeline` | the network | a timeline of ten posts |
//! | `buzzer` | the network | of a thousand 850 timelines, 75 posts, 75 follows |
//!
//! All choices of users are uniform. The paper does not say how its were drawn, nor whether its network had posts.
//!
//! What must hold: in every timeline stands each post of those followed that was acknowledged to the same process before the timeline was asked for (or
//! ten newer ones). In the end, whoever is followed is followed on both sides, counts are what they count, no acknowledged post is missing, and
//! timelines are what their parts are.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use buzzer_model::{Clock, Followed, Keys, Name, Network, Part as PartOf, PostId, PostText, Shown};
use client::{Client, Transaction};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value as Json, json};
use tokio::task::JoinSet;
use types::{Key, Value};

use crate::findings::Findings;
use crate::keys::draw_weighted;
use crate::load::{Part, load};
use crate::marker::{Marker, Sizes, sizes, text};
use crate::{Done, Error, LoopClient, Progress, Readiness, Verdict, Work, Workload, Zipf, mix, persist};

/// The fewest users of each set: one follows up to twenty others.
pub const BUZZERS_MIN: u64 = 32;
/// The most.
pub const BUZZERS_MAX: u64 = 10_000_000;
/// How many a user follows at first, at most (§4.4).
const FOLLOWED_MAX: u64 = 20;
/// How many posts each of the network has written before.
const POSTS_BEFORE: u64 = 5;
/// When the first of these was written.
const BEFORE_US: u64 = 1_600_000_000_000_000;
/// How many posts a timeline shows, as in Retwis.
const SHOWN: usize = 10;
/// How long a post is.
const POST_CHARS: usize = 140;
/// What says how the tables were loaded.
const MARKER: Marker = Marker("bench-buzzer");
/// What says that they are being loaded, and how.
const UNFINISHED: Marker = Marker("bench-buzzer/unfinished");
/// How many rows an audit reads at once, and into how many pieces it cuts the users.
const ROWS_A_SCAN: usize = 1_000;
const PIECES: u64 = 16;
/// How many timelines are put together again from their parts.
const TIMELINES_CHECKED: u64 = 100;

/// Which of the paper's benchmarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuzzerMix {
    /// Only posts, of users who are alone.
    Post,
    /// Only follows, of the same.
    Follow,
    /// Only timelines, of the network.
    Timeline,
    /// All three, of the network.
    Mix,
}

impl BuzzerMix {
    /// The kinds of transactions.
    pub const KINDS: [&str; 3] = ["post", "follow", "timeline"];

    /// What it is called.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Post => "buzzer-post",
            Self::Follow => "buzzer-follow",
            Self::Timeline => "buzzer-timeline",
            Self::Mix => "buzzer",
        }
    }

    /// Draws one of the kinds.
    pub fn draw(self, rng: &mut SmallRng) -> usize {
        draw_weighted(&self.weights(), rng)
    }

    /// How often each of the kinds comes, of two hundred.
    fn weights(self) -> [u32; 3] {
        match self {
            Self::Post => [200, 0, 0],
            Self::Follow => [0, 200, 0],
            Self::Timeline => [0, 0, 200],
            Self::Mix => [15, 15, 170],
        }
    }

    /// Whether its users are of the network.
    #[must_use]
    pub fn is_of_network(self) -> bool {
        matches!(self, Self::Timeline | Self::Mix)
    }
}

/// The Buzzer workload.
#[derive(Debug)]
pub struct Buzzer {
    mix: BuzzerMix,
    users: u64,
    seed: u64,
    keys: Keys,
    clock: Arc<Clock>,
    /// When the run began, by the posts' clock.
    began_us: AtomicU64,
    /// By user: what was acknowledged of their posts.
    posts: Vec<Mutex<Posts>>,
    /// How many acknowledgements there were.
    acknowledged: AtomicU64,
    /// How many posts there may be besides.
    unknown: AtomicU64,
}

/// What was acknowledged of a user's posts.
#[derive(Clone, Copy, Debug, Default)]
struct Posts {
    count: u32,
    last: Option<Last>,
}

/// The last of them.
#[derive(Clone, Copy, Debug)]
struct Last {
    id: PostId,
    /// The number of its acknowledgement.
    number: u64,
    /// Whose it was: only within one process's session, later is later on every engine.
    client: usize,
}

impl Buzzer {
    /// A network of `users`, and as many who are alone.
    ///
    /// # Errors
    /// [`Error::Settings`] when there are too few or too many.
    pub fn new(mix: BuzzerMix, users: u64, seed: u64) -> Result<Self, Error> {
        if !(BUZZERS_MIN..=BUZZERS_MAX).contains(&users) {
            return Err(Error::Settings(format!("buzzer has from {BUZZERS_MIN} to {BUZZERS_MAX} users, not {users}")));
        }
        Ok(Self {
            mix,
            users,
            seed,
            keys: Keys::under("bench-buzzer"),
            clock: Arc::new(Clock::default()),
            began_us: AtomicU64::new(0),
            posts: (0..users).map(|_| Mutex::default()).collect(),
            acknowledged: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
        })
    }

    fn network(&self, client: &Client) -> Network {
        Network::new(client.clone(), self.keys.clone(), Arc::clone(&self.clock))
    }

    fn sizes(&self) -> Sizes {
        sizes([("keys", self.users)])
    }

    fn user(&self, index: u64) -> Name {
        user(index, self.mix.is_of_network())
    }

    fn posts(&self, index: u64) -> MutexGuard<'_, Posts> {
        self.posts[index as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn post(&self, client: &Client, author: u64, text: &PostText) -> Result<Done, Error> {
        // Until there is an answer, it may be there; for ever, when this is dropped.
        self.unknown.fetch_add(1, Ordering::Relaxed);
        let posted = self.network(client).post(&self.user(author), text).await;
        if !matches!(posted, Err(client::Error::OutcomeUnknown { .. })) {
            self.unknown.fetch_sub(1, Ordering::Relaxed);
        }
        let posted = posted?;
        let mut posts = self.posts(author);
        posts.count += 1;
        let number = self.acknowledged.fetch_add(1, Ordering::SeqCst) + 1;
        // Two posts of one author may be acknowledged in another order than they were begun in.
        if posts.last.is_none_or(|last| last.id.time_us < posted.value.time_us) {
            posts.last = Some(Last { id: posted.value, number, client: address(client) });
        }
        Ok(Done::committed(&posted))
    }

    async fn follow(&self, client: &Client, one: u64, other: u64) -> Result<Done, Error> {
        let followed = self.network(client).follow(&self.user(one), &self.user(other), 1).await?;
        let broken = (followed.value == Followed::Nobody).then(|| format!("{} has no account", self.user(other)));
        Ok(Done { broken, ..Done::committed(&followed) })
    }

    async fn timeline(&self, client: &Client, reader: u64) -> Result<Done, Error> {
        let before = self.acknowledged.load(Ordering::SeqCst);
        let timeline = self.network(client).timeline(&self.user(reader), None, SHOWN).await?;
        let authors = timeline.value.following.iter().filter_map(index_of).chain([reader]);
        let mut lasts = authors.filter_map(|author| Some((author, self.posts(author).last?)));
        let missing = lasts.find(|(author, last)| {
            let is_due = last.number <= before && last.client == address(client);
            is_due && !shows(&timeline.value.posts, &self.user(*author), last.id)
        });
        let broken =
            missing.map(|(author, last)| format!("{} is not shown the post {} of {}", self.user(reader), last.id, self.user(author)));
        Ok(Done { broken, ..Done::committed(&timeline) })
    }

    /// Reads all that belongs to the users of this workload.
    async fn check(&self, client: &Client, progress: Progress<'_>) -> Result<Verdict, Error> {
        let mut pieces: JoinSet<Result<Vec<(Key, Value)>, Error>> = JoinSet::new();
        let mut census = Census::new(self.users);
        let mut done = 0;
        for piece in 0..PIECES {
            // A user's keys all begin with their name and a slash, after which comes the 0.
            let end = |index: u64| Key::from(format!("bench-buzzer/{index:08}").as_str());
            let (low, high) = (end(self.users * piece / PIECES), end(self.users * (piece + 1) / PIECES));
            let client = client.clone();
            pieces.spawn(async move { walk(&client, low, high).await });
        }
        while let Some(piece) = pieces.join_next().await {
            // Dropping the set on the way out stops the others.
            for (key, value) in piece.expect("a walk neither panics nor is stopped while its set lives")? {
                self.count(&mut census, &key, &value);
            }
            done += 1;
            progress(self.users * done / PIECES, self.users);
        }
        self.judge(&mut census);
        if self.mix.is_of_network() {
            self.check_timelines(client, &mut census.findings).await?;
        }
        Ok(Verdict::of(census.findings.told()))
    }

    fn count(&self, census: &mut Census, key: &Key, value: &Value) {
        let Some((owner, part)) = self.keys.read(key) else { return census.findings.add(format!("{key} is no key of Buzzer's")) };
        let Some(index) = index_of(&owner).filter(|index| owner == self.user(*index) && *index < self.users) else { return };
        let edge = |from: &Name, to: &Name| mix(&[index_of(from).unwrap_or(u64::MAX), index_of(to).unwrap_or(u64::MAX)]);
        let counts = &mut census.users[index as usize];
        match part {
            PartOf::Account => counts.has_account = true,
            PartOf::Count => {
                counts.count = std::str::from_utf8(value.as_bytes()).ok().and_then(|text| text.strip_prefix("1 ")?.parse().ok())
            }
            PartOf::Following(other) => {
                counts.following += 1;
                counts.edges = counts.edges.wrapping_add(edge(&owner, &other));
            }
            PartOf::Follower(other) => match index_of(&other).filter(|other| *other < self.users) {
                Some(from) => {
                    let from = &mut census.users[from as usize];
                    from.edges = from.edges.wrapping_sub(edge(&other, &owner));
                }
                None => census.findings.add(format!("{owner} is followed by {other}, who is nobody")),
            },
            PartOf::Post(id) if id.time_us >= self.began_us.load(Ordering::Relaxed) => {
                counts.posts += 1;
                counts.has_last |= self.posts(index).last.is_some_and(|last| last.id == id);
            }
            PartOf::Post(_) => counts.posts_before += 1,
            PartOf::Session => {}
        }
    }

    fn judge(&self, census: &mut Census) {
        let mut more = 0;
        for index in 0..self.users {
            let (counts, acknowledged, name) = (census.users[index as usize], *self.posts(index), self.user(index));
            let mut add = |what: String| census.findings.add(what);
            if !counts.has_account {
                add(format!("{name} has no account"));
            }
            if counts.count != Some(counts.following) {
                add(format!("{name} follows {} users, and is counted to follow {:?}", counts.following, counts.count));
            }
            if counts.edges != 0 {
                add(format!("whom {name} follows is not the same on both sides"));
            }
            if counts.posts < acknowledged.count || (acknowledged.last.is_some() && !counts.has_last) {
                add(format!("{name} has {} posts of this run, of {} that were acknowledged", counts.posts, acknowledged.count));
            }
            if self.mix.is_of_network() && u64::from(counts.posts_before) < POSTS_BEFORE {
                add(format!("{name} has lost posts that were loaded"));
            }
            more += u64::from(counts.posts.saturating_sub(acknowledged.count));
        }
        let unknown = self.unknown.load(Ordering::Relaxed);
        if more > unknown {
            census.findings.add(format!("there are {more} posts that nobody was told of, and the outcome of {unknown} is unknown"));
        }
    }

    /// Puts some timelines together from the posts of each author.
    async fn check_timelines(&self, client: &Client, findings: &mut Findings) -> Result<(), Error> {
        let network = self.network(client);
        for place in 0..TIMELINES_CHECKED.min(self.users) {
            let reader = self.user(mix(&[self.seed, place]) % self.users);
            let shown = network.timeline(&reader, None, SHOWN).await?.value;
            let mut posts = Vec::new();
            for author in shown.following.iter().chain([&reader]) {
                let profile = network.profile(author, None, None).await?;
                posts.extend(profile.into_iter().flat_map(|profile| profile.posts));
            }
            posts.sort_by_key(|post| (std::cmp::Reverse(post.id.time_us), post.id.tag, post.author.clone()));
            posts.truncate(SHOWN);
            if posts != shown.posts {
                findings.add(format!("{reader} is not shown the last posts of those whom they follow"));
            }
        }
        Ok(())
    }
}

/// Whether these posts, the newest first, show the one asked for, or are as many as are shown and all newer.
fn shows(posts: &[Shown], author: &Name, id: PostId) -> bool {
    let are_newer = posts.len() >= SHOWN && posts.last().is_some_and(|oldest| oldest.id.time_us >= id.time_us);
    are_newer || posts.iter().any(|post| post.id == id && post.author == *author)
}

/// All keys from `low` on and before `high`, in several transactions.
async fn walk(client: &Client, low: Key, high: Key) -> Result<Vec<(Key, Value)>, Error> {
    let mut all: Vec<(Key, Value)> = Vec::new();
    loop {
        let (low, high) = (&all.last().map_or_else(|| low.clone(), |(last, _)| last.successor().unwrap_or_else(|| high.clone())), &high);
        let rows = persist(client, |txn: Transaction| async move { txn.scan(low.clone(), high.clone(), ROWS_A_SCAN).await }).await?;
        let is_end = rows.len() < ROWS_A_SCAN;
        all.extend(rows);
        if is_end {
            return Ok(all);
        }
    }
}

/// All users of a workload, as far as they are counted.
struct Census {
    users: Vec<Counts>,
    findings: Findings,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    has_account: bool,
    count: Option<u64>,
    following: u64,
    /// The sum of the hashes of all edges from this user, less those found at the other ends.
    edges: u64,
    posts: u32,
    posts_before: u32,
    has_last: bool,
}

impl Census {
    fn new(users: u64) -> Self {
        Self { users: vec![Counts::default(); users as usize], findings: Findings::default() }
    }
}

impl Workload for Buzzer {
    fn name(&self) -> &'static str {
        self.mix.name()
    }

    fn settings(&self) -> BTreeMap<&'static str, Json> {
        BTreeMap::from([("keys", json!(self.users)), ("timeline_posts", json!(SHOWN)), ("seed", json!(self.seed))])
    }

    fn kinds(&self) -> &'static [&'static str] {
        &BuzzerMix::KINDS
    }

    fn load<'a>(&'a self, client: &'a Arc<Client>, progress: Progress<'a>) -> Work<'a, u64> {
        let (users, seed) = (self.users, self.seed);
        let (keys, others) = (self.keys.clone(), self.keys.clone());
        let alone = move |index| keys.account_rows(&user(index, false), 1, "nobody signs in", 0).to_vec();
        let of_network = move |index| rows_of(&others, users, seed, index);
        let parts = vec![Part::groups(users, 2, 60, alone), Part::groups(users, 18, 80, of_network)];
        Box::pin(async move {
            // Follows of earlier runs would stay, and counts not. A load that was cut short puts the same again.
            if let Some(loaded) = MARKER.read(client).await? {
                return Err(Error::LoadedAlready { table: "buzzer", loaded: text(&loaded) });
            }
            let asked = sizes([("keys", self.users), ("seed", self.seed)]);
            match UNFINISHED.read(client).await? {
                Some(begun) if begun != asked => return Err(Error::LoadedInPart { table: "buzzer", begun: text(&begun) }),
                _ => UNFINISHED.put(client, &asked).await?,
            }
            let loaded = load(client, parts, progress).await?;
            MARKER.put(client, &self.sizes()).await?;
            UNFINISHED.take_away(client).await?;
            Ok(loaded)
        })
    }

    fn start<'a>(&'a self, client: &'a Client, _loop_clients: u32) -> Work<'a, Readiness> {
        Box::pin(async move {
            match MARKER.read(client).await? {
                Some(loaded) if loaded == self.sizes() => {}
                Some(loaded) => return Err(Error::LoadedAlready { table: "buzzer", loaded: text(&loaded) }),
                None => return Err(Error::NotLoaded("the store holds no users of Buzzer, or not all of them".to_owned())),
            }
            self.began_us.store(self.clock.next(), Ordering::Relaxed);
            Ok(Readiness::Filled)
        })
    }

    fn transact<'a>(&'a self, client: &'a Client, loop_client: &'a mut LoopClient) -> Work<'a, Done> {
        loop_client.kind = self.mix.draw(&mut loop_client.rng);
        let one = loop_client.rng.random_range(0..self.users);
        match loop_client.kind {
            0 => {
                let text = post_text(&mut loop_client.rng);
                Box::pin(async move { self.post(client, one, &text).await })
            }
            1 => {
                let other = (one + loop_client.rng.random_range(1..self.users)) % self.users;
                Box::pin(self.follow(client, one, other))
            }
            _ => Box::pin(self.timeline(client, one)),
        }
    }

    fn check_end<'a>(&'a self, client: &'a Client, progress: Progress<'a>) -> Option<Work<'a, Verdict>> {
        Some(Box::pin(self.check(client, progress)))
    }
}

/// The row of a user of the network, of those whom they follow, and of their posts.
fn rows_of(keys: &Keys, users: u64, seed: u64, index: u64) -> Vec<(Key, Value)> {
    let name = user(index, true);
    let followed = followed(users, seed, index);
    let mut rows = keys.account_rows(&name, 1, "nobody signs in", followed.len() as u64).to_vec();
    rows.extend(followed.into_iter().flat_map(|other| keys.edge_rows(&name, &user(other, true), 1)));
    let mut rng = SmallRng::seed_from_u64(mix(&[seed, index, 1]));
    let posts = (0..POSTS_BEFORE).map(|number| {
        // Of all users' posts the first, then all second ones, and so on.
        let id = PostId { time_us: BEFORE_US + number * users + index, tag: 0 };
        keys.post_row(&name, id, &post_text(&mut rng))
    });
    rows.extend(posts);
    rows
}

/// Whom a user of the network follows at first.
pub fn followed(users: u64, seed: u64, index: u64) -> Vec<u64> {
    let law = Zipf::new(FOLLOWED_MAX, 1.0).expect("there is such a law");
    let mut rng = SmallRng::seed_from_u64(mix(&[seed, index]));
    let wanted = law.draw(&mut rng) as usize;
    let mut followed = Vec::with_capacity(wanted);
    while followed.len() < wanted {
        let other = rng.random_range(0..users);
        if other != index && !followed.contains(&other) {
            followed.push(other);
        }
    }
    followed
}

/// A post's text.
pub fn post_text(rng: &mut SmallRng) -> PostText {
    let text: String = (0..POST_CHARS).map(|_| char::from(rng.random_range(b'a'..=b'z'))).collect();
    text.parse().expect("letters are a text")
}

/// A user: by number, so that a bound of ranges cuts both sets.
fn user(index: u64, is_of_network: bool) -> Name {
    let set = if is_of_network { 'n' } else { 'a' };
    format!("{index:08}{set}").parse().expect("digits and a letter are a name")
}

/// The number of a user.
fn index_of(user: &Name) -> Option<u64> {
    user.as_str().get(..8)?.parse().ok()
}

/// Tells clients apart.
fn address(client: &Client) -> usize {
    std::ptr::from_ref(client).addr()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(mix: BuzzerMix) -> Buzzer {
        Buzzer::new(mix, 100, 1).expect("enough users")
    }

    #[test]
    fn as_many_are_followed_as_in_the_paper() {
        let counts: Vec<usize> = (0..10_000).map(|index| followed(10_000, 7, index).len()).collect();
        let up_to = |most: usize| counts.iter().filter(|count| **count <= most).count() as f64 / counts.len() as f64;
        assert!(counts.iter().all(|count| (1..=20).contains(count)));
        assert!(up_to(4) >= 0.5 && (0.94..0.97).contains(&up_to(17)), "{} {}", up_to(4), up_to(17));
    }

    #[test]
    fn each_kind_comes_as_often_as_in_the_paper() {
        let mut rng = SmallRng::seed_from_u64(1);
        let mut drawn = [0_u32; 3];
        (0..20_000).for_each(|_| drawn[BuzzerMix::Mix.draw(&mut rng)] += 1);
        assert!(drawn.iter().zip([1_500_u32, 1_500, 17_000]).all(|(drawn, wanted)| drawn.abs_diff(wanted) < 300), "{drawn:?}");
        for (kind, mix) in [BuzzerMix::Post, BuzzerMix::Follow, BuzzerMix::Timeline].into_iter().enumerate() {
            assert_eq!(mix.draw(&mut rng), kind);
        }
    }

    /// What an audit finds in what is loaded, changed.
    fn found(change: impl FnOnce(&mut BTreeMap<Key, Value>)) -> Vec<String> {
        let workload = workload(BuzzerMix::Mix);
        workload.began_us.store(BEFORE_US + 1_000_000, Ordering::Relaxed);
        let mut rows: BTreeMap<Key, Value> = (0..100).flat_map(|index| rows_of(&workload.keys, 100, 1, index)).collect();
        change(&mut rows);
        let mut census = Census::new(100);
        rows.iter().for_each(|(key, value)| workload.count(&mut census, key, value));
        workload.judge(&mut census);
        census.findings.told()
    }

    #[test]
    fn what_is_loaded_is_in_order_and_what_is_lost_shows() {
        assert_eq!(found(|_| ()), Vec::<String>::new());
        let (keys, one) = (Keys::under("bench-buzzer"), user(3, true));
        let other = user(followed(100, 1, 3)[0], true);
        let said = found(|rows| drop(rows.remove(&keys.follower(&other, one.as_str())).expect("it was loaded")));
        assert_eq!(said, ["whom 00000003n follows is not the same on both sides"]);
        let said = found(|rows| drop(rows.remove(&keys.following(&one, other.as_str())).expect("it was loaded")));
        assert_eq!(said.len(), 2, "{said:?}");
        let said = found(|rows| drop(rows.remove(&keys.post(&one, PostId { time_us: BEFORE_US + 3, tag: 0 })).expect("it was loaded")));
        assert_eq!(said, ["00000003n has lost posts that were loaded"]);
        let late = PostId { time_us: BEFORE_US + 2_000_000, tag: 0 };
        let said = found(|rows| drop(rows.insert(keys.post(&one, late), Value::from("1 x"))));
        assert_eq!(said, ["there are 1 posts that nobody was told of, and the outcome of 0 is unknown"]);
    }

    #[test]
    fn a_post_that_a_timeline_leaves_out_shows() {
        let (author, id) = (user(1, true), |time_us| PostId { time_us, tag: 0 });
        let shown = |times: &[u64]| {
            times.iter().map(|time| Shown { author: author.clone(), id: id(*time), text: String::new() }).collect::<Vec<_>>()
        };
        assert!(shows(&shown(&[5, 3]), &author, id(3)) && !shows(&shown(&[5, 3]), &author, id(4)));
        assert!(!shows(&shown(&[5, 3]), &user(2, true), id(3)));
        assert!(shows(&shown(&[9; SHOWN]), &author, id(4)) && !shows(&shown(&[9; SHOWN]), &author, id(10)));
    }

    #[test]
    fn too_few_users_are_refused() {
        assert!(Buzzer::new(BuzzerMix::Mix, 31, 1).expect_err("too few").to_string().contains("from 32 to"));
    }
}
