//! Whatever is batched with whatever: it is as if all had run one after the other, in the order of timestamps and places.

use std::collections::{BTreeMap, BTreeSet};

use basil::{Failure, Refusal};
use cataphract::{BatchSize, BatchedCommit, ConflictRule, Operation, Order, PoolOptions};
use proptest::prelude::*;
use types::{Key, Timestamp, TransactionId, Value};

use crate::harness::{self, Luck, World, delete, get, put};

/// So few keys that everything meets.
const KEYS: [&str; 5] = ["a", "b", "c", "d", "e"];

#[derive(Clone, Debug)]
enum Step {
    /// A transaction comes whose operations are known.
    Declared(Vec<Operation>),
    /// One comes that runs on its own: a part now, the rest as soon as the next such step comes.
    Run(Vec<Operation>, Vec<Operation>),
    /// Somebody else writes.
    Foreign(usize),
    /// Somebody else reads, with a clock that is ahead by so much.
    ForeignRead(usize, u64),
    Advance,
    /// The network moves something.
    Deliver(usize, Luck),
}

fn operation() -> impl Strategy<Value = Operation> {
    let name = || (0..KEYS.len()).prop_map(|at| KEYS[at]);
    prop_oneof![4 => name().prop_map(get), 4 => (name(), 0..1_000_000u32).prop_map(|(name, value)| put(name, &value.to_string())), 1 => name().prop_map(delete)]
}

fn luck() -> impl Strategy<Value = Luck> {
    let refusals = prop_oneof![
        Just(Refusal::TooOld),
        Just(Refusal::TooLarge),
        Just(Refusal::NotPermitted),
        Just(Refusal::Overloaded { after_ms: 100 })
    ];
    let failure = prop_oneof![refusals.prop_map(Failure::Refused), Just(Failure::TimedOut(None))];
    prop_oneof![40 => Just(Luck::Done), 1 => failure.prop_map(Luck::Fails)]
}

fn step() -> impl Strategy<Value = Step> {
    let operations = || prop::collection::vec(operation(), 1..6);
    prop_oneof![
        6 => operations().prop_map(Step::Declared),
        3 => (operations(), prop::collection::vec(operation(), 0..4)).prop_map(|(now, later)| Step::Run(now, later)),
        1 => (0..KEYS.len()).prop_map(Step::Foreign),
        1 => (0..KEYS.len(), 0..20u64).prop_map(|(at, ahead)| Step::ForeignRead(at, ahead)),
        3 => Just(Step::Advance),
        8 => (0..8usize, luck()).prop_map(|(which, luck)| Step::Deliver(which, luck)),
    ]
}

fn options() -> impl Strategy<Value = PoolOptions> {
    let size = prop_oneof![(1..20usize).prop_map(BatchSize::Fixed), (1..40usize).prop_map(|max| BatchSize::Adaptive { max })];
    let order = prop_oneof![Just(Order::ReadAfterWrite), Just(Order::WriteAfterRead)];
    let conflicts = prop_oneof![2 => Just(ConflictRule::Chain), 1 => Just(ConflictRule::LeaveOut), 1 => Just(ConflictRule::EndBatch)];
    (size, order, conflicts, 1..4usize).prop_map(|(size, order, conflicts, in_flight)| PoolOptions {
        size,
        order,
        conflicts,
        in_flight,
        ..PoolOptions::default()
    })
}

fn unchained() -> impl Strategy<Value = ConflictRule> {
    prop_oneof![Just(ConflictRule::LeaveOut), Just(ConflictRule::EndBatch)]
}

/// A run, and what everybody else wrote in it.
struct Run {
    world: World,
    foreign: Vec<(Timestamp, Key, Value)>,
}

fn play(options: PoolOptions, steps: &[Step]) -> Run {
    let mut world = World::new(options);
    let mut foreign = Vec::new();
    let mut running = None;
    for step in steps {
        match step {
            Step::Declared(operations) => {
                world.submit(operations);
            }
            Step::Run(now, later) => {
                if let Some((mut buffer, rest)) = running.take() {
                    world.run(&mut buffer, rest);
                    if !buffer.is_empty() {
                        world.join(buffer);
                    }
                }
                let mut buffer = world.begin();
                world.run(&mut buffer, now);
                running = Some((buffer, later));
            }
            Step::Foreign(at) => {
                let value = format!("foreign {}", foreign.len());
                let before = world.store.newest();
                world.foreign_write(KEYS[*at], &value);
                if world.store.newest() != before {
                    // The write took the timestamp that was drawn last.
                    let at_time = Timestamp::new(world.now().0 / 1_000_000, types::ClientId(1));
                    foreign.push((at_time, harness::key(KEYS[*at]), Value::from(value.as_str())));
                }
            }
            Step::ForeignRead(at, ahead) => world.foreign_read(KEYS[*at], *ahead),
            Step::Advance => world.advance(),
            Step::Deliver(which, luck) => world.deliver(*which, *luck),
        }
    }
    world.settle();
    Run { world, foreign }
}

