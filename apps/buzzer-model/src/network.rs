//! The transactions.

use std::sync::Arc;

use client::{Client, Committed, Error, Operation, Refusal, Transaction};
use futures_util::future::{try_join, try_join_all, try_join3};
use types::{Key, Value};

use crate::clock::Clock;
use crate::name::Name;
use crate::post::{PostId, PostText};
use crate::records::{Session, broken, read_number, read_text, text};

/// The most users that one may follow. A timeline is one transaction, which reads a range for each of them, for those followed, and for the
/// reader's own posts; and a transaction reads at most 64 ranges.
pub const FOLLOWING_MAX: usize = 60;
/// The most posts that one page of a timeline shows: so many of each author are read, and a transaction reads at most 4,096 rows.
pub const TIMELINE_MAX: usize = 30;
/// The most names that one page of a list shows.
pub const LIST_MAX: usize = 100;
/// In how many browsers a user may be signed in. One more takes the place of the one that would end first.
pub const SESSIONS_MAX: usize = 10;

/// Where Buzzer's data is.
#[derive(Clone, Debug)]
pub struct Keys {
    prefix: Arc<str>,
}

impl Keys {
    /// Under `prefix`, such as `buzzer`.
    #[must_use]
    pub fn under(prefix: &str) -> Self {
        Self { prefix: prefix.into() }
    }

    /// An account.
    #[must_use]
    pub fn account(&self, user: &Name) -> Key {
        self.key(user, "account")
    }

    /// How many a user follows.
    #[must_use]
    pub fn count(&self, user: &Name) -> Key {
        self.key(user, "count")
    }

    /// That `user` follows `other`, on the side of `user`.
    #[must_use]
    pub fn following(&self, user: &Name, other: &str) -> Key {
        self.key(user, &format!("following/{other}"))
    }

    /// That `other` follows `user`, on the side of `user`.
    #[must_use]
    pub fn follower(&self, user: &Name, other: &str) -> Key {
        self.key(user, &format!("follower/{other}"))
    }

    /// A post.
    #[must_use]
    pub fn post(&self, author: &Name, id: PostId) -> Key {
        self.key(author, &format!("post/{id}"))
    }

    /// What a new account is: itself, and the count of those whom it follows.
    #[must_use]
    pub fn account_rows(&self, user: &Name, joined: u64, password_hash: &str, following: u64) -> [(Key, Value); 2] {
        [(self.account(user), account_value(joined, password_hash)), (self.count(user), text(&following.to_string()))]
    }

    /// Both sides of an edge: `user` follows `other`.
    #[must_use]
    pub fn edge_rows(&self, user: &Name, other: &Name, since: u64) -> [(Key, Value); 2] {
        let since = text(&since.to_string());
        [(self.following(user, other.as_str()), since.clone()), (self.follower(other, user.as_str()), since)]
    }

    /// A post.
    #[must_use]
    pub fn post_row(&self, author: &Name, id: PostId, says: &PostText) -> (Key, Value) {
        (self.post(author, id), text(says.as_str()))
    }

    /// Whose a key is, and what it is for, where it is one of these.
    #[must_use]
    pub fn read(&self, key: &Key) -> Option<(Name, Part)> {
        let rest = std::str::from_utf8(key.as_bytes()).ok()?.strip_prefix(&*self.prefix)?.strip_prefix('/')?;
        let (user, rest) = rest.split_once('/')?;
        let part = match rest.split_once('/') {
            None if rest == "account" => Part::Account,
            None if rest == "count" => Part::Count,
            Some(("following", other)) => Part::Following(exact(other)?),
            Some(("follower", other)) => Part::Follower(exact(other)?),
            Some(("post", id)) => Part::Post(id.parse().ok()?),
            Some(("session", _)) => Part::Session,
            _ => return None,
        };
        Some((exact(user)?, part))
    }

    fn session(&self, user: &Name, digest: &str) -> Key {
        self.key(user, &format!("session/{digest}"))
    }

    /// All keys `…/part/…` of a user that come after `after`, or all.
    fn range(&self, user: &Name, part: &str, after: Option<&str>) -> (Key, Key) {
        // Nothing in a key is less than a 0 byte, so this is the next key after `after`; and 0 is the letter after the slash.
        let low = after.map_or_else(|| format!("{part}/"), |after| format!("{part}/{after}\0"));
        (self.key(user, &low), self.key(user, &format!("{part}0")))
    }

