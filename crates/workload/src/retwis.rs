//! Retwis: a small social network, after the Redis tutorial of that name and the benchmark that TAPIR made of it.
//!
//! The papers fix how often each transaction comes and how much it reads and writes (Basil §6.1 refers to TAPIR's):
//!
//! | transaction | of a hundred | reads | writes |
//! |---|---|---|---|
//! | add user | 5 | 1 | 3 |
//! | follow | 15 | 2 | 2 |
//! | post tweet | 30 | 3 | 5 |
//! | get timeline | 50 | 1 to 10 | 0 |
//!
//! and that users are drawn by Zipf's law with exponent 0.75. TAPIR reads and writes keys without a meaning; here the same
//! counts have one, so that there is something to check. Each user has `retwis/user/<name>`, with counts of posts, of
//! those they follow and of those who follow them, and `retwis/timeline/<name>`, with the last posts shown to them.
//!
//! * *add user* sees that the name is free, and writes a user, a timeline and an empty place for mentions;
//! * *follow* counts one up in each of two users;
//! * *post tweet* counts a user's posts up, puts the post into their own timeline and into a follower's, and writes the post
//!   and, unseen, a mention of somebody else;
//! * *get timeline* reads the timelines of up to ten users, together.
//!
//! At the end each user must have as many posts as their own timeline was given, the last of them must be there, and as many
//! must be followed as follow: a lost update shows in one of these.

use std::collections::BTreeMap;
use std::sync::Arc;

use client::{Client, Transaction};
use rand::Rng;
use rand::rngs::SmallRng;
use serde_json::{Value as Json, json};
use types::Key;
use types::codec::{Decode, DecodeError, Encode, Reader, encode_sequence};

use crate::attempt::{Stop, one_more, read, run};
use crate::findings::Findings;
use crate::keys::draw_weighted;
use crate::load::{Part, load};
use crate::marker::{Marker, Sizes, sizes};
use crate::row::{Row, Text, row, rows};
use crate::sweep::sweep;
use crate::{Distribution, Done, Error, LoopClient, Progress, Readiness, Reading, Table, Verdict, Work, Workload, Zipf, mix};

/// The fewest users: a timeline is read of so many.
pub const USERS_MIN: u64 = TIMELINES_MAX as u64;
/// The most users.
pub const USERS_MAX: u64 = crate::KEYS_MAX;
/// The most timelines read at once.
const TIMELINES_MAX: usize = 10;
/// How many posts a timeline shows.
const TIMELINE_POSTS_MAX: usize = 10;
/// How long a post is.
const POST_BYTES: usize = 140;
/// What says how the tables were loaded.
const MARKER: Marker = Marker("retwis");
/// The kinds of transactions, in the order of [`Plan`].
const KINDS: [&str; 4] = ["add-user", "follow", "post-tweet", "get-timeline"];
/// How often each comes, of a hundred.
const WEIGHTS: [u32; 4] = [5, 15, 30, 50];

/// The Retwis workload.
#[derive(Debug)]
pub struct Retwis {
    users: Table,
    law: Zipf,
    reading: Reading,
    seed: u64,
    /// This run's name, drawn by the caller: names of new users begin with it.
    run: u64,
}

/// What a transaction is to do, drawn before its first attempt, so that every attempt does the same.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Plan {
    AddUser { name: String },
    Follow { follower: String, followed: String },
    PostTweet { author: String, follower: String, mentioned: String, text: Text },
    GetTimeline { users: Vec<String> },
}

rows! {
    /// A user.
    User of "retwis/user" {
        /// How many posts they wrote.
        posts: u32,
        /// How many they follow.
        following: u32,
        /// How many follow them.
        followers: u32,
        /// What they say of themselves.
        about: Text,
    }

    /// What a user is shown.
    Timeline of "retwis/timeline" {
        /// How many of their own posts were put into it, ever.
        own: u32,
        /// The last posts, the newest first.
        posts: Posts,
    }

    /// A post.
    Post of "retwis/post" {
        /// What it says.
        text: Text,
    }

    /// Where a user was mentioned last.
    Mention of "retwis/mention" {
        /// In this post, if in any.
        post: Option<PostName>,
    }
}

/// The name of a post: its author and its number, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PostName {
    author: Text,
    number: u32,
}

