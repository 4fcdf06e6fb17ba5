//! What is noticed: each kind of damage, done to a state on purpose.

use std::collections::BTreeMap;

use bytes::Bytes;
use jute::{Acl, Create, CreateMode, Id, Operation, ReadOperation, Request};

use crate::digest::Leaf;
use crate::node::{Data, Node, Part};
use crate::server::{Input, Now, Outbox, Server, Settings};
use crate::transaction::{Body, Change};
use crate::{Corruption, Damage, NotWritten, Origin, Preparer, Profile, Proposal, SnapshotError, State, Transaction};

const SESSION: i64 = 7;
/// Those that look at all.
const LOOKING: [Profile; 7] =
    [Profile::Crc32, Profile::Md5, Profile::Sha1, Profile::Sha256, Profile::Sha512, Profile::Sha256Wide, Profile::LtHash16];

fn create(path: &str) -> Proposal {
    let acl = vec![Acl::open()];
    let data = Some(Bytes::from_static(b"data"));
    Proposal::One(Operation::Create(Create {
        path: path.into(),
        data,
        acl,
        mode: CreateMode::Persistent,
        sequential: false,
        wants_stat: false,
    }))
}

fn write(path: &str) -> Proposal {
    Proposal::One(Operation::SetData { path: path.into(), data: Some(Bytes::from_static(b"new")), version: -1 })
}

fn origin() -> Origin<'static> {
    Origin { session: SESSION, xid: 1, identities: &[], time_ms: 1_000 }
}

/// A state with a session and these nodes: `/a`, `/a/b`, `/c`.
fn state(profile: Profile) -> (State, Preparer) {
    let mut state = State::new(profile, 1);
    let mut preparer = Preparer::new(&state);
    let session = Proposal::CreateSession { timeout_ms: 10_000, password: [9; 16] };
    for proposal in [session, create("/a"), create("/a/b"), create("/c")] {
        next(&mut state, &mut preparer, proposal).expect("nothing is wrong yet");
    }
    (state, preparer)
}

fn next(state: &mut State, preparer: &mut Preparer, proposal: Proposal) -> Result<Transaction, Corruption> {
    let transaction = preparer.prepare(state, proposal, origin());
    state.apply_prepared(&transaction, preparer)?;
    preparer.applied(&transaction);
    Ok(transaction)
}

fn damages() -> BTreeMap<&'static str, fn(&mut Node)> {
    BTreeMap::from([
        ("a bit of the data", (|node| node.data = Some(Data::from(&b"dat\x60"[..]))) as fn(&mut Node)),
        ("data become absent", |node| node.data = None),
        ("a version", |node| node.stat.version ^= 1),
        ("a child version", |node| node.stat.cversion ^= 1 << 20),
        ("an ACL's version", |node| node.stat.aversion ^= 1),
        ("a time", |node| node.stat.mtime ^= 1 << 33),
        ("an owner", |node| node.stat.owner ^= 1 << 5),
        ("a zxid", |node| node.stat.pzxid ^= 1),
        ("an ACL", |node| node.acl = std::sync::Arc::new(vec![Acl { permissions: 31, id: Id::new("digest", "eve:hash") }])),
        ("a lost child", |node| assert!(node.children.remove("b", Profile::Off))),
        ("a child too many", |node| assert!(node.children.insert("x", Profile::Off))),
    ])
}

#[test]
fn damage_in_memory_is_found_by_scrubbing_and_by_every_snapshot_under_every_profile() {
    for profile in LOOKING {
        for (what, damage) in damages() {
            let (mut state, _) = state(profile);
            damage(state.nodes.get_mut("/a").expect("it was created"));
            let found = (0..4_096).find_map(|shard| state.scrub(shard).err());
            let found = found.unwrap_or_else(|| panic!("{what} is not found under {profile:?}"));
            assert_eq!(found.path.as_deref(), Some("/a"), "{what} under {profile:?}");
            let written = state.frozen().write_snapshot(|_| Ok::<(), ()>(()));
            assert!(matches!(written, Err(NotWritten::Corrupt(_))), "{what} under {profile:?}");
            assert_ne!(state.recomputed_checksum(), state.checksum(), "{what} under {profile:?}");
        }
    }
}