    fn key(&self, user: &Name, rest: &str) -> Key {
        Key::from(format!("{}/{user}/{rest}", self.prefix).as_str())
    }
}

/// What a key is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// An account.
    Account,
    /// How many its owner follows.
    Count,
    /// That its owner follows this user.
    Following(Name),
    /// That this user follows its owner.
    Follower(Name),
    /// A post.
    Post(PostId),
    /// A session.
    Session,
}

/// An account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// When it was made, in seconds since 1970.
    pub joined: u64,
    /// The hash of its password, as the caller gave it.
    pub password_hash: String,
}

/// What came of making an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// It is there now.
    Now,
    /// Somebody else has the name.
    Taken,
}

/// What came of following somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Followed {
    /// They are followed now.
    Now,
    /// They were before.
    Already,
    /// There is no such user.
    Nobody,
    /// Nobody follows themselves.
    Oneself,
    /// [`FOLLOWING_MAX`] are followed.
    TooMany,
}

/// What came of following somebody no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfollowed {
    /// They are followed no longer.
    Now,
    /// They were not.
    NotFollowed,
}

/// What came of deleting a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// It is gone now.
    Now,
    /// There was none, or none any more.
    Absent,
}

/// What came of changing a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// It is the new one now.
    Now,
    /// The hash of the old one is not the account's, or not any more.
    OtherPassword,
}

/// What came of beginning a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// It lasts from now on.
    Now,
    /// The hash of the password that was shown is not the account's, or not any more.
    OtherPassword,
}

/// A post as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Who wrote it.
    pub author: Name,
    /// Its name among theirs.
    pub id: PostId,
    /// What it says.
    pub text: String,
}

/// A timeline as of one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// The posts, the newest first.
    pub posts: Vec<Shown>,
    /// Those whom the reader follows.
    pub following: Vec<Name>,
    /// Whether there are older posts.
    pub has_more: bool,
}

/// A user as others see them, as of one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// When they joined, in seconds since 1970.
    pub joined: u64,
    /// How many they follow.
    pub following: u64,
    /// How many follow them, as far as they were counted: up to [`LIST_MAX`] and one more.
    pub followers: usize,
    /// Whether whoever looks follows them.
    pub is_followed: bool,
    /// Their posts, the newest first.
    pub posts: Vec<Shown>,
    /// Whether there are older ones.
    pub has_more: bool,
}

/// The network, on a cluster.
#[derive(Clone, Debug)]
pub struct Network {
    client: Client,
    keys: Keys,
    clock: Arc<Clock>,
}

impl Network {
    /// The network that is kept under `keys`.
    #[must_use]
    pub fn new(client: Client, keys: Keys, clock: Arc<Clock>) -> Self {
        Self { client, keys, clock }
    }

    /// Makes an account, unless the name is taken.
    ///
    /// # Errors
    /// Any [`Error`] of the client's.
    pub async fn create_account(&self, user: &Name, joined: u64, password_hash: &str) -> Result<Created, Error> {
        let puts = self.keys.account_rows(user, joined, password_hash, 0).map(|(key, value)| Operation::Put(key, value));
        let operations = [Operation::Compare(self.keys.account(user), None)].into_iter().chain(puts);
        match self.client.run(operations.collect()).await {
            Ok(_) => Ok(Created::Now),
            Err(Error::Refused(Refusal::CompareFailed { .. })) => Ok(Created::Taken),
            Err(error) => Err(error),
        }
    }

    /// An account, if there is one.
    ///
    /// # Errors
    /// Any [`Error`] of the client's, and [`crate::Broken`] in one.
    pub async fn account(&self, user: &Name) -> Result<Option<Account>, Error> {
        let key = &self.keys.account(user);
        let found = self.client.read(|txn| async move { txn.get(key.clone()).await }).await?;
        found.value.map(|value| read_account(key, &value)).transpose()
    }