/// A bounded list of posts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Posts(Vec<PostName>);

impl Encode for PostName {
    fn encode(&self, out: &mut Vec<u8>) {
        self.author.encode(out);
        self.number.encode(out);
    }
}

impl Decode for PostName {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { author: Text::decode(reader)?, number: u32::decode(reader)? })
    }
}

impl Encode for Posts {
    fn encode(&self, out: &mut Vec<u8>) {
        encode_sequence(&self.0, out);
    }
}

impl Decode for Posts {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        reader.sequence("a timeline's posts", TIMELINE_POSTS_MAX).map(Self)
    }
}

impl Posts {
    /// Shows one more; the oldest goes when there are too many.
    fn show(&mut self, post: PostName) {
        self.0.insert(0, post);
        self.0.truncate(TIMELINE_POSTS_MAX);
    }
}

impl Retwis {
    /// A network of `users`, drawn by Zipf's law with `exponent`; `run` names this run.
    ///
    /// # Errors
    /// [`Error::Settings`] when there are too few or too many users, or there is no such law.
    pub fn new(users: u64, exponent: f64, reading: Reading, seed: u64, run: u64) -> Result<Self, Error> {
        if !(USERS_MIN..=USERS_MAX).contains(&users) {
            return Err(Error::Settings(format!("retwis has from {USERS_MIN} to {USERS_MAX} users, not {users}")));
        }
        let law = Zipf::new(users, exponent)
            .ok_or_else(|| Error::Settings(format!("an exponent is from 0 to {}, not {exponent}", Zipf::EXPONENT_MAX)))?;
        let users = Table::new(users).expect("a table may have as many keys as there may be users");
        Ok(Self { users, law, reading, seed, run })
    }

    fn plan(&self, loop_client: &mut LoopClient) -> Plan {
        loop_client.kind = draw_weighted(&WEIGHTS, &mut loop_client.rng);
        match loop_client.kind {
            0 => {
                loop_client.next += 1;
                Plan::AddUser { name: format!("new-{:016x}-{}-{}", self.run, loop_client.index, loop_client.next) }
            }
            1 => {
                let [follower, followed] = self.choose(&mut loop_client.rng);
                Plan::Follow { follower, followed }
            }
            2 => {
                let [author, follower, mentioned] = self.choose(&mut loop_client.rng);
                Plan::PostTweet { author, follower, mentioned, text: post_text(&mut loop_client.rng) }
            }
            _ => {
                let wanted = loop_client.rng.random_range(1..=TIMELINES_MAX);
                Plan::GetTimeline { users: self.choose_many(wanted, &mut loop_client.rng) }
            }
        }
    }

    fn choose<const N: usize>(&self, rng: &mut SmallRng) -> [String; N] {
        let users = self.choose_many(N, rng);
        users.try_into().expect("as many are chosen as were wanted")
    }

    /// Users who all differ.
    fn choose_many(&self, wanted: usize, rng: &mut SmallRng) -> Vec<String> {
        let chosen = Distribution::Zipf(self.law).choose_distinct(&self.users, wanted, rng);
        chosen.into_iter().map(name).collect()
    }

    fn sizes(&self) -> Sizes {
        sizes([("keys", self.users.count())])
    }

    async fn look(&self, client: &Client) -> Result<Readiness, Error> {
        MARKER.expect(client, &self.sizes()).await?;
        Ok(Readiness::Filled)
    }

    async fn check(&self, client: &Client, progress: Progress<'_>) -> Result<Verdict, Error> {
        let count = self.users.count();
        let mut census = Census::new(count);
        let key = |index: u64| if index < count { user_key(&name(index)) } else { timeline_key(&name(index - count)) };
        let take = |index: u64, value: Option<types::Value>| {
            if index < count {
                census.user(index, row(value.as_ref(), name(index)));
            } else {
                census.timeline(index - count, row(value.as_ref(), name(index - count)));
            }
        };
        sweep(client, 2 * count, key, progress, take).await?;
        let authors = census.authors();
        let last = |index: u64| {
            let (author, number) = authors[index as usize];
            (name(author), number)
        };
        let key = |index: u64| {
            let (author, number) = last(index);
            post_key(&author, number)
        };
        let take = |index: u64, value: Option<types::Value>| {
            let (author, number) = last(index);
            census.last_post(row(value.as_ref(), format_args!("{author}/{number}")));
        };
        sweep(client, authors.len() as u64, key, progress, take).await?;
        Ok(Verdict::of(census.findings()))
    }
}

