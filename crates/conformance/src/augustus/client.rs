//! A client: has one request after the other ordered.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use ::augustus::multicast::{Message, Request, RequestKey};
use bytes::Bytes;
use crypto::Verified;
use machine::{Input, InputOf, Machine, OutboxOf, Time};
use random::{Named as _, Random, named};
use simulator::{Client, Goal, Next};
use types::{ClientId, Cluster, Party, ReplicaId, Session, ShardId};

use super::Order;

type Scene<'a> = simulator::Scene<'a, Order>;

/// After so long a client says its request again, in milliseconds.
const RETRY_MS: u64 = 200;

named! {
    /// A way for a client to cheat.
    pub enum ClientStrategy {
        /// Tells some replicas only.
        TellSome,
        /// Tells each replica something else under one number.
        TwoFaced,
        /// Gives numbers far ahead, and old ones again with something else.
        Jump,
        /// Speaks in the names of others.
        Impersonate,
        /// Says more than anybody has room for.
        Flood,
    }
}

impl ClientStrategy {
    /// One way.
    pub(super) fn draw(random: &mut Random) -> Vec<Self> {
        vec![random.pick(Self::ALL)]
    }
}

/// A client.
pub struct OrderClient {
    cluster: Arc<Cluster>,
    id: ClientId,
    cheat: Option<(Vec<ClientStrategy>, Random)>,
    session: Session,
    numbers: u64,
    /// The shards where it has something ordered, the current one last.
    shards: Vec<ShardId>,
    asked: Option<Asked>,
}

struct Asked {
    request: Request,
    shard: ShardId,
    answers: BTreeMap<u16, Bytes>,
    again: Time,
}

/// What a client hears when `f+1` replicas say the same.
#[derive(Debug)]
pub struct Told {
    shard: ShardId,
    key: RequestKey,
    answer: Bytes,
}

impl OrderClient {
    pub(super) fn new(cluster: Arc<Cluster>, id: ClientId, cheat: Option<(Vec<ClientStrategy>, Random)>) -> Self {
        Self { cluster, id, cheat, session: Session(0), numbers: 0, shards: Vec::new(), asked: None }
    }

    fn next(&mut self, scene: &mut Scene<'_>) -> Option<(ShardId, Request)> {
        let shard = self.shards.pop()?;
        self.session = match scene.party {
            Party::Client(_, session) => session,
            Party::Replica(_) => self.session,
        };
        self.numbers += 1;
        let length = scene.random.pick(&[0, 8, 8, 200]);
        let payload: Vec<u8> = (0..length).map(|_| u8::try_from(scene.random.below(256)).unwrap_or_default()).collect();
        let key = RequestKey { client: self.id, session: self.session, number: self.numbers };
        let request = Request { key, payload: payload.into() };
        if self.is_honest() {
            scene.checker.asked(shard, &request);
        }
        scene.line(|| format!("{:?} asks {shard}", request.key));
        Some((shard, request))
    }

    fn say(&self, outbox: &mut OutboxOf<Self>) {
        if let Some(Asked { request, shard, .. }) = &self.asked {
            let all = self.cluster.replicas_of(*shard);
            all.for_each(|replica| outbox.send(Party::Replica(replica), Message::Request(request.clone())));
        }
    }

    /// What it says instead when it cheats.
    fn lie(&mut self, request: &Request, shard: ShardId, outbox: &mut OutboxOf<Self>) {
        let cluster = self.cluster.clone();
        let Some((strategies, random)) = &mut self.cheat else { return };
        let strategy = random.pick(strategies);
        let mut say = |replica: ReplicaId, request: Request| outbox.send(Party::Replica(replica), Message::Request(request));
        let other = |random: &mut Random| Bytes::from(random.next().to_le_bytes().to_vec());
        for replica in cluster.replicas_of(shard) {
            match strategy {
                ClientStrategy::TellSome if random.chance(500) => say(replica, request.clone()),
                ClientStrategy::TellSome => {}
                ClientStrategy::TwoFaced => {
                    let payload = if random.chance(500) { request.payload.clone() } else { Bytes::from_static(b"other") };
                    say(replica, Request { payload, ..request.clone() });
                }
                ClientStrategy::Jump => {
                    let number = random.pick(&[0, 1, request.key.number, request.key.number + 900, 1_025, 2_000, u64::MAX]);
                    say(replica, Request { key: RequestKey { number, ..request.key }, payload: other(random) });
                    say(replica, request.clone());
                }
                ClientStrategy::Impersonate => {
                    let key = RequestKey { client: ClientId(1 + random.below(4)), ..request.key };
                    say(replica, Request { key, payload: other(random) });
                }
                ClientStrategy::Flood => {
                    for number in 0..20 {
                        say(
                            replica,
                            Request { key: RequestKey { number: request.key.number * 20 + number, ..request.key }, payload: other(random) },
                        );
                    }
                }
            }
        }
    }
}

impl Client<Order> for OrderClient {
    fn is_honest(&self) -> bool {
        self.cheat.is_none()
    }

