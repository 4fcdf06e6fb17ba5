//! The executor behind the multicast: what is ordered are encoded [`Request`](crate::Request)s, and what is answered are encoded
//! [`Answer`](crate::Answer)s.
//!
//! The state at a checkpoint is one stream of bytes: the executor's head, and then all its pages, each after its length. The
//! multicast's pages are pieces of that stream. Pages of the executor are small, so many of them share a piece, which is made anew when one
//! of them has changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use crypto::Verifier;
use machine::Time;
use types::codec::{Decode as _, Encode as _};
use types::{ClientId, ClusterId, Digest, ReplicaId};

use crate::executor::{Executor, Settings, WrongPage};
use crate::limits::STATE_PAGES_MAX;
use crate::moment::Question;
use crate::multicast::message::{PAGE_BYTES_MAX, QUERY_ANSWER_BYTES_MAX};
use crate::multicast::{self, Answer, Application, Said, WrongPart, page_digest};
use crate::pages::{self, Owner, PageNumber};
use crate::request::{Ordered, Refusal, Reply, Request, Unreadable, Verdict};
use crate::state_transfer::Head;
use crate::transaction::Transaction;

/// So many of the executor's pages share pieces.
const GROUP: usize = 64;
const _: () = assert!(STATE_PAGES_MAX <= multicast::PAGES_MAX / 8 * 7 * GROUP, "what is not of rows has an eighth");
/// So many pages of a state that was wrong are named.
const DIFFERING_MAX: usize = 4;

/// A shard's state, as one replica has it.
#[derive(Debug)]
pub struct Shard {
    settings: Settings,
    me: ReplicaId,
    verifier: Arc<Verifier>,
    executor: Executor,
    /// The last checkpoint's pages.
    groups: Vec<Group>,
    /// The pieces of each checkpoint that is kept.
    kept: BTreeMap<u64, Vec<Bytes>>,
    counts: Counts,
}

/// What this process has executed, also when it only read its journal again. No part of the state.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Transactions that were voted to commit.
    pub committed: u64,
    /// Transactions that were voted to abort.
    pub aborted: u64,
    /// Requests that were refused.
    pub refused: u64,
}

/// Some of the executor's pages, one after the other.
#[derive(Clone, Debug, Default)]
struct Group {
    bytes: Bytes,
    /// The digest of each piece.
    digests: Vec<Digest>,
}

impl Shard {
    /// A shard in which nothing was done, as its replica `index` has it. `verifier` checks the signatures in what is ordered: it knows the
    /// same cluster.
    #[must_use]
    pub fn new(settings: Settings, index: u16, verifier: Arc<Verifier>) -> Self {
        let (executor, me) = (Executor::new(settings.clone()), ReplicaId { shard: settings.shard, index });
        Self { settings, me, verifier, executor, groups: Vec::new(), kept: BTreeMap::new(), counts: Counts::default() }
    }

    /// The executor.
    #[must_use]
    pub fn executor(&self) -> &Executor {
        &self.executor
    }

    /// Flips a bit of a value at rest ([`Executor::flip_bit_at_rest`]).
    pub fn flip_bit_at_rest(&mut self, key: &types::Key, bit: usize) -> bool {
        self.executor.flip_bit_at_rest(key, bit)
    }

    /// Lets go of what is held for readers who are gone, as time has passed.
    pub fn on_tick(&mut self, now: Time) {
        self.executor.on_tick(now);
    }

    /// What this process has executed.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn cluster(&self) -> ClusterId {
        self.settings.cluster.id()
    }

    fn read(&self, request: &multicast::Request) -> Ordered {
        let read = Request::from_bytes(request.payload.clone(), self.cluster()).ok();
        let verified = read.and_then(|read| self.verifier.verify(read).ok());
        Ordered { client: request.key.client, request: verified.ok_or(Unreadable) }
    }

    fn said(&self, reply: &Reply) -> Said {
        let leaf = reply.statement.map(|statement| statement.leaf(self.cluster(), self.me));
        Said { bytes: reply.answer.to_bytes().into(), leaf }
    }

    /// Puts these pages of the executor, by number, into their groups.
    fn regroup(&mut self, changed: impl IntoIterator<Item = (usize, Bytes)>) {
        let cluster = self.cluster();
        let mut by_group: BTreeMap<usize, Vec<(usize, Bytes)>> = BTreeMap::new();
        changed.into_iter().for_each(|(number, page)| by_group.entry(number / GROUP).or_default().push((number % GROUP, page)));
        for (at, changed) in by_group {
            if self.groups.len() <= at {
                self.groups.resize_with(at + 1, Group::default);
            }
            let group = &mut self.groups[at];
            let mut pages = split(&group.bytes).expect("it was put together here");
            for (place, page) in changed {
                pages.resize(pages.len().max(place + 1), Bytes::new());
                pages[place] = page;
            }
            let mut bytes = Vec::with_capacity(pages.iter().map(|page| page.len() + LENGTH_BYTES).sum());
            for page in &pages {
                bytes.extend_from_slice(&u32::try_from(page.len()).expect("pages are bounded").to_le_bytes());
                bytes.extend_from_slice(page);
            }
            let digests = bytes.chunks(PAGE_BYTES_MAX).map(|piece| page_digest(cluster, piece)).collect();
            *group = Group { bytes: bytes.into(), digests };
        }
    }
}

/// How long a page is stands before it in so many bytes.
const LENGTH_BYTES: usize = 4;

/// The pages in a part of the stream.
fn split(stream: &Bytes) -> Option<Vec<Bytes>> {
    let (mut pages, mut at) = (Vec::new(), 0);
    while at < stream.len() {
        let length = u32::from_le_bytes(stream.get(at..at + LENGTH_BYTES)?.try_into().ok()?) as usize;
        at += LENGTH_BYTES;
        let end = at.checked_add(length).filter(|end| *end <= stream.len())?;
        pages.push(stream.slice(at..end));
        at = end;
    }
    Some(pages)
}