/// All users, as far as they are counted.
#[derive(Debug)]
struct Census {
    /// By user: posts by their own count, and by their timeline's.
    posts: Vec<(u32, u32)>,
    following: u64,
    followers: u64,
    findings: Findings,
}

impl Census {
    fn new(users: u64) -> Self {
        Self { posts: vec![(0, 0); users as usize], following: 0, followers: 0, findings: Findings::default() }
    }

    fn user(&mut self, index: u64, read: Result<User, String>) {
        match read {
            Ok(user) => {
                self.posts[index as usize].0 = user.posts;
                self.following += u64::from(user.following);
                self.followers += u64::from(user.followers);
            }
            Err(what) => self.findings.add(what),
        }
    }

    fn timeline(&mut self, index: u64, read: Result<Timeline, String>) {
        match read {
            Ok(timeline) => self.posts[index as usize].1 = timeline.own,
            Err(what) => self.findings.add(what),
        }
    }

    /// Who wrote anything, and the number of their last post.
    fn authors(&self) -> Vec<(u64, u32)> {
        let written = (0_u64..).zip(&self.posts).filter(|(_, (posts, _))| *posts > 0);
        written.map(|(author, (posts, _))| (author, *posts)).collect()
    }

    fn last_post(&mut self, read: Result<Post, String>) {
        self.findings.note(read.map(drop));
    }

    /// What is wrong, once all are counted.
    fn findings(mut self) -> Vec<String> {
        for index in 0..self.posts.len() {
            let (posts, own) = self.posts[index];
            if posts != own {
                self.findings.add(format!("{} wrote {posts} posts, but their own timeline was given {own}", name(index as u64)));
            }
        }
        if self.following != self.followers {
            self.findings.add(format!("all users together follow {} times and are followed {} times", self.following, self.followers));
        }
        self.findings.told()
    }
}

impl Plan {
    fn only_reads(&self) -> bool {
        matches!(self, Self::GetTimeline { .. })
    }

    /// One attempt.
    async fn attempt(&self, txn: Transaction, reading: Reading) -> Result<(), Stop> {
        match self {
            Self::AddUser { name } => add_user(&txn, name).await,
            Self::Follow { follower, followed } => follow(&txn, reading, follower, followed).await,
            Self::PostTweet { author, follower, mentioned, text } => post_tweet(&txn, reading, [author, follower, mentioned], text).await,
            Self::GetTimeline { users } => get_timeline(&txn, reading, users).await,
        }
    }
}

async fn add_user(txn: &Transaction, name: &str) -> Result<(), Stop> {
    // The name is taken when an earlier attempt did commit, though nobody could tell: then this is done.
    if txn.get(user_key(name)).await?.is_some() {
        return Ok(());
    }
    txn.put(user_key(name), new_user().to_value());
    txn.put(timeline_key(name), Timeline { own: 0, posts: Posts::default() }.to_value());
    txn.put(mention_key(name), Mention { post: None }.to_value());
    Ok(())
}

async fn follow(txn: &Transaction, reading: Reading, follower: &str, followed: &str) -> Result<(), Stop> {
    let found = read(txn, &[user_key(follower), user_key(followed)], reading).await?;
    let mut from: User = row(found[0].as_ref(), follower).map_err(Stop::Broken)?;
    let mut to: User = row(found[1].as_ref(), followed).map_err(Stop::Broken)?;
    from.following = one_more(from.following)?;
    to.followers = one_more(to.followers)?;
    txn.put(user_key(follower), from.to_value());
    txn.put(user_key(followed), to.to_value());
    Ok(())
}