    /// Writes a post. The author must have an account.
    ///
    /// # Errors
    /// Any [`Error`] of the client's. After [`Error::OutcomeUnknown`] it may be there.
    pub async fn post(&self, author: &Name, post: &PostText) -> Result<Committed<PostId>, Error> {
        let id = PostId { time_us: self.clock.next(), tag: rand::random() };
        let (key, value) = self.keys.post_row(author, id, post);
        let operations = vec![Operation::Compare(key.clone(), None), Operation::Put(key, value)];
        let Committed { commit, attempts, .. } = self.client.run(operations).await?;
        Ok(Committed { value: id, commit, attempts })
    }

    /// Deletes a post of `author`. It is in one place alone, so it is gone from every timeline at once.
    ///
    /// # Errors
    /// Any [`Error`] of the client's. After [`Error::OutcomeUnknown`] it may be gone.
    pub async fn delete_post(&self, author: &Name, id: PostId) -> Result<Committed<Deleted>, Error> {
        let key = &self.keys.post(author, id);
        self.client
            .transact(|txn| async move {
                // Made-up identifiers leave no deleted keys behind.
                if txn.get(key.clone()).await?.is_none() {
                    return Ok(Deleted::Absent);
                }
                txn.delete(key.clone());
                Ok(Deleted::Now)
            })
            .await
    }

    /// Lets `user` follow `other`.
    ///
    /// # Errors
    /// Any [`Error`] of the client's, and [`crate::Broken`] in one.
    pub async fn follow(&self, user: &Name, other: &Name, now: u64) -> Result<Committed<Followed>, Error> {
        let edge = &self.keys.edge_rows(user, other, now);
        let asked = &[self.keys.count(user), edge[0].0.clone(), self.keys.account(other)];
        self.client
            .transact(|txn| async move {
                if user == other {
                    return Ok(Followed::Oneself);
                }
                let found = txn.get_many(asked).await?;
                let [count, following, account] = &found[..] else { unreachable!("as many are found as were asked for") };
                let count = read_count(&asked[0], count.as_ref())?;
                if account.is_none() {
                    return Ok(Followed::Nobody);
                }
                if following.is_some() {
                    return Ok(Followed::Already);
                }
                if count >= FOLLOWING_MAX as u64 {
                    return Ok(Followed::TooMany);
                }
                txn.put(asked[0].clone(), text(&(count + 1).to_string()));
                edge.iter().for_each(|(key, value)| txn.put(key.clone(), value.clone()));
                Ok(Followed::Now)
            })
            .await
    }

    /// Lets `user` follow `other` no longer.
    ///
    /// # Errors
    /// Any [`Error`] of the client's, and [`crate::Broken`] in one.
    pub async fn unfollow(&self, user: &Name, other: &Name) -> Result<Committed<Unfollowed>, Error> {
        let follower = &self.keys.follower(other, user.as_str());
        let asked = &[self.keys.count(user), self.keys.following(user, other.as_str())];
        self.client
            .transact(|txn| {
                async move {
                    let found = txn.get_many(asked).await?;
                    let [count, following] = &found[..] else { unreachable!("as many are found as were asked for") };
                    if following.is_none() {
                        return Ok(Unfollowed::NotFollowed);
                    }
                    // Until the commit, the two reads may be of different moments.
                    let count = read_count(&asked[0], count.as_ref())?.checked_sub(1).ok_or(Error::Conflict)?;
                    txn.put(asked[0].clone(), text(&count.to_string()));
                    txn.delete(asked[1].clone());
                    txn.delete(follower.clone());
                    Ok(Unfollowed::Now)
                }
            })
            .await
    }

    /// What `reader` is shown: the last posts of those followed and their own, or those before `before`; at most `limit` of them, and
    /// [`TIMELINE_MAX`].
    ///
    /// # Errors
    /// Any [`Error`] of the client's, and [`crate::Broken`] in one.
    pub async fn timeline(&self, reader: &Name, before: Option<PostId>, limit: usize) -> Result<Committed<Timeline>, Error> {
        let limit = limit.min(TIMELINE_MAX);
        let read = |txn: Transaction| async move {
            let (low, high) = self.keys.range(reader, "following", None);
            let following = names(&txn.scan(low, high, FOLLOWING_MAX).await?)?;
            let authors = following.iter().chain([reader]);
            let posts = try_join_all(authors.map(|author| self.posts_before(&txn, author, before, limit))).await?;
            Ok((following, posts))
        };
        let Committed { value: (following, posts), commit, attempts } = self.client.read(read).await?;
        let has_more = posts.iter().any(|posts| posts.len() >= limit);
        let mut posts: Vec<Shown> = posts.into_iter().flatten().collect();
        posts.sort_unstable_by(|one, other| (one.id.newest_first(), &one.author).cmp(&(other.id.newest_first(), &other.author)));
        let has_more = has_more || posts.len() > limit;
        posts.truncate(limit);
        self.observe(&posts);
        Ok(Committed { value: Timeline { posts, following, has_more }, commit, attempts })
    }