    fn begin(&mut self, goal: Goal, scene: &mut Scene<'_>) -> Next<(ShardId, Request)> {
        let all: Vec<ShardId> = self.cluster.shards().collect();
        self.shards = if goal == Goal::Audit { all } else { vec![scene.random.pick(&all)] };
        self.next(scene).map_or(Next::Wait, Next::Command)
    }

    fn told(&mut self, Told { shard, key, answer }: Told, scene: &mut Scene<'_>) -> Next<(ShardId, Request)> {
        scene.line(|| format!("{key:?} is delivered by {shard}"));
        if self.is_honest() {
            scene.checker.told(shard, key, &answer);
        }
        self.next(scene).map_or(Next::Done, Next::Command)
    }

    fn forget(&mut self) {
        (self.numbers, self.asked) = (0, None);
        self.shards.clear();
    }
}

impl Machine for OrderClient {
    type Command = (ShardId, Request);
    type Received = Verified<Message>;
    type Message = Message;
    type Unsigned = Infallible;
    type Event = Told;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        match input {
            Input::Command((shard, request)) => {
                self.lie(&request, shard, outbox);
                self.asked = Some(Asked { request, shard, answers: BTreeMap::new(), again: now.after_ms(RETRY_MS) });
                if self.cheat.is_none() {
                    self.say(outbox);
                }
            }
            Input::Message { from: Party::Replica(replica), message } => {
                let Message::Reply { number, answer, .. } = message.into_inner() else { return };
                let Some(asked) = &mut self.asked else { return };
                if asked.request.key.number != number || asked.shard != replica.shard {
                    return;
                }
                asked.answers.insert(replica.index, answer.clone());
                if asked.answers.values().filter(|other| **other == answer).count() > self.cluster.faults() {
                    outbox.emit(Told { shard: asked.shard, key: asked.request.key, answer });
                    self.asked = None;
                }
            }
            Input::Message { .. } => {}
            Input::Tick => {
                if let Some(asked) = self.asked.as_mut().filter(|asked| asked.again <= now) {
                    asked.again = now.after_ms(RETRY_MS);
                    if self.cheat.is_none() {
                        self.say(outbox);
                    }
                }
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        self.asked.as_ref().map(|asked| asked.again)
    }
}

/// A message in a line.
pub(super) fn describe(message: &Message) -> String {
    match message {
        Message::Request(request) => format!("Request {:?}", request.key),
        Message::Vouch(ids) => format!("Vouch for {}", ids.len()),
        Message::Propose { view, sequence, ids } => format!("Propose {sequence} in view {view}: {} requests", ids.len()),
        Message::Prepare(claim) => format!("Prepare {} in view {} {:02x?}", claim.sequence, claim.view, &claim.digest[..2]),
        Message::Commit(claim) => format!("Commit {} in view {} {:02x?}", claim.sequence, claim.view, &claim.digest[..2]),
        Message::Decided { sequence, digest } => format!("Decided {sequence} {:02x?}", &digest[..2]),
        Message::Checkpoint(vote, _) => format!("Checkpoint {} {:02x?} of {}", vote.sequence, &vote.digest[..2], vote.signer),
        Message::Stable(certificate) => format!("Stable {}", certificate.sequence),
        Message::ViewChange(vote, _) => {
            let stable = vote.stable.as_ref().map_or(0, |stable| stable.sequence);
            let claims = |claims: &[::augustus::multicast::message::Claim]| {
                let claims = claims.iter().map(|claim| format!("{}@{} {:02x?}", claim.sequence, claim.view, &claim.digest[..2]));
                claims.collect::<Vec<_>>().join(" ")
            };
            format!(
                "ViewChange of {} to {}, stable {stable}, prepared [{}], accepted [{}]",
                vote.signer,
                vote.view,
                claims(&vote.prepared),
                claims(&vote.accepted)
            )
        }
        Message::NewView(view, _) => format!("NewView {} of {} votes", view.view, view.votes.len()),
        Message::Status(status) => format!("{status:?}"),
        Message::FetchRequests(ids) => format!("FetchRequests {}", ids.len()),
        Message::Requests(requests) => format!("Requests {}", requests.len()),
        Message::FetchList { sequence, .. } => format!("FetchList {sequence}"),
        Message::List { sequence, requests } => format!("List {sequence} of {}", requests.len()),
        Message::FetchHead(sequence) => format!("FetchHead {sequence}"),
        Message::Head { sequence, head } => format!("Head {sequence} of {} bytes", head.len()),
        Message::FetchPage { sequence, index } => format!("FetchPage {index} of {sequence}"),
        Message::Page { sequence, index, .. } => format!("Page {index} of {sequence}"),
        Message::FetchReached(question) => format!("FetchReached, question {question}"),
        Message::Reached { view, delivered, .. } => format!("Reached view {view}, delivered {delivered}"),
        Message::Reply { number, answer, .. } => format!("Reply {number} {:02x?}", &answer[..answer.len().min(8)]),
    }
}
