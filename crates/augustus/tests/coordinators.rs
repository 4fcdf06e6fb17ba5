//! Coordinators over an order given by the test: some crash, and one replica of each shard lies.

use std::collections::{BTreeMap, BTreeSet};

use augustus::certificate::{Vote, VoteStatement};
use augustus::limits::SETTLE_EVERY;
use augustus::{
    AbortReason, Answer, Answered, Coordinator, Found, Operation, Order, Outcome, Output, Reply, Request, Signed, Structural, Verdict,
};
use crypto::{BatchSignature, Signatures};
use types::{ClientId, Direction, ReplicaId, ShardId, TransactionId, Value};

use crate::harness::{self, Harness, Random, key, value};

/// Which replica of each shard lies.
const LIAR: u16 = 3;
const ACCOUNTS: [&str; 6] = ["a1", "a2", "n1", "n2", "u1", "u2"];
const START: u64 = 100;

struct Driver {
    coordinator: Coordinator,
    client: ClientId,
    is_crashed: bool,
    /// Orders that no shard has executed.
    to_order: Vec<Order>,
    /// Answers on their way.
    answers: Vec<Answered>,
    outcomes: BTreeMap<TransactionId, Outcome>,
    /// What it wants of each transaction.
    wants: BTreeMap<TransactionId, Want>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Want {
    Audit,
    /// Read these two accounts, to move something from the first to the second.
    Look(&'static str, &'static str),
    Move,
}

struct World {
    harness: Harness,
    random: Random,
    drivers: Vec<Driver>,
    audits: usize,
    moves: usize,
    has_liars: bool,
}

impl World {
    fn new(seed: u64, clients: &[u64]) -> Self {
        let mut harness = Harness::new(3, Structural::Intervals, Signatures::Ed25519);
        for shard in 0..3u16 {
            let accounts = &ACCOUNTS[usize::from(shard) * 2..][..2];
            harness.fill(shard, 1, &[(accounts[0], "100"), (accounts[1], "100")]);
        }
        let driver = |client: &u64| Driver {
            coordinator: Coordinator::new(harness.cluster.clone(), ClientId(*client), 1_000),
            client: ClientId(*client),
            is_crashed: false,
            to_order: Vec::new(),
            answers: Vec::new(),
            outcomes: BTreeMap::new(),
            wants: BTreeMap::new(),
        };
        let drivers = clients.iter().map(driver).collect();
        Self { harness, random: Random(seed), drivers, audits: 0, moves: 0, has_liars: true }
    }

    fn run(&mut self, at: usize, operations: Vec<Operation>, want: Want) -> TransactionId {
        let mut out = Vec::new();
        let id = self.drivers[at].coordinator.run(operations, &mut out).expect("within limits");
        self.drivers[at].wants.insert(id, want);
        self.take(at, out);
        id
    }

    fn take(&mut self, at: usize, out: Vec<Output>) {
        for output in out {
            match output {
                Output::Order(order) => self.drivers[at].to_order.push(order),
                Output::Met(transaction, shard) => {
                    let mut out = Vec::new();
                    self.drivers[at].coordinator.finish(*transaction, shard, &mut out);
                    self.take(at, out);
                }
                Output::Answered(number) => self.drivers[at].answers.retain(|answered| answered.number != number),
                Output::Ended(id, outcome) => {
                    assert!(self.drivers[at].outcomes.insert(id, outcome.clone()).is_none(), "it ends twice");
                    self.on_outcome(at, self.drivers[at].wants[&id], outcome);
                }
            }
        }
    }

    /// A shard executes one order, and its replicas answer.
    fn order(&mut self, at: usize) {
        let which = self.random.below(self.drivers[at].to_order.len());
        let order = self.drivers[at].to_order.swap_remove(which);
        let client = self.drivers[at].client;
        let reply = self.harness.one(order.shard.0, client, order.request.clone());
        for index in 0..4 {
            let answered = self.answer(order.shard, order.number, &reply, index);
            self.drivers[at].answers.push(answered);
        }
        // Perhaps it is ordered again, as a client repeats it.
        if self.random.below(10) == 0 {
            self.drivers[at].to_order.push(order);
        }
    }