    /// A user as `viewer` sees them, with their last posts or those before `before`; none when there is no such user.
    ///
    /// # Errors
    /// Any [`Error`] of the client's, and [`crate::Broken`] in one.
    pub async fn profile(&self, user: &Name, viewer: Option<&Name>, before: Option<PostId>) -> Result<Option<Profile>, Error> {
        let is_followed = viewer.map(|viewer| self.keys.following(viewer, user.as_str()));
        let asked: &Vec<Key> = &[self.keys.account(user), self.keys.count(user)].into_iter().chain(is_followed).collect();
        let read = |txn: Transaction| async move {
            let (low, high) = self.keys.range(user, "follower", None);
            let (found, followers, posts) =
                try_join3(txn.get_many(asked), txn.scan(low, high, LIST_MAX + 1), self.posts_before(&txn, user, before, TIMELINE_MAX))
                    .await?;
            let Some(account) = &found[0] else { return Ok(None) };
            Ok(Some(Profile {
                joined: read_account(&asked[0], account)?.joined,
                // Until the commit, the two reads may be of different moments: before and after the account was made.
                following: found[1].as_ref().map_or(Err(Error::Conflict), |count| read_count(&asked[1], Some(count)))?,
                followers: followers.len(),
                is_followed: found.get(2).is_some_and(Option::is_some),
                has_more: posts.len() >= TIMELINE_MAX,
                posts,
            }))
        };
        let profile = self.client.read(read).await?.value;
        self.observe(profile.as_ref().map_or(&[], |profile| &profile.posts));
        Ok(profile)
    }

    /// Those who follow `user`, in order, after `after`; at most [`LIST_MAX`].
    ///
    /// # Errors
    /// Any [`Error`] of the client's, and [`crate::Broken`] in one.
    pub async fn followers(&self, user: &Name, after: Option<&Name>) -> Result<Vec<Name>, Error> {
        self.list(user, "follower", after).await
    }

    /// Those whom `user` follows, in the same way.
    ///
    /// # Errors
    /// Any [`Error`] of the client's, and [`crate::Broken`] in one.
    pub async fn following(&self, user: &Name, after: Option<&Name>) -> Result<Vec<Name>, Error> {
        self.list(user, "following", after).await
    }

    /// Replaces a password's hash, if it is still `old_hash`, ends all sessions, and begins one under `digest`, all in one transaction: no session that
    /// the old password began outlasts it, and whoever has taken the secret of that in which it was changed has nothing any more.
    ///
    /// # Errors
    /// Any [`Error`] of the client's, and [`crate::Broken`] in one. After [`Error::OutcomeUnknown`] it may be the new one.
    pub async fn change_password(
        &self,
        user: &Name,
        old_hash: &str,
        new_hash: &str,
        digest: &str,
        session: Session,
    ) -> Result<Changed, Error> {
        let (key, begun) = (&self.keys.account(user), &self.keys.session(user, digest));
        let change = |txn: Transaction| async move {
            let (account, sessions) = try_join(txn.get(key.clone()), self.sessions(&txn, user)).await?;
            let account = account.map(|value| read_account(key, &value)).transpose()?;
            let Some(account) = account.filter(|account| account.password_hash == old_hash) else { return Ok(Changed::OtherPassword) };
            txn.put(key.clone(), account_value(account.joined, new_hash));
            sessions.into_iter().for_each(|(session, _)| txn.delete(session));
            txn.put(begun.clone(), text(&session.expires.to_string()));
            Ok(Changed::Now)
        };
        Ok(self.client.transact(change).await?.value)
    }