#[test]
fn damage_to_a_session_is_found_by_scrubbing_and_by_every_snapshot_under_every_profile() {
    for profile in LOOKING {
        let (mut state, mut preparer) = state(profile);
        for session in 8..20 {
            let origin = Origin { session, ..origin() };
            let transaction = preparer.prepare(&state, Proposal::CreateSession { timeout_ms: 5_000, password: [8; 16] }, origin);
            state.apply(&transaction).expect("nothing is wrong yet");
            preparer.applied(&transaction);
        }
        let all = |state: &State| {
            let first = state.scrub_sessions(None, 8)?;
            assert_eq!(first, Some(14), "some at a time");
            state.scrub_sessions(first, 8).map(|last| assert_eq!(last, None))
        };
        assert_eq!(all(&state), Ok(()));
        assert!(state.clone().frozen().snapshot().is_ok());
        let damages: [fn(&mut crate::state::Session); 2] = [|session| session.timeout_ms ^= 1 << 9, |session| session.password[3] ^= 4];
        for damage in damages {
            let mut damaged = state.clone();
            damage(damaged.sessions.get_mut(&17).expect("it was created"));
            assert!(all(&damaged).expect_err("it was damaged").what.contains("session 0x11 "), "{profile:?}");
            assert!(damaged.frozen().snapshot().is_err(), "{profile:?}");
        }
    }
}

#[test]
fn what_does_not_add_up_to_the_digest_is_in_no_snapshot() {
    for profile in LOOKING {
        let (healthy, _) = state(profile);
        let (mut lost, mut gone, mut other) = (healthy.clone(), healthy.clone(), healthy.clone());
        assert!(lost.nodes.remove("/c").is_some());
        assert!(gone.sessions.remove(&SESSION).is_some());
        other.digest.add(&Leaf([1; 32]));
        for damaged in [lost, gone, other] {
            let what = damaged.frozen().snapshot().expect_err("it could not be read").what;
            assert!(what.contains("the digest that was kept of it"), "{what} under {profile:?}");
        }
        assert!(State::read_snapshot(&healthy.frozen().snapshot().expect("it is healthy"), 1).is_ok());
    }
}

#[test]
fn a_session_that_cannot_end_stops_the_server_that_has_it() {
    let (mut damaged, _) = state(Profile::Sha256Wide);
    damaged.ephemerals.entry(SESSION).or_default().paths.insert("/gone".into());
    let now = |ms: i64| Now { steady_ms: ms, wall_ms: ms };
    let settings = Settings {
        server_id: 1,
        timeout_ms_min: 4_000,
        timeout_ms_max: 40_000,
        reap_every_ms: 60_000,
        words: None,
        superuser: None,
        secret: [3; 32],
        configuration: Vec::new(),
    };
    let mut server = Server::new(damaged, settings, now(0));
    server.step(now(20_000), Input::Tick, &mut Outbox::default());
    assert!(server.corruption().expect("nobody could end it").what.contains("session 0x7 cannot end"));
}

#[test]
fn an_ephemeral_node_that_its_session_does_not_know_is_found_by_scrubbing() {
    let (mut damaged, mut preparer) = state(Profile::Sha256Wide);
    let Proposal::One(Operation::Create(create)) = create("/e") else { panic!("it creates") };
    let ephemeral = Proposal::One(Operation::Create(Create { mode: CreateMode::Ephemeral, ..create }));
    next(&mut damaged, &mut preparer, ephemeral).expect("nothing is wrong yet");
    let found = |state: &State| (0..4_096).find_map(|shard| state.scrub(shard).err());
    assert_eq!(found(&damaged), None);
    assert!(damaged.ephemerals.get_mut(&SESSION).expect("it has one").paths.remove("/e"));
    assert_eq!(found(&damaged).and_then(|corruption| corruption.path).as_deref(), Some("/e"));
}

#[test]
fn what_the_service_keeps_for_itself_is_covered_too() {
    let (mut damaged, _) = state(Profile::Sha256Wide);
    damaged.nodes.get_mut("/zookeeper/quota").expect("it is always there").stat.ctime = 5;
    assert!((0..4_096).any(|shard| damaged.scrub(shard).is_err()));
    let (mut damaged, _) = state(Profile::Sha256Wide);
    damaged.sessions.get_mut(&SESSION).expect("it was created").timeout_ms += 1;
    assert_ne!(damaged.recomputed_checksum(), damaged.checksum());
}