    fn answer(&mut self, shard: ShardId, number: u64, reply: &Reply, index: u16) -> Answered {
        let replica = ReplicaId { shard, index };
        let mut sign = |statement: Signed| -> BatchSignature {
            let mut signers = match statement {
                Signed::Vote(statement) => self.harness.signers(shard.0, &[index], &statement),
                Signed::Settled(statement) => self.harness.signers(shard.0, &[index], &statement),
                Signed::Gone(statement) => self.harness.signers(shard.0, &[index], &statement),
            };
            signers.signatures.remove(0).1
        };
        let honest = Answered { replica, number, answer: reply.answer.clone(), signature: reply.statement.map(&mut sign) };
        if index != LIAR || !self.has_liars {
            return honest;
        }
        // The other way round, and signed.
        match &reply.answer {
            Answer::Voted(id, verdict) => {
                let lie = match verdict {
                    Verdict::Commit(Some(found)) if self.random.below(2) == 0 => {
                        Verdict::Commit(Some(found.iter().map(|_| Found::Value(Some(value("0")))).collect()))
                    }
                    Verdict::Commit(_) => Verdict::Abort(AbortReason::Forgotten),
                    Verdict::Abort(_) => Verdict::Commit(Some(Vec::new())),
                };
                let statement = Signed::Vote(VoteStatement { id: *id, vote: lie.vote() });
                Answered { answer: Answer::Voted(*id, lie), signature: reply.statement.map(|_| sign(statement)), ..honest }
            }
            Answer::Ended(id, _) => Answered { answer: Answer::Ended(*id, Vote::Abort), ..honest },
            _ => honest,
        }
    }

    fn hear(&mut self, at: usize) {
        let which = self.random.below(self.drivers[at].answers.len());
        let answered = self.drivers[at].answers.swap_remove(which);
        let verified = self.harness.verify(answered);
        let mut out = Vec::new();
        self.drivers[at].coordinator.on_answered(verified, &mut out);
        self.take(at, out);
    }

    /// Audits all accounts, looks at two to move something, or moves it.
    fn on_outcome(&mut self, at: usize, want: Want, outcome: Outcome) {
        let Outcome::Committed(found) = outcome else {
            assert!(!matches!(outcome, Outcome::Refused(_) | Outcome::Unknown), "{outcome:?}");
            return;
        };
        match want {
            Want::Audit => {
                let Some(found) = found else { return };
                let sum: u64 = found
                    .iter()
                    .map(|(_, found)| match found {
                        Found::Value(Some(value)) => number(value),
                        Found::Rows(rows) => rows.iter().map(|(_, value)| number(value)).sum(),
                        Found::Value(None) => panic!("an account is gone"),
                    })
                    .sum();
                assert_eq!(sum, START * ACCOUNTS.len() as u64, "an audit saw half of a transaction");
                self.audits += 1;
            }
            Want::Look(from, to) => {
                let found: Vec<(usize, Found)> = found.unwrap_or_default();
                let [(_, Found::Value(Some(from_has))), (_, Found::Value(Some(to_has)))] = found.as_slice() else { return };
                let amount = 1 + self.random.below(9) as u64;
                let Some(rest) = number(from_has).checked_sub(amount) else { return };
                let operations = vec![
                    Operation::Compare(key(from), Some(from_has.clone())),
                    Operation::Compare(key(to), Some(to_has.clone())),
                    Operation::Write(key(from), value(&rest.to_string())),
                    Operation::Write(key(to), value(&(number(to_has) + amount).to_string())),
                ];
                self.run(at, operations, Want::Move);
            }
            Want::Move => self.moves += 1,
        }
    }

    fn begin(&mut self, at: usize) {
        if self.random.below(6) == 0 {
            let operations = match self.random.below(2) {
                0 => ACCOUNTS.map(|account| Operation::Read(key(account))).to_vec(),
                _ => vec![Operation::ReadRange(harness::range("a", "z"), Direction::Ascending, 100)],
            };
            self.run(at, operations, Want::Audit);
            return;
        }
        let mut accounts = ACCOUNTS;
        self.random.shuffle(&mut accounts);
        self.run(at, vec![Operation::Read(key(accounts[0])), Operation::Read(key(accounts[1]))], Want::Look(accounts[0], accounts[1]));
    }