async fn post_tweet(txn: &Transaction, reading: Reading, names: [&String; 3], text: &Text) -> Result<(), Stop> {
    let [author, follower, mentioned] = names;
    let found = read(txn, &[user_key(author), timeline_key(author), timeline_key(follower)], reading).await?;
    let mut user: User = row(found[0].as_ref(), author).map_err(Stop::Broken)?;
    let mut own: Timeline = row(found[1].as_ref(), author).map_err(Stop::Broken)?;
    let mut others: Timeline = row(found[2].as_ref(), follower).map_err(Stop::Broken)?;
    user.posts = one_more(user.posts)?;
    own.own = one_more(own.own)?;
    let post = PostName { author: Text::from(author.as_str()), number: user.posts };
    own.posts.show(post.clone());
    others.posts.show(post.clone());
    txn.put(post_key(author, user.posts), Post { text: text.clone() }.to_value());
    txn.put(user_key(author), user.to_value());
    txn.put(timeline_key(author), own.to_value());
    txn.put(timeline_key(follower), others.to_value());
    txn.put(mention_key(mentioned), Mention { post: Some(post) }.to_value());
    Ok(())
}

async fn get_timeline(txn: &Transaction, reading: Reading, users: &[String]) -> Result<(), Stop> {
    let keys: Vec<Key> = users.iter().map(|user| timeline_key(user)).collect();
    for (user, value) in users.iter().zip(read(txn, &keys, reading).await?) {
        row::<Timeline>(value.as_ref(), user).map_err(Stop::Broken)?;
    }
    Ok(())
}

impl Workload for Retwis {
    fn name(&self) -> &'static str {
        "retwis"
    }

    fn settings(&self) -> BTreeMap<&'static str, Json> {
        BTreeMap::from([
            ("keys", json!(self.users.count())),
            ("distribution", json!(format!("zipf {}", self.law.exponent()))),
            ("reading", json!(self.reading.name())),
            ("seed", json!(self.seed)),
        ])
    }

    fn kinds(&self) -> &'static [&'static str] {
        &KINDS
    }

    fn load<'a>(&'a self, client: &'a Arc<Client>, progress: Progress<'a>) -> Work<'a, u64> {
        let (count, seed) = (self.users.count(), self.seed);
        let user = |index| (user_key(&name(index)), new_user().to_value());
        let timeline = move |index| {
            // Full from the start, so that a run does not measure how timelines grow. The posts are of a time before.
            let shown = (0..TIMELINE_POSTS_MAX as u64).map(|place| mix(&[seed, index, place]) % count);
            let posts = shown.map(|author| PostName { author: Text::new(name(author)), number: 0 }).collect();
            (timeline_key(&name(index)), Timeline { own: 0, posts: Posts(posts) }.to_value())
        };
        let parts = vec![Part::rows(count, 100, user), Part::rows(count, 240, timeline)];
        Box::pin(async move {
            MARKER.take_away(client).await?;
            let loaded = load(client, parts, progress).await?;
            MARKER.put(client, &self.sizes()).await?;
            Ok(loaded)
        })
    }

    fn start<'a>(&'a self, client: &'a Client, _loop_clients: u32) -> Work<'a, Readiness> {
        Box::pin(self.look(client))
    }

    fn transact<'a>(&'a self, client: &'a Client, loop_client: &'a mut LoopClient) -> Work<'a, Done> {
        let plan = self.plan(loop_client);
        Box::pin(async move { Ok(run(client, plan.only_reads(), |txn| plan.attempt(txn, self.reading)).await?.1) })
    }

    fn check_end<'a>(&'a self, client: &'a Client, progress: Progress<'a>) -> Option<Work<'a, Verdict>> {
        Some(Box::pin(self.check(client, progress)))
    }
}

fn new_user() -> User {
    User { posts: 0, following: 0, followers: 0, about: Text::from("a user like all the others, new here") }
}

fn post_text(rng: &mut SmallRng) -> Text {
    Text::new((0..POST_BYTES).map(|_| char::from(rng.random_range(b'a'..=b'z'))).collect())
}

/// The name of a user who was there from the start.
fn name(index: u64) -> String {
    format!("{index:08}")
}

fn user_key(name: &str) -> Key {
    Key::from(format!("retwis/user/{name}").as_str())
}

fn timeline_key(name: &str) -> Key {
    Key::from(format!("retwis/timeline/{name}").as_str())
}

fn mention_key(name: &str) -> Key {
    Key::from(format!("retwis/mention/{name}").as_str())
}

