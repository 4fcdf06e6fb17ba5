//! What a follower does.

use bytes::{Bytes, BytesMut};
use machine::Time;
use mutants::{Mutant, broken};

use super::message::{Entry, Leadership, Message, Promise, SNAPSHOT_BYTES_MAX, Zxid};
use super::record::Record;
use super::replica::{Output, Replica, Role};
use super::servers::Servers;

/// A server follows another.
#[derive(Debug)]
pub(super) struct Following {
    pub leader: u16,
    /// When it was last heard of.
    heard: Time,
    /// Whether the log is known to be a prefix of the leader's.
    is_matched: bool,
    /// Whether a majority has accepted the epoch, as the leader says.
    pub is_established: bool,
    /// The leader's last entry when its epoch began.
    beginning: Zxid,
    fetch: Option<Fetch>,
}

/// A snapshot that is being taken over.
#[derive(Debug)]
struct Fetch {
    zxid: Zxid,
    total: u64,
    servers: Servers,
    bytes: BytesMut,
}

impl Replica {
    /// Whether all that the epoch began with is delivered here.
    pub(super) fn follows_whole(&self, following: &Following) -> bool {
        following.is_matched && following.is_established && self.accepted == self.promise.epoch && self.delivered >= following.beginning
    }

    pub(super) fn follow(&mut self, now: Time, leader: u16, output: &mut Output) {
        self.role = Role::Following(Following {
            leader,
            heard: now,
            is_matched: false,
            is_established: false,
            beginning: Zxid::default(),
            fetch: None,
        });
        self.say_follow(leader, output);
    }

    fn say_follow(&self, leader: u16, output: &mut Output) {
        let follow = Message::Follow { promised: self.promise, history: self.history(), standing: self.standing() };
        output.sends.push((leader, follow));
    }

    fn say_ack(&self, leader: u16, output: &mut Output) {
        let (epoch, last) = (self.promise.epoch, self.log.last());
        output.sends.push((leader, Message::Ack { epoch, last, has_accepted: self.accepted == epoch, standing: self.standing() }));
    }

    pub(super) fn tick_following(&mut self, now: Time, output: &mut Output) {
        let Role::Following(following) = &self.role else { return };
        let (leader, is_matched) = (following.leader, following.is_matched);
        if following.heard.after_ms(self.options.timeout_ms) <= now {
            self.look(now, output);
        } else if let Some(fetch) = &following.fetch {
            let page = Message::FetchPage { epoch: self.promise.epoch, zxid: fetch.zxid, offset: fetch.bytes.len() as u64 };
            output.sends.push((leader, page));
        } else if !is_matched {
            self.say_follow(leader, output);
        }
    }

    pub(super) fn on_new_epoch(&mut self, now: Time, from: u16, epoch: u32, output: &mut Output) {
        let Role::Following(following) = &mut self.role else { return };
        if following.leader != from {
            return;
        }
        following.heard = now;
        let promise = Promise { epoch, to: from };
        // What an observer promised protects nobody: it follows whoever leads the others.
        let observes = self.me >= self.count && promise != self.promise;
        if epoch > self.promise.epoch || observes || (broken(Mutant::LowerEpochPromised) && promise != self.promise) {
            (following.is_matched, following.is_established, following.fetch) = (false, false, None);
            self.promise(promise, output);
        }
        if self.promise == promise {
            output.sends.push((from, Message::Promise { epoch, history: self.history(), standing: self.standing() }));
        } else {
            self.say_follow(from, output);
        }
    }