    fn step(&mut self) -> bool {
        let alive = |driver: &Driver| !driver.is_crashed && driver.to_order.len() + driver.answers.len() > 0;
        let busy: Vec<usize> = (0..self.drivers.len()).filter(|at| alive(&self.drivers[*at])).collect();
        if busy.is_empty() {
            return false;
        }
        let at = self.random.pick(&busy);
        let (orders, answers) = (self.drivers[at].to_order.len(), self.drivers[at].answers.len());
        if answers == 0 || (orders > 0 && self.random.below(3) == 0) {
            self.order(at)
        } else {
            self.hear(at)
        }
        true
    }
}

fn number(value: &Value) -> u64 {
    value.to_string().parse().expect("a balance")
}

#[test]
fn money_is_neither_made_nor_lost_though_clients_crash_and_replicas_lie() {
    let (mut audits, mut moves, mut crashed) = (0, 0, 0);
    for seed in 0..24 {
        let mut world = World::new(seed, &[1, 2, 4, 5]);
        for _ in 0..5_000 {
            let at = world.random.below(4);
            if !world.drivers[at].is_crashed && world.drivers[at].coordinator.under_way() < 3 && world.random.below(4) == 0 {
                world.begin(at);
            }
            // All but one may crash.
            if at > 0 && world.random.below(1_600) == 0 {
                crashed += usize::from(!world.drivers[at].is_crashed);
                world.drivers[at].is_crashed = true;
            }
            world.step();
        }
        while world.step() {}
        for driver in world.drivers.iter().filter(|driver| !driver.is_crashed) {
            assert_eq!((driver.coordinator.under_way(), driver.outcomes.len()), (0, driver.wants.len()), "all have ended");
        }
        // Whoever is left meets what the crashed have left, and finishes it.
        let mut audited = world.audits;
        for _ in 0..40 {
            let id = world.run(
                0,
                vec![Operation::ReadRange(harness::range("a", "z"), Direction::Ascending, 100), Operation::Put(key("a3"), value("0"))],
                Want::Audit,
            );
            while world.step() {}
            if matches!(world.drivers[0].outcomes[&id], Outcome::Committed(_)) {
                break;
            }
        }
        audited = world.audits - audited;
        assert_eq!(audited, 1, "seed {seed}: something stays in the way");
        (audits, moves) = (audits + world.audits, moves + world.moves);
    }
    assert!(audits > 200 && moves > 200 && crashed > 12, "this shows too little: {audits} audits, {moves} moves, {crashed} crashes");
}

#[test]
fn a_verdict_takes_f_plus_1_replicas() {
    let mut world = World::new(1, &[1]);
    world.run(0, vec![Operation::Read(key("a1"))], Want::Look("a1", "a2"));
    world.order(0);
    let answers = std::mem::take(&mut world.drivers[0].answers);
    let (lie, honest) = (answers[usize::from(LIAR)].clone(), answers[..3].to_vec());
    for answered in [lie, honest[0].clone(), honest[0].clone()] {
        let verified = world.harness.verify(answered);
        let mut out = Vec::new();
        world.drivers[0].coordinator.on_answered(verified, &mut out);
        assert_eq!(out, [], "one replica has said this, though twice");
    }
    let verified = world.harness.verify(honest[1].clone());
    let mut out = Vec::new();
    world.drivers[0].coordinator.on_answered(verified, &mut out);
    let [Output::Answered(_), Output::Ended(_, Outcome::Committed(Some(found)))] = out.as_slice() else { panic!("{out:?}") };
    assert_eq!(found, &[(0, Found::Value(Some(value("100"))))]);
}

/// What the first shard says now of the client's transaction `number`.
fn verdict(world: &mut World, number: u64) -> Verdict {
    let operations = vec![Operation::Put(key("a3"), value("1")), Operation::Put(key("n3"), value("1"))];
    let transaction = world.harness.transaction(ClientId(1), 1_000, number, operations);
    world.harness.run(0, &transaction)
}

#[test]
fn a_client_settles_what_it_has_committed() {
    let mut world = World::new(7, &[1]);
    world.has_liars = false;
    let mut forgets = BTreeSet::new();
    for _ in 0..SETTLE_EVERY + 600 {
        world.run(0, vec![Operation::Put(key("a3"), value("1")), Operation::Put(key("n3"), value("1"))], Want::Move);
        loop {
            forgets.extend(
                world.drivers[0].to_order.iter().filter(|order| matches!(order.request, Request::Forget(..))).map(|order| order.shard),
            );
            if !world.step() {
                break;
            }
        }
    }
    assert_eq!(world.moves, SETTLE_EVERY + 600);
    assert_eq!(forgets, BTreeSet::from([ShardId(0), ShardId(1), ShardId(2)]));
    // The first one is forgotten, so it counts as voted down; a later one is not.
    assert_eq!(verdict(&mut world, 1), Verdict::Abort(AbortReason::Forgotten));
    assert_eq!(verdict(&mut world, SETTLE_EVERY as u64 + 100), Verdict::Commit(None));
}

#[test]
fn what_other_shards_need_nothing_of_is_settled_without_one_that_does_not_answer() {
    let mut world = World::new(7, &[1]);
    world.has_liars = false;
    let mut unanswered = BTreeSet::new();
    for _ in 0..SETTLE_EVERY + 600 {
        world.run(0, vec![Operation::Put(key("a3"), value("1")), Operation::Put(key("n3"), value("1"))], Want::Move);
        loop {
            let orders = &mut world.drivers[0].to_order;
            unanswered.extend(orders.iter().filter(|order| order.shard == ShardId(2)).map(|order| order.number));
            orders.retain(|order| order.shard != ShardId(2));
            if !world.step() {
                break;
            }
        }
    }
    assert_eq!((unanswered.len(), verdict(&mut world, 1)), (1, Verdict::Commit(None)));
    let mut out = Vec::new();
    unanswered.iter().for_each(|order| world.drivers[0].coordinator.give_up(*order, &mut out));
    world.take(0, out);
    while world.step() {}
    assert_eq!(verdict(&mut world, 1), Verdict::Abort(AbortReason::Forgotten));
    assert_eq!(verdict(&mut world, SETTLE_EVERY as u64 + 100), Verdict::Commit(None));
}