#[test]
fn a_write_that_meets_damage_stops_the_replica_that_has_it() {
    for profile in LOOKING {
        for (what, damage) in damages() {
            let ((mut healthy, mut preparer), (mut damaged, _)) = (state(profile), state(profile));
            damage(damaged.nodes.get_mut("/a").expect("it was created"));
            let transaction = next(&mut healthy, &mut preparer, write("/a")).expect("this one is healthy");
            let found = damaged.apply(&transaction).expect_err("what is to be changed is looked at first");
            assert_eq!(found.path.as_deref(), Some("/a"), "{what} under {profile:?}");
        }
    }
}

#[test]
fn short_data_are_looked_at_before_they_are_hashed_anew_also_where_nothing_is_compared() {
    for profile in LOOKING {
        let (mut leader, mut preparer) = state(profile);
        let transaction = next(&mut leader, &mut preparer, create("/a/new")).expect("nothing is wrong there");
        let mut damaged = state(profile).0.with_realtime(false);
        damaged.damage(Damage::Data, "/a").expect("there is such a node");
        let found = damaged.apply(&transaction).expect_err("it would come into the leaf");
        assert_eq!(found.path.as_deref(), Some("/a"), "{profile:?}");
    }
}

#[test]
fn a_state_that_is_hashed_no_more_is_written_and_hashed_again() {
    let (state, _) = state(Profile::Sha256Wide);
    let checksum = state.checksum();
    let bytes = state.with_profile(Profile::Off).frozen().snapshot().expect("nothing is wrong");
    let again = State::read_snapshot(&bytes, 1).expect("it was just written").with_profile(Profile::Sha256Wide);
    assert_eq!((again.checksum(), again.recomputed_checksum()), (checksum, checksum));
}

/// Of long data the hash is kept, so whatever else changes of their node takes no damage of theirs into the leaf.
#[test]
fn long_data_are_not_hashed_with_a_new_child_and_their_damage_stays_to_be_found() {
    let (mut damaged, mut preparer) = state(Profile::Sha256Wide);
    let write = Operation::SetData { path: "/a".into(), data: Some(Bytes::from(vec![7; 1_000])), version: -1 };
    next(&mut damaged, &mut preparer, Proposal::One(write)).expect("nothing is wrong yet");
    damaged.damage(Damage::Data, "/a").expect("there is such a node");
    next(&mut damaged, &mut preparer, create("/a/new")).expect("its parent's data are not looked at");
    assert_eq!(damaged.look_at("/a", Part::Head), Ok(()));
    assert!(damaged.look_at("/a", Part::Data).is_err(), "whoever reads them looks at them");
    let node = damaged.nodes.get("/a").expect("it was created");
    assert!(damaged.scrub_node("/a", node).is_err());
}

/// Both who foresees and who applies subtract it from the digest.
#[test]
fn a_leaf_that_is_not_what_it_was_is_noticed_before_a_write_and_before_a_read() {
    for profile in LOOKING {
        let (mut leader, mut preparer) = state(profile);
        leader.nodes.get_mut("/a").expect("it was created").leaf.0[0] ^= 1;
        assert!(leader.exists("/a", &[]).is_ok() && leader.look_at("/a", Part::Head).is_err(), "{profile:?}");
        let found = next(&mut leader, &mut preparer, write("/a")).expect_err("what is to be changed is looked at first");
        assert_eq!(found.path.as_deref(), Some("/a"), "{profile:?}");
    }
}