    /// Whether what `from` says as a leader is to be taken in.
    fn obeys(&mut self, now: Time, from: u16, leadership: &Leadership, output: &mut Output) -> bool {
        let history = self.history();
        let Role::Following(following) = &mut self.role else { return false };
        if following.leader != from {
            return false;
        }
        if self.promise != (Promise { epoch: leadership.epoch, to: from }) && !broken(Mutant::UnpromisedObeyed) {
            // It is behind, or this server is: either learns it from this.
            self.say_follow(from, output);
            return false;
        }
        following.heard = now;
        following.is_established |= leadership.is_established;
        following.beginning = leadership.beginning.last;
        let is_decided = following.is_established || history.accepted == leadership.epoch;
        if !is_decided && !following.is_matched && history > leadership.beginning && !broken(Mutant::OlderLeaderObeyed) {
            // It has not been told of all that this server knows, as of an earlier incarnation's promise alone.
            self.look(now, output);
            return false;
        }
        true
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one message")]
    pub(super) fn on_entries(
        &mut self,
        now: Time,
        from: u16,
        leadership: Leadership,
        previous: Zxid,
        entries: Vec<Entry>,
        committed: Zxid,
        output: &mut Output,
    ) {
        if !self.obeys(now, from, &leadership, output) {
            return;
        }
        let last = self.log.last();
        let Role::Following(following) = &mut self.role else { return };
        following.is_matched |= previous == last || broken(Mutant::DivergedAppended);
        let is_matched = following.is_matched;
        if is_matched {
            if previous <= last {
                for entry in entries {
                    // Built from what is there: entries that come again are passed over, and none is left out.
                    if self.log.last().is_followed_by(entry.zxid) {
                        self.append(entry, output);
                    }
                }
            }
            self.go_on_following(leadership, committed, output);
        }
        self.say_ack(from, output);
    }

    /// The log is a prefix of the leader's.
    fn go_on_following(&mut self, leadership: Leadership, committed: Zxid, output: &mut Output) {
        let last = self.log.last();
        if let Role::Following(following) = &mut self.role {
            following.fetch.take_if(|fetch| fetch.zxid <= last);
        }
        if self.accepted != leadership.epoch && (self.log.last() >= leadership.beginning.last || broken(Mutant::AcceptedEarly)) {
            self.accept(leadership.epoch, output);
        }
        if leadership.is_established {
            self.deliver(committed, output);
        }
    }

    pub(super) fn on_truncate(&mut self, now: Time, from: u16, leadership: Leadership, last: Zxid, to: Zxid, output: &mut Output) {
        if !self.obeys(now, from, &leadership, output) {
            return;
        }
        let Role::Following(following) = &self.role else { return };
        let kept = self.log.at_or_before(to);
        // What is delivered is never taken back.
        if let Some(kept) = kept.filter(|kept| *kept >= self.delivered)
            && !following.is_matched
            && last == self.log.last()
            && to < last
        {
            if broken(Mutant::TruncationSkipped) {
                let Role::Following(following) = &mut self.role else { return };
                following.is_matched = true;
            } else {
                self.log.truncate(kept);
                if !broken(Mutant::TruncationUnlogged) {
                    output.write(&Record::Truncate(kept));
                }
            }
        }
        self.say_ack(from, output);
    }

    pub(super) fn on_snapshot(
        &mut self,
        now: Time,
        from: u16,
        leadership: Leadership,
        (zxid, total): (Zxid, u64),
        servers: Servers,
        output: &mut Output,
    ) {
        if !self.obeys(now, from, &leadership, output) {
            return;
        }
        let last = self.log.last();
        let Role::Following(following) = &mut self.role else { return };
        if zxid <= last || total > SNAPSHOT_BYTES_MAX {
            self.say_ack(from, output);
            return;
        }
        if following.fetch.as_ref().is_none_or(|fetch| fetch.zxid != zxid) {
            following.fetch = Some(Fetch { zxid, total, servers, bytes: BytesMut::new() });
            output.sends.push((from, Message::FetchPage { epoch: leadership.epoch, zxid, offset: 0 }));
        }
    }

    pub(super) fn on_page(&mut self, now: Time, from: u16, (epoch, zxid): (u32, Zxid), offset: u64, bytes: &Bytes, output: &mut Output) {
        if self.promise != (Promise { epoch, to: from }) {
            return;
        }
        let Role::Following(following) = &mut self.role else { return };
        let Some(fetch) = following.fetch.as_mut().filter(|fetch| fetch.zxid == zxid && following.leader == from) else { return };
        following.heard = now;
        if fetch.bytes.len() as u64 != offset || offset + bytes.len() as u64 > fetch.total {
            return;
        }
        fetch.bytes.extend_from_slice(bytes);
        if (fetch.bytes.len() as u64) < fetch.total {
            output.sends.push((from, Message::FetchPage { epoch, zxid, offset: fetch.bytes.len() as u64 }));
            return;
        }
        let Some(Fetch { servers, bytes, .. }) = following.fetch.take() else { return };
        if zxid > self.log.last() {
            following.is_matched = true;
            self.install(zxid, servers, bytes.freeze(), output);
        }
        self.say_ack(from, output);
    }
}