fn post_key(author: &str, number: u32) -> Key {
    Key::from(format!("retwis/post/{author}/{number}").as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn network() -> Retwis {
        Retwis::new(1_000, 0.75, Reading::Together, 1, 0xabc).expect("a network")
    }

    #[test]
    fn each_kind_comes_as_often_as_in_tapir() {
        let (network, mut loop_client) = (network(), LoopClient::new(1, 0));
        let mut counts = [0_u32; 4];
        let mut timelines = [0_u32; TIMELINES_MAX + 1];
        for _ in 0..50_000 {
            let plan = network.plan(&mut loop_client);
            counts[loop_client.kind] += 1;
            if let Plan::GetTimeline { users } = plan {
                assert_eq!(users.iter().collect::<BTreeSet<_>>().len(), users.len());
                timelines[users.len()] += 1;
            }
        }
        assert_eq!(WEIGHTS.iter().sum::<u32>(), 100);
        assert!(counts.iter().zip(WEIGHTS).all(|(count, weight)| count.abs_diff(weight * 500) < 400), "{counts:?}");
        assert!(timelines[0] == 0 && timelines[1..].iter().all(|count| count.abs_diff(2_500) < 250), "{timelines:?}");
    }

    #[test]
    fn new_users_have_names_of_their_own() {
        let network = network();
        let names: Vec<String> = (0..2)
            .flat_map(|index| {
                let mut loop_client = LoopClient::new(1, index);
                let plans: Vec<Plan> = (0..1_000).map(|_| network.plan(&mut loop_client)).collect();
                plans.into_iter().filter_map(|plan| if let Plan::AddUser { name } = plan { Some(name) } else { None })
            })
            .collect();
        assert!(names.len() > 50 && names[0] == "new-0000000000000abc-0-1", "{names:?}");
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    }

    #[test]
    fn a_timeline_shows_the_last_posts_and_is_read_as_it_was_written() {
        let mut timeline = Timeline { own: 3, posts: Posts::default() };
        for number in 1..=15 {
            timeline.posts.show(PostName { author: Text::from("00000001"), number });
        }
        assert_eq!(timeline.posts.0.iter().map(|post| post.number).collect::<Vec<_>>(), (6..=15).rev().collect::<Vec<_>>());
        assert_eq!(Timeline::parse(&timeline.to_value()), Ok(timeline.clone()));
        timeline.posts.0.push(PostName { author: Text::from("a"), number: 1 });
        assert_eq!(Timeline::parse(&timeline.to_value()), Err(DecodeError::OverLimit("a timeline's posts")));
        let mention = Mention { post: Some(PostName { author: Text::from("a"), number: 1 }) };
        assert_eq!(Mention::parse(&mention.to_value()), Ok(mention));
    }

    fn census(users: &[(u32, u32, u32, u32)]) -> Census {
        let mut census = Census::new(users.len() as u64);
        for (index, (posts, own, following, followers)) in (0..).zip(users) {
            census.user(index, Ok(User { posts: *posts, following: *following, followers: *followers, about: Text::from("") }));
            census.timeline(index, Ok(Timeline { own: *own, posts: Posts::default() }));
        }
        census
    }

    #[test]
    fn a_network_in_order_has_nothing_wrong() {
        let census = census(&[(2, 2, 1, 0), (0, 0, 2, 3), (1, 1, 0, 0)]);
        assert_eq!(census.authors(), [(0, 2), (2, 1)]);
        assert_eq!(census.findings(), Vec::<String>::new());
    }

    #[test]
    fn a_lost_update_shows() {
        assert_eq!(census(&[(2, 1, 0, 0)]).findings(), ["00000000 wrote 2 posts, but their own timeline was given 1"]);
        assert_eq!(census(&[(0, 0, 1, 0), (0, 0, 0, 2)]).findings(), ["all users together follow 1 times and are followed 2 times"]);
        let mut broken = census(&[(1, 1, 0, 0)]);
        broken.last_post(row(None, "00000000/1"));
        assert_eq!(broken.findings(), ["retwis/post 00000000/1 is missing"]);
    }

    #[test]
    fn impossible_networks_are_refused_in_words() {
        assert!(Retwis::new(9, 0.75, Reading::Together, 1, 1).expect_err("too few").to_string().contains("from 10 to"));
        assert!(Retwis::new(10, f64::NAN, Reading::Together, 1, 1).expect_err("no law").to_string().contains("exponent"));
    }
}