#[test]
fn nothing_wrong_is_read_where_each_transaction_is_compared() {
    let path = || "/a".to_owned();
    let requests = [
        Request::Exists { path: path(), watch: false },
        Request::GetData { path: path(), watch: false },
        Request::GetChildren2 { path: path(), watch: false },
        Request::GetAcl { path: path() },
        Request::MultiRead(vec![ReadOperation::GetData { path: path() }, ReadOperation::GetChildren { path: path() }]),
    ];
    let answer = |state: &State, request: &Request| match request {
        Request::Exists { path, .. } => state.exists(path, &[]),
        Request::GetData { path, .. } => state.data(path, &[]),
        Request::GetChildren2 { path, .. } => state.children_and_stat(path, &[]),
        Request::GetAcl { path } => state.acl(path, &[]),
        Request::MultiRead(operations) => state.multi_read(operations, &mut crate::acl::Checks::new(&[])),
        other => panic!("nobody asks for {other:?} here"),
    };
    for profile in LOOKING {
        for (what, damage) in damages() {
            let ((healthy, _), (mut damaged, _)) = (state(profile), state(profile));
            damage(damaged.nodes.get_mut("/a").expect("it was created"));
            let mut noticed = 0;
            for request in &requests {
                match damaged.look_at_read(request) {
                    Ok(()) => assert_eq!(answer(&damaged, request), answer(&healthy, request), "{what} under {profile:?}, {request:?}"),
                    Err(found) => {
                        noticed += 1;
                        assert_eq!(found.path.as_deref(), Some("/a"));
                    }
                }
                assert_eq!(healthy.look_at_read(request), Ok(()));
            }
            assert!(noticed > 0, "{what} under {profile:?}");
            let met = damaged.look_at_met(&["/a/b".to_owned()]);
            assert!(met.is_err(), "what is refused under {what} is for what is wrong, {profile:?}");
            assert_eq!(damaged.with_realtime(false).look_at_met(&["/a".to_owned()]), Ok(()), "nobody looks where nothing is compared");
        }
    }
    let (mut swapped, _) = state(Profile::Sha256Wide);
    let children = &mut swapped.nodes.get_mut("/a").expect("it was created").children;
    assert!(children.remove("b", Profile::Off) && children.insert("x", Profile::Off), "without their share in any sum");
    assert!(swapped.look_at_read(&requests[2]).is_err(), "another name in place of one, with the sums as they were");
}

#[test]
fn a_node_that_a_multi_only_checks_is_looked_at_too() {
    let checked = |path: &str| {
        let check = Operation::Check { path: path.to_owned(), version: -1 };
        let write = Operation::SetData { path: "/c".into(), data: None, version: -1 };
        Proposal::Multi(vec![check, write])
    };
    for profile in LOOKING {
        for (what, damage) in damages() {
            // Of another ACL the check fails, for which the request is refused.
            if what == "an ACL" {
                continue;
            }
            let (mut damaged, mut preparer) = state(profile);
            damage(damaged.nodes.get_mut("/a").expect("it was created"));
            let found = next(&mut damaged, &mut preparer, checked("/a")).expect_err("the check passes for what is wrong");
            assert_eq!(found.path.as_deref(), Some("/a"), "{what} under {profile:?}");
        }
        let (mut healthy, mut preparer) = state(profile);
        next(&mut healthy, &mut preparer, checked("/a")).expect("nothing is wrong");
        let twice = vec![
            Operation::SetData { path: "/a".into(), data: None, version: -1 },
            Operation::Check { path: "/a".into(), version: -1 },
            Operation::SetData { path: "/a".into(), data: None, version: -1 },
        ];
        next(&mut healthy, &mut preparer, Proposal::Multi(twice)).expect("it is hashed anew at the end");
    }
    let (damaged, mut preparer) = state(Profile::Sha256Wide);
    let mut damaged = damaged.with_realtime(false);
    damaged.nodes.get_mut("/a").expect("it was created").stat.version ^= 1;
    next(&mut damaged, &mut preparer, checked("/a")).expect("nobody looks where nothing is compared");
}

#[test]
fn a_node_that_is_lost_is_missed_where_its_parent_names_it() {
    let lost = || "/a/b".to_owned();
    let requests =
        [Request::Exists { path: lost(), watch: false }, Request::GetData { path: lost(), watch: false }, Request::GetAcl { path: lost() }];
    for profile in LOOKING {
        let (mut damaged, _) = state(profile);
        for request in &requests {
            assert_eq!(damaged.look_at_read(request), Ok(()));
        }
        assert!(damaged.nodes.remove("/a/b").is_some());
        for request in &requests {
            let found = damaged.look_at_read(request).expect_err("nobody deleted it");
            assert_eq!(found.path, Some(lost()), "{request:?} under {profile:?}");
        }
        assert!(damaged.look_at_met(&[lost()]).is_err() && damaged.look_at_met(&["/a/b/c".to_owned()]).is_err());
        for never in ["/a/x", "//a", "/a//b", "/a/b/", "b"] {
            assert_eq!(damaged.look_at_read(&Request::Exists { path: never.into(), watch: false }), Ok(()), "{never:?} was never there");
        }
        assert_eq!(damaged.with_realtime(false).look_at_met(&[lost()]), Ok(()));
    }
}