    /// Begins a session of `user` under the digest of its secret, if `password_hash`, against which the password was checked, is still the
    /// account's. At most [`SESSIONS_MAX`] last: those that are over go, then that which would end first.
    ///
    /// # Errors
    /// Any [`Error`] of the client's, and [`crate::Broken`] in one.
    pub async fn open_session(&self, user: &Name, password_hash: &str, digest: &str, now: u64, session: Session) -> Result<Opened, Error> {
        let account = &self.keys.account(user);
        let open = |txn: Transaction| async move {
            let (found, sessions) = try_join(txn.get(account.clone()), self.sessions(&txn, user)).await?;
            let found = found.map(|value| read_account(account, &value)).transpose()?;
            if found.is_none_or(|found| found.password_hash != password_hash) {
                return Ok(Opened::OtherPassword);
            }
            let ends = sessions.into_iter().map(|(key, value)| Ok((read_number(&key, &value, "a session")?, key)));
            let mut ends = ends.collect::<Result<Vec<(u64, Key)>, Error>>()?;
            ends.sort_unstable();
            let over = ends.iter().filter(|(expires, _)| *expires <= now).count();
            let gone = over.max((ends.len() + 1).saturating_sub(SESSIONS_MAX));
            ends.drain(..gone).for_each(|(_, key)| txn.delete(key));
            txn.put(self.keys.session(user, digest), text(&session.expires.to_string()));
            Ok(Opened::Now)
        };
        Ok(self.client.transact(open).await?.value)
    }

    /// The session of `user` under this digest, if it lasts.
    ///
    /// # Errors
    /// Any [`Error`] of the client's, and [`crate::Broken`] in one.
    pub async fn session(&self, user: &Name, digest: &str, now: u64) -> Result<Option<Session>, Error> {
        let key = &self.keys.session(user, digest);
        let found = self.client.read(|txn| async move { txn.get(key.clone()).await }).await?.value;
        let expires = found.map(|value| read_number(key, &value, "a session")).transpose()?;
        Ok(expires.filter(|expires| *expires > now).map(|expires| Session { expires }))
    }

    /// Ends a session.
    ///
    /// # Errors
    /// Any [`Error`] of the client's.
    pub async fn close_session(&self, user: &Name, digest: &str) -> Result<(), Error> {
        self.client.run(vec![Operation::Delete(self.keys.session(user, digest))]).await.map(drop)
    }

    /// Ends all sessions of `user`.
    ///
    /// # Errors
    /// Any [`Error`] of the client's.
    pub async fn close_sessions(&self, user: &Name) -> Result<(), Error> {
        let close = |txn: Transaction| async move {
            self.sessions(&txn, user).await?.into_iter().for_each(|(key, _)| txn.delete(key));
            Ok(())
        };
        self.client.transact(close).await.map(drop)
    }

    /// The sessions of `user`: there are never more than [`SESSIONS_MAX`].
    async fn sessions(&self, txn: &Transaction, user: &Name) -> Result<Vec<(Key, Value)>, Error> {
        let (low, high) = self.keys.range(user, "session", None);
        txn.scan(low, high, 2 * SESSIONS_MAX).await
    }

    async fn list(&self, user: &Name, part: &str, after: Option<&Name>) -> Result<Vec<Name>, Error> {
        let (low, high) = &self.keys.range(user, part, after.map(Name::as_str));
        let read = |txn: Transaction| async move { names(&txn.scan(low.clone(), high.clone(), LIST_MAX).await?) };
        Ok(self.client.read(read).await?.value)
    }

    async fn posts_before(&self, txn: &Transaction, author: &Name, before: Option<PostId>, limit: usize) -> Result<Vec<Shown>, Error> {
        let before = before.map(|id| id.to_string());
        let (low, high) = self.keys.range(author, "post", before.as_deref());
        let found = txn.scan(low, high, limit).await?;
        let shown = found.iter().map(|(key, value)| {
            let id = last_part(key).parse().map_err(|()| broken(key, "a post"))?;
            Ok(Shown { author: author.clone(), id, text: read_text(key, value, "a post")? })
        });
        shown.collect()
    }

