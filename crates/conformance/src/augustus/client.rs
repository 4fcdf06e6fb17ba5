//! A client: has one request after the other ordered.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use ::augustus::multicast::{Message, Request, RequestKey};
use bytes::Bytes;
use crypto::Verified;
use machine::{Durable, Input, InputOf, Machine, OutboxOf, Time};
use mutants::{Mutant, broken};
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
    /// The number of its last question.
    questions: u64,
}

struct Asked {
    wanted: Wanted,
    answers: BTreeMap<u16, Bytes>,
    again: Time,
}

/// What a client wants of a shard.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// That this is ordered.
    Order(ShardId, Request),
    /// To know how much was delivered, without anything being ordered; and how much was at least, when it asked.
    Query(ShardId, u64, u64),
}

/// What a client hears.
#[derive(Debug)]
pub enum Told {
    /// What `f+1` replicas say of its request.
    Ordered(ShardId, RequestKey, Bytes),
    /// What `2f+1` replicas say that they have delivered, and how much it is at least; nothing where too few agreed in time.
    Delivered(ShardId, u64, Option<Bytes>),
}

impl OrderClient {
    pub(super) fn new(cluster: Arc<Cluster>, id: ClientId, cheat: Option<(Vec<ClientStrategy>, Random)>) -> Self {
        Self { cluster, id, cheat, session: Session(0), numbers: 0, shards: Vec::new(), asked: None, questions: 0 }
    }

    fn next(&mut self, scene: &mut Scene<'_>) -> Option<Wanted> {
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
        Some(Wanted::Order(shard, request))
    }

    /// Asks how much a shard has delivered.
    fn question(&mut self, scene: &mut Scene<'_>) -> Wanted {
        let shards: Vec<ShardId> = self.cluster.shards().collect();
        let shard = scene.random.pick(&shards);
        self.questions += 1;
        let at_least = scene.checker.places_of(shard);
        scene.line(|| format!("question {} to {shard}, which has delivered {at_least}", self.questions));
        Wanted::Query(shard, self.questions, at_least)
    }

    fn say(&self, outbox: &mut OutboxOf<Self>) {
        let Some(Asked { wanted, .. }) = &self.asked else { return };
        let (shard, message) = match wanted {
            Wanted::Order(shard, request) => (*shard, Message::Request(request.clone())),
            Wanted::Query(shard, number, _) => (*shard, Message::Query { number: *number, question: Bytes::new() }),
        };
        self.cluster.replicas_of(shard).for_each(|replica| outbox.send(Party::Replica(replica), message.clone()));
    }

    /// A replica has answered.
    fn on_answer(&mut self, replica: ReplicaId, (number, is_query): (u64, bool), answer: Option<Bytes>, outbox: &mut OutboxOf<Self>) {
        let faults = self.cluster.faults();
        let Some(Asked { wanted, answers, .. }) = &mut self.asked else { return };
        let (shard, expected, needed) = match wanted {
            Wanted::Order(shard, request) => (*shard, (request.key.number, false), faults + 1),
            Wanted::Query(shard, number, _) if broken(Mutant::QueryQuorum) => (*shard, (*number, true), faults + 1),
            Wanted::Query(shard, number, _) => (*shard, (*number, true), 2 * faults + 1),
        };
        let Some(answer) = answer.filter(|_| expected == (number, is_query) && shard == replica.shard) else { return };
        answers.insert(replica.index, answer.clone());
        if answers.values().filter(|other| **other == answer).count() >= needed {
            outbox.emit(match wanted {
                Wanted::Order(shard, request) => Told::Ordered(*shard, request.key, answer),
                Wanted::Query(shard, _, at_least) => Told::Delivered(*shard, *at_least, Some(answer)),
            });
            self.asked = None;
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

    fn begin(&mut self, goal: Goal, scene: &mut Scene<'_>) -> Next<Wanted> {
        if self.is_honest() && goal != Goal::Audit && scene.random.chance(300) {
            self.shards = Vec::new();
            return Next::Command(self.question(scene));
        }
        let all: Vec<ShardId> = self.cluster.shards().collect();
        self.shards = if goal == Goal::Audit { all } else { vec![scene.random.pick(&all)] };
        self.next(scene).map_or(Next::Wait, Next::Command)
    }

    fn told(&mut self, told: Told, scene: &mut Scene<'_>) -> Next<Wanted> {
        scene.line(|| format!("is told {told:02x?}"));
        match told {
            Told::Ordered(shard, key, answer) if self.is_honest() => scene.checker.told(shard, key, &answer),
            Told::Ordered(..) => {}
            Told::Delivered(shard, at_least, Some(answer)) => scene.checker.told_how_much(shard, at_least, &answer),
            Told::Delivered(_, _, None) => return Next::NotDone,
        }
        self.next(scene).map_or(Next::Done, Next::Command)
    }

    fn forget(&mut self) {
        (self.numbers, self.questions, self.asked) = (0, 0, None);
        self.shards.clear();
    }
}

impl Machine for OrderClient {
    type Command = Wanted;
    type Received = Verified<Message>;
    type Message = Message;
    type Unsigned = Infallible;
    type Event = Told;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        match input {
            Input::Command(wanted) => {
                if let Wanted::Order(shard, request) = &wanted {
                    self.lie(request, *shard, outbox);
                }
                self.asked = Some(Asked { wanted, answers: BTreeMap::new(), again: now.after_ms(RETRY_MS) });
                if self.cheat.is_none() {
                    self.say(outbox);
                }
            }
            Input::Message { from: Party::Replica(replica), message } => match message.into_inner() {
                Message::Reply { number, answer, .. } => self.on_answer(replica, (number, false), Some(answer), outbox),
                Message::QueryReply { number, answer } => self.on_answer(replica, (number, true), answer, outbox),
                _ => {}
            },
            Input::Message { .. } => {}
            Input::Tick => {
                let Some(asked) = self.asked.as_mut().filter(|asked| asked.again <= now) else { return };
                if let Wanted::Query(shard, _, at_least) = asked.wanted {
                    outbox.emit(Told::Delivered(shard, at_least, None));
                    self.asked = None;
                } else {
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

impl Durable for OrderClient {
    type Failure = Infallible;

    /// A client keeps nothing.
    fn persist(&mut self) -> Result<(), Infallible> {
        Ok(())
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
        Message::Query { number, .. } => format!("Query {number}"),
        Message::QueryReply { number, answer } => {
            format!("QueryReply {number} {:02x?}", answer.as_ref().map(|answer| &answer[..answer.len().min(8)]))
        }
        Message::Reply { number, answer, .. } => format!("Reply {number} {:02x?}", &answer[..answer.len().min(8)]),
    }
}