#[test]
fn a_leader_that_is_damaged_notices_it_itself_and_so_does_who_follows_it() {
    let ((mut leader, mut preparer), (mut follower, _)) = (state(Profile::Sha256Wide), state(Profile::Sha256Wide));
    leader.nodes.get_mut("/a").expect("it was created").stat.ctime ^= 1;
    let transaction = preparer.prepare(&leader, write("/a"), origin());
    let found = leader
        .apply_prepared(&transaction, &preparer)
        .expect_err("the damage is in what it foresees, but not in the leaf that it had kept");
    assert_eq!(found.path.as_deref(), Some("/a"));
    let found = follower.apply(&transaction).expect_err("the follower finds another digest");
    let (foreseen, came) = *found.digests.expect("both are in the record");
    assert_ne!(foreseen, came);
}

#[test]
fn what_is_not_as_it_was_prepared_is_hashed_again() {
    for profile in LOOKING {
        for proposal in [write("/a"), create("/a/x")] {
            let (mut healthy, mut preparer) = state(profile);
            let transaction = preparer.prepare(&healthy, proposal, origin());
            let mut wrong = transaction.clone();
            let Body::Changes(changes) = &mut wrong.body else { panic!("it succeeds") };
            let (Change::SetData { data, .. } | Change::Create { data, .. }) = &mut changes[0] else { panic!("it writes") };
            *data = Some(Bytes::from_static(b"nex"));
            let mut other = healthy.clone();
            assert!(other.apply_prepared(&wrong, &preparer).is_err(), "{profile:?}: other data");
            let mut other = healthy.clone();
            let late = Transaction { time_ms: transaction.time_ms ^ 1, ..transaction.clone() };
            assert!(other.apply_prepared(&late, &preparer).is_err(), "{profile:?}: another time");
            healthy.apply_prepared(&transaction, &preparer).expect("it is as it was prepared");
            assert_eq!(healthy.checksum(), healthy.recomputed_checksum(), "{profile:?}");
        }
    }
}

#[test]
fn a_transaction_dropped_doubled_or_out_of_order_is_noticed_at_once() {
    let (mut leader, mut preparer) = state(Profile::Sha256Wide);
    let (follower, _) = state(Profile::Sha256Wide);
    let transactions: Vec<Transaction> =
        [create("/a/d"), write("/c"), create("/a/e")].map(|one| next(&mut leader, &mut preparer, one).expect("it is healthy")).into();
    let apply = |order: &[usize]| {
        let mut state = follower.clone();
        order.iter().try_for_each(|at| state.apply(&transactions[*at]).map(|_| ()))
    };
    assert_eq!(apply(&[0, 1, 2]), Ok(()));
    for order in [&[1][..], &[0, 2], &[0, 0], &[0, 1, 1], &[1, 0], &[0, 2, 1]] {
        assert!(apply(order).is_err(), "{order:?}");
    }
}

/// ZooKeeper's weakness, which is that of sums of CRCs: what one node's is too much, the other's is too little.
#[test]
fn the_same_wrong_bit_in_two_nodes_can_cancel_out_under_crc32_and_under_nothing_else() {
    let write = |path: &str, data: u64| Operation::SetData {
        path: path.to_owned(),
        data: Some(Bytes::copy_from_slice(&data.to_be_bytes())),
        version: -1,
    };
    let both = |one: u64, other: u64| Proposal::Multi(vec![write("/a", one), write("/c", other)]);
    let (mut after, mut preparer) = state(Profile::Crc32);
    next(&mut after, &mut preparer, both(0, 0)).expect("it is healthy");
    // By how much a node's leaf is wrong that has one bit of these data wrong.
    let error = |path: &str, data: u64| {
        let mut summary = after.nodes.get(path).expect("it is there").summary();
        let mut leaf = |data: u64| {
            summary.set_data(Some(Bytes::copy_from_slice(&data.to_be_bytes())));
            u64::from_be_bytes(*summary.hashed(Profile::Crc32, path).leaf.hash.0.first_chunk().expect("a leaf is longer"))
        };
        leaf(data ^ 1).wrapping_sub(leaf(data))
    };
    let errors: BTreeMap<u64, u64> = (0..100_000).step_by(2).map(|data| (error("/a", data), data)).collect();
    let pair = (0..100_000).step_by(2).find_map(|other| Some((*errors.get(&error("/c", other).wrapping_neg())?, other)));
    let (one, other) = pair.expect("one pair of some 2^16 does");
    for profile in LOOKING {
        let ((mut healthy, mut preparer), (mut damaged, _)) = (state(profile), state(profile));
        let transaction = next(&mut healthy, &mut preparer, both(one, other)).expect("it is healthy");
        let wrong = Preparer::new(&damaged).prepare(&damaged, both(one ^ 1, other ^ 1), origin());
        let wrong = Transaction { foreseen: transaction.foreseen, ..wrong };
        assert_eq!(damaged.apply(&wrong).is_ok(), profile == Profile::Crc32, "{profile:?}");
        assert!(healthy.first_difference(&damaged).is_some());
    }
}