/// Runs everything that committed one after the other, and compares each read.
fn replay(run: &Run) -> Result<(), TestCaseError> {
    let Run { world, foreign } = run;
    // In the order of timestamps and places; what others wrote has a place of its own.
    let mut order: BTreeMap<(Timestamp, u32), Option<(u64, &BatchedCommit)>> = foreign.iter().map(|(at, _, _)| ((*at, 0), None)).collect();
    for (ticket, outcome) in &world.outcomes {
        if let Ok(committed) = outcome {
            let taken = order.insert((committed.transaction.timestamp(), committed.place), Some((*ticket, committed)));
            prop_assert!(taken.is_none(), "two share a place");
            prop_assert!(committed.place < committed.size);
        }
    }
    let mut state: BTreeMap<Key, Value> = BTreeMap::new();
    for ((timestamp, _), who) in order {
        let Some((ticket, committed)) = who else {
            let (_, key, value) = foreign.iter().find(|(at, _, _)| *at == timestamp).expect("it was put there");
            state.insert(key.clone(), value.clone());
            continue;
        };
        let (operations, buffer) = &world.works[&ticket];
        let mut seen = Vec::new();
        for operation in operations {
            match operation {
                Operation::Get(key) => seen.push(state.get(key).cloned()),
                Operation::Put(key, value) => drop(state.insert(key.clone(), value.clone())),
                Operation::Delete(key) => drop(state.remove(key)),
                Operation::Compare(..) => {}
            }
        }
        prop_assert_eq!(&committed.values, &seen, "what {} read", ticket);
        for found in buffer.iter().flat_map(|buffer| buffer.read_set()) {
            prop_assert_eq!(&found.value, &state.get(&found.key).cloned(), "{} read {}", ticket, &found.key);
        }
        for (key, value) in buffer.iter().flat_map(|buffer| buffer.write_set()) {
            match value {
                Some(value) => drop(state.insert(key.clone(), value.clone())),
                None => drop(state.remove(key)),
            }
        }
    }
    prop_assert_eq!(state, world.store.newest());
    Ok(())
}

/// Which transactions shared a batch, in their order.
fn batches(world: &World) -> BTreeMap<TransactionId, Vec<u64>> {
    let mut batches: BTreeMap<TransactionId, Vec<(u32, u64)>> = BTreeMap::new();
    for (ticket, outcome) in &world.outcomes {
        if let Ok(committed) = outcome {
            batches.entry(committed.transaction.id()).or_default().push((committed.place, *ticket));
        }
    }
    let sorted = |mut members: Vec<(u32, u64)>| {
        members.sort_unstable();
        members.into_iter().map(|(_, ticket)| ticket).collect()
    };
    batches.into_iter().map(|(id, members)| (id, sorted(members))).collect()
}

fn reads_and_writes(world: &World, ticket: u64) -> (BTreeSet<Key>, BTreeSet<Key>) {
    let (operations, buffer) = &world.works[&ticket];
    let (writes, reads): (Vec<&Operation>, Vec<&Operation>) = operations.iter().partition(|operation| operation.write().is_some());
    let mut reads: BTreeSet<Key> = reads.into_iter().map(|operation| operation.key().clone()).collect();
    let mut writes: BTreeSet<Key> = writes.into_iter().map(|operation| operation.key().clone()).collect();
    reads.extend(buffer.iter().flat_map(|buffer| buffer.read_set()).map(|found| found.key.clone()));
    writes.extend(buffer.iter().flat_map(|buffer| buffer.write_set()).map(|(key, _)| key.clone()));
    (reads, writes)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn batches_give_what_one_at_a_time_gives(options in options(), steps in prop::collection::vec(step(), 1..120)) {
        let run = play(options, &steps);
        let world = &run.world;
        prop_assert_eq!(world.outcomes.len(), world.works.len(), "everybody hears of their transaction");
        replay(&run)?;
        for members in batches(world).values() {
            prop_assert_eq!(members.len(), world.committed(members[0]).size as usize, "all of a batch or none");
            let (BatchSize::Fixed(limit) | BatchSize::Adaptive { max: limit }) = options.size;
            prop_assert!(members.len() <= limit);
        }
        let counts = world.pool.counts();
        prop_assert_eq!(counts.committed as usize, world.outcomes.values().filter(|outcome| outcome.is_ok()).count());
        prop_assert_eq!(counts.batches() as usize, batches(world).len());
    }

    #[test]
    fn without_chaining_no_batch_holds_a_read_write_conflict(rule in unchained(), options in options(), steps in prop::collection::vec(step(), 1..120)) {
        let run = play(PoolOptions { conflicts: rule, ..options }, &steps);
        for members in batches(&run.world).values() {
            let sets: Vec<_> = members.iter().map(|ticket| reads_and_writes(&run.world, *ticket)).collect();
            for (at, (reads, writes)) in sets.iter().enumerate() {
                for (later_reads, later_writes) in &sets[at + 1..] {
                    prop_assert!(writes.is_disjoint(later_reads) && reads.is_disjoint(later_writes));
                }
            }
        }
        prop_assert_eq!(run.world.pool.counts().chained_reads, 0);
    }
}
