//! One replica of three, which the others do not talk to.

use machine::{Durable as _, Machine as _};
use sentinel::Corruption;
use sentinel::ensemble::TurnOutput;
use types::{ClientId, ClusterId, Direction, Key, KeyRange, Permission, Placement, Session};

use super::*;

const CLIENT: Party = Party::Client(ClientId(1), Session(7));

fn replica(folder: &Path) -> Replica {
    Disk::create(folder, "test").expect("it is empty");
    open(folder)
}

fn open(folder: &Path) -> Replica {
    let keys = (1..=3).map(|byte| [byte; 32]).collect();
    let clients = vec![(ClientId(1), Permission { public_key: [9; 32], ..Permission::default() })];
    let cluster = Cluster::new(ClusterId::new([5; 16]), 1, Placement::Hash, vec![keys], clients).expect("it fits");
    let me = ReplicaId { shard: ShardId(0), index: 0 };
    let options = ReplicaOptions { cluster: Arc::new(cluster), me, data: folder.to_owned(), owner: "test".to_owned() };
    Replica::open(options, Time(1)).expect("the disk works")
}

fn scan() -> Question {
    let range = KeyRange::new(Key::from("a"), Key::from("z")).expect("it has keys");
    Question::Scan { range, direction: Direction::Ascending, rows_max: u32::MAX, is_settled: true }
}

/// How many answers an outbox has, which are taken away.
fn answers(outbox: &mut OutboxOf<Replica>) -> usize {
    let answers = outbox.sends.iter().filter(|(_, message)| matches!(message, Message::Answer { .. })).count();
    *outbox = OutboxOf::<Replica>::default();
    answers
}

fn ask(replica: &mut Replica, questions: u64, outbox: &mut OutboxOf<Replica>) {
    let now = now_of(replica.now);
    (0..questions).for_each(|number| replica.on_question(now, CLIENT, number, scan(), outbox));
}

#[test]
fn nothing_is_done_between_a_turn_that_ends_a_member_and_the_next_member() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut replica = replica(folder.path());
    let mut outbox = OutboxOf::<Replica>::default();
    replica.persist().expect("the disk works");
    replica.durable.written.push(TurnOutput { reopen: Some("a test wants it"), ..TurnOutput::default() });
    ask(&mut replica, 1, &mut outbox);
    for after_ms in [5_000, 10_000] {
        let now = Time(0).after_ms(after_ms);
        replica.step(now, Input::Tick, &mut outbox);
        replica.end_turn(now, &mut outbox);
    }
    assert!(outbox.sends.is_empty(), "the member that is to go says nothing more");
    assert_eq!((replica.waiting.len(), replica.deadline()), (1, None), "it is called when the turn is durable");
    replica.persist().expect("the disk works");
    replica.end_turn(Time(0).after_ms(10_000), &mut outbox);
    assert_eq!(answers(&mut outbox), 1, "the member that comes back answers what waited");
    assert!(replica.deadline().is_some());
}

#[test]
fn a_member_that_is_quarantined_does_not_begin_anew() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut replica = replica(folder.path());
    let now = now_of(replica.now);
    let durable = &mut replica.durable;
    let mut turn = durable.write(now).expect("the disk works");
    turn.reopen = Some("it was so when the turn ended");
    // A later turn found that, before this one was durable.
    durable.member.stop(now, Corruption { zxid: 1, path: None, what: "it is wrong".to_owned(), digests: None });
    assert!(durable.sync(&mut turn, now).expect("the disk works").is_none());
    assert!(durable.member.server().corruption().is_some());
}

#[test]
fn a_turn_does_so_much_and_the_next_one_goes_on_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut replica = replica(folder.path());
    let mut outbox = OutboxOf::<Replica>::default();
    ask(&mut replica, 64, &mut outbox);
    let mut turns = Vec::new();
    while !replica.waiting.is_empty() {
        let now = replica.now.after_ms(1);
        replica.end_turn(now, &mut outbox);
        turns.push(answers(&mut outbox));
        assert_eq!(replica.deadline() == Some(now), !replica.waiting.is_empty(), "after {turns:?}");
        replica.step(now, Input::Tick, &mut outbox);
    }
    assert!(turns.len() > 1, "scans of {} rows were all answered in one turn", 64 * types::limits::TRANSACTION_READS_MAX);
    assert_eq!((turns.iter().sum::<usize>(), replica.waiting_bytes), (64, 0));
}

#[test]
fn a_replica_whose_log_is_gone_is_quarantined_and_says_nothing_that_counts() {
    for gone in [&[LOG][..], &[LOG, SNAPSHOTS]] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut whole = replica(folder.path());
        assert!(engine::Replica::rebuilding(&whole).is_none());
        whole.persist().expect("the disk works");
        drop(whole);
        gone.iter().for_each(|part| fs::remove_dir_all(folder.path().join(part)).expect("it was there"));
        let mut lost = open(folder.path());
        let why = engine::Replica::rebuilding(&lost).expect("it does not serve");
        assert!(why.contains("sentinel-log is missing"), "{why}");
        let kept = crate::evidence(folder.path()).expect("it can be read");
        assert!(kept.len() == 1 && kept[0].what.ends_with("sentinel-log is missing"), "{kept:?}");
        let mut outbox = OutboxOf::<Replica>::default();
        for after_ms in [400, 800, 5_000] {
            let now = Time(0).after_ms(after_ms);
            lost.step(now, Input::Tick, &mut outbox);
            lost.end_turn(now, &mut outbox);
            lost.persist().expect("the disk works");
        }
        let asks = |message: &Message| matches!(message, Message::Server(sentinel::ensemble::Message::WhoLeads));
        assert!(!outbox.sends.is_empty() && outbox.sends.iter().all(|(_, message)| asks(message)), "it votes for nobody");
        assert!(!folder.path().join(LOG).exists(), "no log is begun until somebody leads without it");
    }
}