#[test]
fn a_damaged_transaction_is_noticed_whatever_was_damaged_in_it() {
    let (mut leader, mut preparer) = state(Profile::Sha256Wide);
    let (follower, _) = state(Profile::Sha256Wide);
    let transaction = next(&mut leader, &mut preparer, create("/a/d")).expect("it is healthy");
    let mut bytes = Vec::new();
    transaction.encode(&mut bytes);
    let mut unnoticed = Vec::new();
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        if let Ok(damaged) = Transaction::decode(&damaged) {
            let mut state = follower.clone();
            if state.apply(&damaged).is_ok() {
                unnoticed.push((transaction.session ^ damaged.session, transaction.xid ^ damaged.xid));
                assert_eq!(state.checksum(), leader.checksum());
            }
        }
    }
    assert!(unnoticed.iter().all(|(session, xid)| (*session != 0) != (*xid != 0)), "only who asked is no part of the state");
}

#[test]
fn a_snapshot_is_read_back_and_a_flipped_bit_in_it_is_not() {
    for profile in [Profile::Off, Profile::Crc32, Profile::Sha256Wide, Profile::LtHash16] {
        let (state, _) = state(profile);
        let mut bytes = Vec::new();
        state
            .frozen()
            .write_snapshot(|piece| {
                bytes.extend_from_slice(piece);
                Ok::<(), ()>(())
            })
            .expect("it is healthy");
        let read = State::read_snapshot(&bytes, 99).expect("it was just written");
        assert_eq!((read.zxid, read.checksum(), read.nodes.len()), (state.zxid, state.checksum(), state.nodes.len()));
        assert_eq!(read.sessions, state.sessions);
        for bit in (0..bytes.len() * 8).step_by(7) {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(State::read_snapshot(&damaged, 99).is_err(), "bit {bit} under {profile:?}");
        }
    }
}

#[test]
fn a_node_that_came_in_two_large_requests_is_in_a_snapshot_and_a_larger_one_is_in_none() {
    let (mut large, mut preparer) = state(Profile::Off);
    let data = Some(Bytes::from(vec![7; 8 << 20]));
    let write = Operation::SetData { path: "/a".into(), data: data.clone(), version: -1 };
    next(&mut large, &mut preparer, Proposal::One(write)).expect("it fits into a request");
    let line = |at: usize| Acl { permissions: 31, id: Id::new("digest", &format!("{at}{}:hash", "x".repeat(8_800))) };
    let acl = (0..1_000).map(line).collect();
    next(&mut large, &mut preparer, Proposal::SetAcl { path: "/a".into(), acl, version: -1 }).expect("it does too");
    let read = State::read_snapshot(&large.frozen().snapshot().expect("it is healthy"), 1).expect("it was just written");
    let node = read.nodes.get("/a").expect("it is there");
    assert_eq!((node.data.as_deref(), node.acl.len()), (data.as_deref(), 1_000));
    large.nodes.get_mut("/a").expect("it is there").data = Some(Data::from(&vec![7; 33 << 20][..]));
    let why = large.frozen().snapshot().expect_err("nobody could read it back");
    assert_eq!((why.path.as_deref(), why.what.as_str()), (Some("/a"), "a node is larger than any transactions make one"));
}

