//! The digest that is kept up to date is the one that is computed anew, the one that was foreseen, and the same at every replica.

use bytes::Bytes;
use jute::{Acl, Create, CreateMode, Operation};
use proptest::collection::vec;
use proptest::prelude::*;
use sentinel::{Body, Origin, Preparer, Profile, Proposal, State, Transaction};

fn path() -> impl Strategy<Value = String> {
    prop_oneof![
        "/[ab]".prop_map(String::from),
        "/[ab]/[ab]",
        "/[ab]/[ab]/[ab]",
        Just("/".to_owned()),
        Just("/zookeeper/quota/x".to_owned()),
        "/zookeeper/quota(/[ab]){0,2}(/zookeeper_(limits|stats))?".prop_map(String::from),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    let mode = prop_oneof![
        4 => Just(CreateMode::Persistent),
        2 => Just(CreateMode::Ephemeral),
        1 => Just(CreateMode::Container),
        1 => Just(CreateMode::Ttl { ttl_ms: 1_000 }),
    ];
    let data = proptest::option::of(vec(any::<u8>(), 0..6).prop_map(Bytes::from));
    let version = prop_oneof![4 => Just(-1), 1 => Just(0), 1 => Just(1)];
    prop_oneof![
        4 => (path(), data.clone(), mode, any::<bool>()).prop_map(|(path, data, mode, sequential)| {
            Operation::Create(Create { path, data, acl: vec![Acl::open()], mode, sequential, wants_stat: true })
        }),
        2 => (path(), version.clone()).prop_map(|(path, version)| Operation::Delete { path, version }),
        2 => (path(), data, version.clone()).prop_map(|(path, data, version)| Operation::SetData { path, data, version }),
        1 => (path(), version).prop_map(|(path, version)| Operation::Check { path, version }),
    ]
}

fn proposal() -> impl Strategy<Value = (i64, Proposal)> {
    let what = prop_oneof![
        6 => operation().prop_map(Proposal::One),
        3 => vec(operation(), 0..5).prop_map(Proposal::Multi),
        1 => path().prop_map(|path| Proposal::SetAcl { path, acl: vec![Acl { permissions: 1, ..Acl::open() }], version: -1 }),
        1 => Just(Proposal::CloseSession),
        1 => path().prop_map(|path| Proposal::Reap { path }),
    ];
    (1..4_i64, what)
}

fn prepare(preparer: &mut Preparer, state: &State, session: i64, proposal: Proposal, time_ms: i64) -> Transaction {
    preparer.prepare(state, proposal, Origin { session, xid: 0, identities: &[], time_ms })
}

/// Runs the proposals at a leader that has up to `ahead` transactions prepared before it applies the oldest, and at a follower.
fn run(profile: Profile, proposals: Vec<(i64, Proposal)>, ahead: usize) -> (State, usize) {
    let (mut leader, mut follower) = (State::new(profile, 1), State::new(profile, 2));
    let mut preparer = Preparer::new(&leader);
    let mut waiting = std::collections::VecDeque::new();
    let sessions = (1..4).map(|session| (session, Proposal::CreateSession { timeout_ms: 1_000, password: [7; 16] }));
    let mut changes = 0;
    let mut apply = |transaction: Transaction, leader: &mut State, preparer: &mut Preparer| {
        let mut bytes = Vec::new();
        transaction.encode(&mut bytes);
        assert_eq!(Transaction::decode(&bytes).as_ref(), Ok(&transaction));
        let applied = leader.apply_prepared(&transaction, preparer).expect("what the leader foresaw is what it finds");
        preparer.applied(&transaction);
        assert_eq!(follower.apply(&transaction), Ok(applied), "the follower finds the same");
        assert_eq!(leader.checksum(), follower.checksum());
        assert_eq!(leader.checksum(), leader.recomputed_checksum());
        changes += usize::from(!matches!(transaction.body, Body::Failed { .. }));
    };
    for ((session, proposal), time) in sessions.chain(proposals).zip(1_000..) {
        waiting.push_back(prepare(&mut preparer, &leader, session, proposal, time));
        if waiting.len() > ahead {
            let transaction = waiting.pop_front().expect("there is one");
            apply(transaction, &mut leader, &mut preparer);
        }
    }
    for transaction in waiting {
        apply(transaction, &mut leader, &mut preparer);
    }
    assert_eq!(preparer.outstanding(), 0);
    let mut bytes = Vec::new();
    leader
        .frozen()
        .write_snapshot(|piece| {
            bytes.extend_from_slice(piece);
            Ok::<(), ()>(())
        })
        .expect("it is healthy");
    let read = State::read_snapshot(&bytes, 3).expect("it was just written");
    assert_eq!((read.checksum(), read.recomputed_checksum()), (leader.checksum(), leader.checksum()));
    (leader, changes)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_digest_kept_up_to_date_is_the_one_computed_anew(
        profile in proptest::sample::select(&Profile::ALL[1..]),
        proposals in vec(proposal(), 1..60),
        ahead in 0..6_usize,
    ) {
        run(profile, proposals, ahead);
    }

    #[test]
    fn how_far_ahead_a_leader_prepares_changes_nothing(proposals in vec(proposal(), 1..40)) {
        let (alone, first) = run(Profile::Sha256Wide, proposals.clone(), 0);
        let (ahead, second) = run(Profile::Sha256Wide, proposals, 7);
        prop_assert_eq!(alone.checksum(), ahead.checksum());
        prop_assert_eq!(first, second);
    }
}

#[test]
fn the_log_of_digests_has_an_entry_every_128_transactions() {
    let mut state = State::new(Profile::Sha256Wide, 1);
    let mut preparer = Preparer::new(&state);
    for time in 0..300 {
        let proposal = Proposal::CreateSession { timeout_ms: 1, password: [0; 16] };
        let transaction = prepare(&mut preparer, &state, time + 1, proposal, time);
        state.apply(&transaction).expect("it fits");
        preparer.applied(&transaction);
    }
    let zxids: Vec<i64> = state.digest_log().map(|(zxid, _)| zxid).collect();
    assert_eq!(zxids, [128, 256]);
}