impl Application for Shard {
    type Answer = Said;

    fn deliver(&mut self, sequence: u64, requests: &[multicast::Request], answers: &mut Vec<Answer<Said>>) {
        let ordered: Vec<Ordered> = requests.iter().map(|request| self.read(request)).collect();
        let replies = self.executor.deliver(sequence, &ordered);
        for (request, reply) in requests.iter().zip(replies) {
            match &reply.answer {
                crate::Answer::Voted(_, Verdict::Commit(_)) => self.counts.committed += 1,
                crate::Answer::Voted(_, Verdict::Abort(_)) => self.counts.aborted += 1,
                crate::Answer::Refused(_) => self.counts.refused += 1,
                crate::Answer::Ended(..) | crate::Answer::Settled(_) | crate::Answer::Gone(_) => {}
            }
            answers.push(Answer { key: request.key, answer: self.said(&reply) });
        }
    }

    fn answered(&self, request: &multicast::Request) -> Option<Said> {
        let reply = match Request::from_bytes(request.payload.clone(), self.cluster()) {
            Ok(read) => self.executor.answered(request.key.client, &read),
            Err(_) => Reply { answer: crate::Answer::Refused(Refusal::Unreadable), statement: None },
        };
        Some(self.said(&reply))
    }

    fn query(&mut self, client: ClientId, question: &Bytes) -> Option<Bytes> {
        if Question::is_one(question) {
            let question = Question::from_bytes(question.clone(), self.cluster()).ok()?;
            return Some(self.executor.answer_moment(client, &question)?.to_bytes().into());
        }
        let transaction = Transaction::from_bytes(question.clone(), self.cluster()).ok()?;
        let answer = Bytes::from(self.executor.answer_query(client, &transaction)?.to_bytes());
        (answer.len() <= QUERY_ANSWER_BYTES_MAX).then_some(answer)
    }

    fn checkpoint(&mut self, sequence: u64) -> Vec<Digest> {
        let checkpoint = self.executor.checkpoint();
        self.regroup(checkpoint.pages.into_iter().map(|(number, page)| (number.0 as usize, page)));
        let head = Bytes::from(checkpoint.head.to_bytes());
        let mut digests = vec![page_digest(self.cluster(), &head)];
        let mut pieces = vec![head];
        for Group { bytes, digests: of_group } in &self.groups {
            digests.extend(of_group);
            pieces.extend((0..of_group.len()).map(|piece| {
                let begin = piece * PAGE_BYTES_MAX;
                bytes.slice(begin..bytes.len().min(begin + PAGE_BYTES_MAX))
            }));
        }
        self.kept.insert(sequence, pieces);
        digests
    }

    fn page(&self, sequence: u64, index: usize) -> Option<Bytes> {
        self.kept.get(&sequence)?.get(index).cloned()
    }

    fn release(&mut self, before: u64) {
        self.kept = self.kept.split_off(&before);
    }

    fn scrub(&mut self, bytes_max: usize) -> Option<WrongPart> {
        let WrongPage { number, owner, own, agreed } = self.executor.scrub(bytes_max)?;
        let place = match owner {
            Owner::Free => "a page that is free".to_owned(),
            Owner::Rows(low) => format!("the rows from {low} on"),
            Owner::Client(client) => format!("what is kept of {client}"),
            Owner::Session(client, session) => format!("what is kept of session {session} of {client}"),
            Owner::Pending => "a pending transaction".to_owned(),
        };
        Some(WrongPart { part: number.0, place: format!("page {}, {place}", number.0), own, agreed })
    }

    fn hash_again(&mut self, part: u32) {
        self.executor.hash_again(PageNumber(part));
    }

    fn differing(&self, sequence: u64, pieces: &[Bytes]) -> Vec<WrongPart> {
        let pages = |pieces: &[Bytes]| pieces.split_first().and_then(|(_, rest)| split(&rest.concat().into()));
        let Some((own, agreed)) = self.kept.get(&sequence).and_then(|kept| Some((pages(kept)?, pages(pieces)?))) else { return Vec::new() };
        let page = |pages: &[Bytes], at: usize| pages.get(at).cloned().unwrap_or_default();
        let differing = (0..own.len().max(agreed.len())).filter(|at| own.get(*at) != agreed.get(*at)).take(DIFFERING_MAX);
        let cluster = self.cluster();
        let wrong = |at: usize| {
            let part = u32::try_from(at).ok()?;
            let (own, agreed) = (page(&own, at), page(&agreed, at));
            let digest = |page: &Bytes| pages::page_digest(cluster, PageNumber(part), page);
            let place = Executor::place_of(if agreed.is_empty() { &own } else { &agreed }, cluster);
            Some(WrongPart {
                part,
                place: format!("page {part}, {place}, after list {sequence}"),
                own: digest(&own),
                agreed: digest(&agreed),
            })
        };
        differing.filter_map(wrong).collect()
    }

    fn install(&mut self, sequence: u64, pieces: &[Bytes]) {
        let certified = "f+1 honest replicas have said that this is their state";
        let (head, rest) = pieces.split_first().expect(certified);
        let head = Head::from_bytes(head.clone(), self.cluster()).expect(certified);
        let pages = split(&rest.concat().into()).expect(certified);
        self.executor = Executor::install(self.settings.clone(), &head, &pages).expect(certified);
        self.groups.clear();
        self.regroup(pages.into_iter().enumerate());
        self.kept = BTreeMap::from([(sequence, pieces.to_vec())]);
    }
}