#[test]
fn a_snapshot_with_a_right_checksum_and_a_wrong_node_names_the_node() {
    let (state, _) = state(Profile::Sha256Wide);
    let mut bytes = Vec::new();
    state
        .frozen()
        .write_snapshot(|piece| {
            bytes.extend_from_slice(piece);
            Ok::<(), ()>(())
        })
        .expect("it is healthy");
    let at = bytes.windows(4).position(|window| window == b"/a/b").expect("it is in it");
    let data = at + bytes[at..].windows(4).position(|window| window == b"data").expect("its data are behind it");
    bytes[data] ^= 1;
    let end = bytes.len() - 4;
    let crc = crc32fast::hash(&bytes[..end]).to_be_bytes();
    bytes[end..].copy_from_slice(&crc);
    match State::read_snapshot(&bytes, 1) {
        Err(SnapshotError::Corrupt(found)) => assert_eq!(found.path.as_deref(), Some("/a/b")),
        other => panic!("{other:?}"),
    }
}

/// What came of a drill.
#[derive(Debug, PartialEq, Eq)]
struct Noticed {
    /// After how many transactions a replica found that it cannot go on, and whether that was the damaged one; otherwise all others did.
    at_once: Option<(usize, bool)>,
    /// Whether the damaged replica, and it alone, differs from most in the digests of the past.
    by_majority: bool,
}

/// Damages one of three replicas, of which the first leads, and goes on for 300 transactions or until somebody notices.
fn drill(profile: Profile, is_realtime: bool, damage: Damage, damaged: usize) -> Noticed {
    let (first, mut preparer) = state(profile);
    let mut replicas: Vec<State> = [first, state(profile).0, state(profile).0].map(|state| state.with_realtime(is_realtime)).into();
    replicas[damaged].damage(damage, "/a").expect("there is such a node");
    let mut at_once = None;
    for number in 1..=300_usize {
        let proposal = if number % 2 == 0 { create(&format!("/a/{number}")) } else { write("/c") };
        let transaction = preparer.prepare(&replicas[0], proposal, origin());
        let mut apply = |at: usize| {
            let replica = &mut replicas[at];
            if at == 0 { replica.apply_prepared(&transaction, &preparer) } else { replica.apply(&transaction) }
        };
        let failed: Vec<usize> = (0..3).filter(|at| apply(*at).is_err()).collect();
        preparer.applied(&transaction);
        if !failed.is_empty() {
            // The damaged one finds its node wrong, or two against one say so. Where it leads, both: it foresaw the damage, too.
            let all = damaged == 0 && failed.len() == 3;
            assert!(failed == [damaged] || all || (failed.len() == 2 && !failed.contains(&damaged)), "{failed:?} instead of {damaged}");
            at_once = Some((number, failed.contains(&damaged)));
            break;
        }
    }
    let logs: Vec<Vec<_>> = replicas.iter().map(|replica| replica.digest_log().collect()).collect();
    let differing = (0..3).filter(|at| (0..3).filter(|other| other != at).all(|other| logs[other] != logs[*at]));
    Noticed { at_once, by_majority: differing.eq([damaged]) }
}

#[test]
fn a_drill_is_noticed_at_once_or_by_majority_under_every_profile_and_the_right_replica_is_named() {
    eprintln!("| digest | damage | at | each transaction compared | only digests of the past compared |\n|---|---|---|---|---|");
    for (profile, damage, damaged) in
        LOOKING.into_iter().flat_map(|profile| Damage::ALL.map(|damage| [(profile, damage, 0), (profile, damage, 1)])).flatten()
    {
        let (realtime, online) = (drill(profile, true, damage, damaged), drill(profile, false, damage, damaged));
        let shown = |noticed: &Noticed| match (noticed.at_once, noticed.by_majority) {
            (Some((after, true)), _) => format!("by itself after {after}"),
            (Some((after, false)), _) => format!("by the others after {after}"),
            (None, true) => "named by majority".to_owned(),
            (None, false) => "no".to_owned(),
        };
        let role = if damaged == 0 { "leader" } else { "follower" };
        eprintln!("| {} | {} | {role} | {} | {} |", profile.name(), damage.name(), shown(&realtime), shown(&online));
        let context = format!("{damage:?} at the {role} under {profile:?}: {realtime:?}, {online:?}");
        // Short data, as these, are hashed anew with every other change of their node, and so are looked at before it.
        assert!(realtime.at_once.is_some_and(|(after, _)| after <= 2), "{context}");
        // Transactions about different nodes leave the same behind in either order, and what is overwritten nothing.
        let is_hidden = matches!(damage, Damage::Write | Damage::Reorder);
        assert_eq!(online.at_once.is_some() || online.by_majority, !is_hidden, "{context}");
    }
}