    fn observe(&self, posts: &[Shown]) {
        posts.iter().for_each(|post| self.clock.observe(post.id.time_us));
    }
}

fn account_value(joined: u64, password_hash: &str) -> Value {
    text(&format!("{joined} {password_hash}"))
}

fn read_account(key: &Key, value: &Value) -> Result<Account, Error> {
    let text = read_text(key, value, "an account")?;
    let (joined, hash) = text.split_once(' ').ok_or_else(|| broken(key, "an account"))?;
    Ok(Account { joined: joined.parse().map_err(|_| broken(key, "an account"))?, password_hash: hash.to_owned() })
}

/// A count. It is there as long as its account is.
fn read_count(key: &Key, value: Option<&Value>) -> Result<u64, Error> {
    value.map_or_else(|| Err(broken(key, "a count")), |value| read_number(key, value, "a count"))
}

/// The names that some keys end with.
fn names(found: &[(Key, Value)]) -> Result<Vec<Name>, Error> {
    found.iter().map(|(key, _)| exact(last_part(key)).ok_or_else(|| broken(key, "a name"))).collect()
}

/// The name that is written so, and not in another way that people may write it.
fn exact(text: &str) -> Option<Name> {
    text.parse().ok().filter(|name: &Name| name.as_str() == text)
}

fn last_part(key: &Key) -> &str {
    let text = std::str::from_utf8(key.as_bytes()).unwrap_or_default();
    text.rsplit_once('/').map_or(text, |(_, last)| last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().expect("a name")
    }

    #[test]
    fn all_of_a_user_is_one_range_that_no_other_user_is_in() {
        let keys = Keys::under("buzzer");
        let id = PostId { time_us: u64::MAX, tag: u32::MAX };
        let all = |user: &Name| {
            [
                keys.account(user),
                keys.count(user),
                keys.follower(user, "zz"),
                keys.following(user, "00"),
                keys.post(user, id),
                keys.session(user, "ff"),
            ]
        };
        // Each name against one that it begins with, and neighbours on either side.
        let users = ["an", "ann", "ann0", "ann_", "anna", "b"].map(name);
        for user in &users {
            let (low, high) = (Key::from(format!("buzzer/{user}/").as_str()), Key::from(format!("buzzer/{user}0").as_str()));
            for other in &users {
                assert!(all(other).iter().all(|key| (*key >= low && *key < high) == (user == other)), "{user} {other}");
            }
        }
    }

    #[test]
    fn keys_are_read_as_they_were_written() {
        let (keys, ann, bob) = (Keys::under("buzzer"), name("ann"), name("bob"));
        let id = PostId { time_us: 5, tag: 6 };
        let [following, follower] = keys.edge_rows(&ann, &bob, 1);
        for (key, user, part) in [
            (keys.account(&ann), &ann, Part::Account),
            (keys.count(&ann), &ann, Part::Count),
            (following.0, &ann, Part::Following(bob.clone())),
            (follower.0, &bob, Part::Follower(ann.clone())),
            (keys.post(&ann, id), &ann, Part::Post(id)),
            (keys.session(&ann, "00"), &ann, Part::Session),
        ] {
            assert_eq!(keys.read(&key), Some((user.clone(), part)));
        }
        for wrong in ["buzzer/ann", "other/ann/count", "buzzer/ann/more", "buzzer/ann/post/x", "buzzer/An/count"] {
            assert_eq!(keys.read(&Key::from(wrong)), None, "{wrong}");
        }
    }

    #[test]
    fn the_newest_post_is_the_first_of_its_range_and_a_page_goes_on_after_the_last() {
        let (keys, ann) = (Keys::under("buzzer"), name("ann"));
        let [old, new] = [1_000, 2_000].map(|time_us| PostId { time_us, tag: 7 });
        let (low, high) = keys.range(&ann, "post", None);
        assert!(low < keys.post(&ann, new) && keys.post(&ann, new) < keys.post(&ann, old) && keys.post(&ann, old) < high);
        let (low, _) = keys.range(&ann, "post", Some(&new.to_string()));
        assert!(keys.post(&ann, new) < low && low < keys.post(&ann, old));
        assert!(keys.range(&ann, "follower", None).1 < keys.range(&ann, "following", None).0);
    }
}
