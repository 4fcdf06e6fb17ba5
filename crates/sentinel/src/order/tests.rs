//! Servers that are stepped by scripts: each rule in one situation.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use machine::Time;

use super::message::{History, Leadership, Message, Promise, Zxid};
use super::record::Record;
use super::replica::{Event, JournalOp, Options, Output, Refused, Replica, Status};
use super::servers::Standing;

/// A server, what is on its disk, and what it delivered.
struct Server {
    replica: Replica,
    journal: Vec<Vec<u8>>,
    delivered: Vec<(Zxid, Bytes)>,
}

/// Servers and what is under way between them, in order; no two rules of chance.
struct World {
    now: Time,
    servers: Vec<Option<Server>>,
    disks: BTreeMap<u16, (Vec<Vec<u8>>, u64)>,
    queue: VecDeque<(u16, u16, Message)>,
    /// From whom to whom nothing gets.
    cut: Vec<(u16, u16)>,
    incarnations: u64,
    options: Options,
    voters: u16,
}

impl World {
    fn new(count: u16) -> Self {
        let mut world = Self::of(count);
        (0..count).for_each(|at| world.start(at));
        world
    }

    fn of(count: u16) -> Self {
        let options = Options { tick_ms: 50, timeout_ms: 300, settle_ms: 20, ..Options::default() };
        Self {
            now: Time(1_000_000_000),
            voters: count,
            servers: (0..count).map(|_| None).collect(),
            disks: BTreeMap::new(),
            queue: VecDeque::new(),
            cut: Vec::new(),
            incarnations: 100,
            options,
        }
    }

    fn count(&self) -> u16 {
        u16::try_from(self.servers.len()).expect("few")
    }

    /// The same, the last of whom observes.
    fn with_observer(voters: u16) -> Self {
        let mut world = Self { voters, ..Self::of(voters + 1) };
        (0..=voters).for_each(|at| world.start(at));
        world
    }

    fn start(&mut self, at: u16) {
        let (journal, incarnation) = self.disks.remove(&at).unwrap_or_else(|| {
            self.incarnations += 1;
            (Vec::new(), self.incarnations)
        });
        let mut replica = Replica::new(at, self.voters, self.options, Zxid::default()).expect("there are few");
        for record in &journal {
            replica.replay(record.clone().into()).expect("it wrote it");
        }
        let mut output = Output::default();
        replica.begin(self.now, incarnation, &mut output).expect("it has a head");
        self.servers[usize::from(at)] = Some(Server { replica, journal, delivered: Vec::new() });
        self.conclude(at, output);
    }

    fn stop(&mut self, at: u16) {
        let server = self.servers[usize::from(at)].take().expect("it runs");
        let incarnation = server.replica.incarnation;
        self.disks.insert(at, (server.journal, incarnation));
        self.queue.retain(|(from, to, _)| *from != at && *to != at);
    }

    /// Stops it in good order: what it says last gets to the others.
    fn leave(&mut self, at: u16) {
        self.step(at, Replica::leave);
        let said: Vec<_> = self.queue.iter().filter(|(from, ..)| *from == at).cloned().collect();
        self.stop(at);
        self.queue.extend(said);
        self.settle();
    }

    fn lose(&mut self, at: u16) {
        self.stop(at);
        self.disks.remove(&at);
    }

    fn conclude(&mut self, at: u16, mut output: Output) {
        let server = self.servers[usize::from(at)].as_mut().expect("it runs");
        server.replica.flush(&mut output);
        for op in output.journal {
            if let JournalOp::Append(record) = op {
                server.journal.push(record);
            }
        }
        for event in output.events {
            if let Event::Deliver { zxid, payload } = event {
                server.delivered.push((zxid, payload));
            }
        }
        self.queue.extend(output.sends.into_iter().map(|(to, message)| (at, to, message)));
    }

    fn step(&mut self, at: u16, act: impl FnOnce(&mut Replica, Time, &mut Output)) {
        let mut output = Output::default();
        let now = self.now;
        if let Some(server) = &mut self.servers[usize::from(at)] {
            act(&mut server.replica, now, &mut output);
            self.conclude(at, output);
        }
    }

    /// All that is under way arrives, and what comes of it.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            let Some((from, to, message)) = self.queue.pop_front() else { return };
            if !self.cut.contains(&(from, to)) {
                self.step(to, |replica, now, output| replica.hear(now, from, message, output));
            }
        }
        panic!("they never stop talking");
    }

    fn pass(&mut self, milliseconds: u64) {
        for _ in 0..milliseconds / 10 {
            self.now = self.now.after_ms(10);
            for at in 0..self.count() {
                self.step(at, |replica, now, output| {
                    if replica.deadline() <= now {
                        replica.tick(now, output);
                    }
                });
            }
            self.settle();
        }
    }

    fn replica(&self, at: u16) -> &Replica {
        &self.servers[usize::from(at)].as_ref().expect("it runs").replica
    }

    fn leader(&self) -> Option<u16> {
        (0..self.count()).find(|at| {
            self.servers[usize::from(*at)].as_ref().is_some_and(|server| matches!(server.replica.status(), Status::Leading { .. }))
        })
    }

    fn propose(&mut self, at: u16, payload: &str) -> Result<Zxid, Refused> {
        let payload = Bytes::copy_from_slice(payload.as_bytes());
        let mut proposed = Err(Refused::Busy);
        self.step(at, |replica, now, output| proposed = replica.propose(now, payload, output));
        proposed
    }

    fn delivered(&self, at: u16) -> Vec<String> {
        let server = self.servers[usize::from(at)].as_ref().expect("it runs");
        server.delivered.iter().map(|(_, payload)| String::from_utf8_lossy(payload).into_owned()).collect()
    }

    fn isolate(&mut self, at: u16) {
        self.cut = (0..self.count()).filter(|other| *other != at).flat_map(|other| [(at, other), (other, at)]).collect();
    }
}

#[test]
fn an_entry_that_nobody_would_take_is_not_appended() {
    let mut world = World::new(3);
    world.pass(500);
    let leader = world.leader().expect("somebody leads");
    let before = world.replica(leader).last();
    let mut refused = Ok(before);
    let payload = Bytes::from(vec![0; super::message::PAYLOAD_BYTES_MAX + 1]);
    world.step(leader, |replica, now, output| refused = replica.propose_prepared(now, payload, output));
    assert_eq!((refused, world.replica(leader).last()), (Err(Refused::TooLong), before));
}

#[test]
fn what_is_proposed_is_delivered_by_all_in_order() {
    let mut world = World::new(3);
    world.pass(500);
    let leader = world.leader().expect("somebody leads");
    for text in ["a", "b", "c"] {
        world.propose(leader, text).expect("it leads");
    }
    world.settle();
    for at in 0..3 {
        assert_eq!(world.delivered(at), ["a", "b", "c"]);
    }
    assert_eq!(world.propose((leader + 1) % 3, "d"), Err(Refused::NotLeading));
}

#[test]
fn one_server_alone_is_a_majority() {
    let mut world = World::new(1);
    world.pass(100);
    world.propose(0, "a").expect("it leads");
    assert_eq!(world.delivered(0), ["a"]);
}

#[test]
fn an_observer_delivers_everything_and_has_no_voice() {
    let mut world = World::with_observer(3);
    world.pass(1_000);
    let leader = world.leader().expect("somebody leads");
    assert!(matches!(world.replica(3).status(), Status::Following { .. }));
    world.propose(leader, "a").expect("it leads");
    world.settle();
    assert_eq!(world.delivered(3), ["a"]);
    let others: Vec<u16> = (0..3).filter(|at| *at != leader).collect();
    others.iter().for_each(|at| world.stop(*at));
    let _ = world.propose(leader, "b");
    world.pass(3_000);
    assert_eq!(world.delivered(leader), ["a"], "one of three and an observer are no majority");
    assert_eq!((world.leader(), world.replica(3).is_member()), (None, false));
    world.start(others[0]);
    world.pass(2_000);
    assert!(world.leader().is_some_and(|leader| leader < 3));
}

/// The first epoch takes all servers: a majority with empty disks may be those that lost theirs.
#[test]
fn a_majority_of_empty_disks_begins_nothing() {
    let mut world = World::new(3);
    world.stop(0);
    world.pass(3_000);
    assert_eq!(world.leader(), None);
    world.start(0);
    world.pass(1_000);
    assert!(world.leader().is_some());
}

#[test]
fn who_follows_a_leader_that_leaves_need_not_find_out_that_it_is_silent() {
    for servers in [3, 5] {
        let mut world = World::new(servers);
        world.pass(500);
        let leader = world.leader().expect("somebody leads");
        world.propose(leader, "a").expect("it leads");
        world.settle();
        // One of those that follow has looked for others in vain, and has less of the log.
        let short = (leader + servers - 1) % servers;
        world.isolate(short);
        world.pass(2_000);
        world.cut.clear();
        world.pass(200);
        assert_eq!(world.leader(), Some(leader));
        world.cut = vec![(leader, short)];
        world.propose(leader, "b").expect("it leads");
        world.settle();
        world.cut.clear();
        world.leave(leader);
        world.pass(world.options.settle_ms + 10);
        let next = world.leader().expect("somebody else leads by now");
        assert!(next != leader && next != short, "server {next} leads, after {leader}");
        world.propose(next, "c").expect("it leads");
        world.settle();
        assert_eq!(world.delivered(next), ["a", "b", "c"]);
        world.start(leader);
        world.pass(200);
        assert_eq!(world.leader(), Some(next), "who comes back follows");
        assert_eq!(world.delivered(leader), ["a", "b", "c"]);
    }
}

#[test]
fn a_leader_that_leaves_votes_for_nobody_who_is_gone_and_tells_observers() {
    let mut world = World::with_observer(5);
    world.pass(500);
    let leader = world.leader().expect("somebody leads");
    world.propose(leader, "a").expect("it leads");
    world.settle();
    // It would be preferred, as it has all, and the highest number of those that follow.
    let gone = (0..5).rev().find(|at| *at != leader).expect("there are others");
    world.stop(gone);
    world.pass(world.options.timeout_ms + 50);
    world.leave(leader);
    world.pass(world.options.settle_ms + 10);
    let next = world.leader().expect("somebody else leads by now");
    world.propose(next, "b").expect("it leads");
    world.pass(world.options.tick_ms + 10);
    assert_eq!(world.delivered(5), ["a", "b"], "the observer follows, too");
}

#[test]
fn a_follower_that_leaves_disturbs_nobody() {
    let mut world = World::new(3);
    world.pass(500);
    let leader = world.leader().expect("somebody leads");
    world.leave((leader + 1) % 3);
    assert_eq!(world.leader(), Some(leader));
    world.propose(leader, "a").expect("it leads");
    world.settle();
    assert_eq!(world.delivered(leader), ["a"]);
}

#[test]
fn an_entry_that_a_majority_has_not_is_not_delivered() {
    let mut world = World::new(3);
    world.pass(500);
    let leader = world.leader().expect("somebody leads");
    world.isolate(leader);
    world.propose(leader, "lost").expect("it does not know yet");
    world.settle();
    assert!(world.delivered(leader).is_empty());
    world.pass(1_000);
    assert_eq!(world.replica(leader).status(), Status::Looking, "a leader without a majority gives up");
    let other = world.leader().expect("the others have elected one");
    world.propose(other, "kept").expect("it leads");
    world.settle();
    world.cut.clear();
    world.pass(1_000);
    for at in 0..3 {
        assert_eq!(world.delivered(at), ["kept"], "what the leader before had alone is taken back");
    }
    // And it stays so when its journal is read again.
    world.stop(leader);
    world.start(leader);
    world.pass(1_000);
    assert_eq!(world.delivered(leader), ["kept"]);
}

#[test]
fn the_newest_history_leads() {
    let mut world = World::new(3);
    world.pass(500);
    let leader = world.leader().expect("somebody leads");
    let [stale, fresh]: [u16; 2] = (0..3).filter(|at| *at != leader).collect::<Vec<_>>().try_into().expect("two others");
    world.isolate(stale);
    world.propose(leader, "a").expect("it leads");
    world.settle();
    world.stop(leader);
    world.cut.clear();
    world.pass(2_000);
    assert_eq!(world.leader(), Some(fresh));
    assert_eq!((world.delivered(stale), world.delivered(fresh)), (vec!["a".to_owned()], vec!["a".to_owned()]));
}

/// What a server that lost its disk had acknowledged it does not know any more: it must not elect one that lacks it.
#[test]
fn a_server_that_lost_its_disk_does_not_count() {
    let mut world = World::new(3);
    world.pass(500);
    let leader = world.leader().expect("somebody leads");
    let [behind, lost]: [u16; 2] = (0..3).filter(|at| *at != leader).collect::<Vec<_>>().try_into().expect("two others");
    world.isolate(behind);
    world.propose(leader, "a").expect("it leads");
    world.settle();
    assert_eq!(world.delivered(leader), ["a"]);
    world.stop(leader);
    world.lose(lost);
    world.cut.clear();
    world.start(lost);
    world.pass(3_000);
    assert_eq!(world.leader(), None, "only one of three remembers what it promised");
    assert!(!world.replica(lost).is_member());
    world.start(leader);
    world.pass(2_000);
    let leader = world.leader().expect("two of three remember");
    assert!(world.replica(lost).is_member(), "by now it counts again");
    world.propose(leader, "b").expect("it leads");
    world.settle();
    for at in 0..3 {
        assert_eq!(world.delivered(at), ["a", "b"]);
    }
}

#[test]
fn a_server_that_lost_its_disk_counts_only_once_it_knows_that_it_does() {
    let mut world = World::new(3);
    world.pass(500);
    let leader = world.leader().expect("somebody leads");
    let others: Vec<u16> = (0..3).filter(|at| *at != leader).collect();
    world.lose(others[0]);
    // Nobody else is there to take note of it with the leader.
    world.stop(others[1]);
    world.start(others[0]);
    world.pass(250);
    let _ = world.propose(leader, "a");
    world.settle();
    world.pass(100);
    assert!(world.delivered(leader).is_empty(), "the leader and a server that forgot are no majority");
}

/// What a server writes that begins with an empty disk.
fn begun_journal() -> Vec<Vec<u8>> {
    let mut replica = Replica::new(0, 3, Options::default(), Zxid::default()).expect("three servers");
    let mut output = Output::default();
    replica.begin(Time(0), 7, &mut output).expect("it is new");
    let appended = |op| match op {
        JournalOp::Append(record) => record,
        other => panic!("{other:?}"),
    };
    output.journal.into_iter().map(appended).collect()
}

/// A server to be spoken to, which founded with two others and knows `records`.
fn lone(records: &[Record]) -> (Replica, Output) {
    use types::codec::Encode as _;
    let first = begun_journal().into_iter();
    let more = records.iter().map(Record::to_bytes);
    let mut replica = Replica::new(0, 3, Options::default(), Zxid::default()).expect("three servers");
    first.chain(more).for_each(|record| replica.replay(record.into()).expect("it is a journal"));
    let mut output = Output::default();
    replica.begin(Time(0), 8, &mut output).expect("it has a head");
    (replica, Output::default())
}

fn founded() -> Vec<Record> {
    use super::message::{Body, Entry};
    let entry = |zxid, body| Record::Entry(Entry { zxid, body });
    vec![
        Record::Promise(Promise { epoch: 1, to: 1 }),
        entry(Zxid::new(1, 1), Body::Founders(vec![7, 17, 27])),
        Record::Accepted(1),
        entry(Zxid::new(1, 2), Body::Payload(Bytes::from_static(b"a"))),
    ]
}

#[test]
fn what_was_written_on_top_of_a_snapshot_needs_it() {
    use super::message::{Body, Entry};
    use super::record::Head;
    use types::codec::Encode as _;
    let (replica, _) = lone(&founded());
    let servers = replica.log.servers().clone();
    let base = Zxid::new(1, 9);
    let head = Head { incarnation: 7, is_member: true, promise: Promise { epoch: 2, to: 1 }, accepted: 1, base, servers };
    let mut records: Vec<Vec<u8>> = begun_journal();
    records.extend(founded().iter().map(Record::to_bytes));
    records.push(Record::Head(head).to_bytes());
    let entry = |zxid| Record::Entry(Entry { zxid, body: Body::Payload(Bytes::from_static(b"b")) }).to_bytes();
    let begin = |records: &[Vec<u8>], loaded| {
        let mut replica = Replica::new(0, 3, Options::default(), loaded).expect("three servers");
        let read = records.iter().try_for_each(|record| replica.replay(record.clone().into()));
        let mut output = Output::default();
        read.and_then(|()| replica.begin(Time(0), 8, &mut output)).map(|()| (replica.last(), output.journal))
    };
    // A crash came before the snapshot: what comes then goes on from the log before.
    let (last, journal) = begin(&records, Zxid::default()).expect("nothing is missing");
    assert_eq!(last, Zxid::new(1, 2));
    let written = journal.into_iter().filter_map(|op| if let JournalOp::Append(record) = op { Some(record) } else { None });
    let again: Vec<Vec<u8>> = records.iter().cloned().chain(written).chain([entry(Zxid::new(2, 1))]).collect();
    assert_eq!(begin(&again, Zxid::default()).expect("it goes on").0, Zxid::new(2, 1));
    // The snapshot was there once, and is needed.
    records.push(entry(Zxid::new(2, 1)));
    assert_eq!(begin(&records, Zxid::default()).err(), Some(super::replica::ReplayError::Gap(Zxid::new(1, 2), base)));
    assert_eq!(begin(&records, base).expect("it is there").0, Zxid::new(2, 1));
    records.pop();
    records.push(Record::Accepted(2).to_bytes());
    assert_eq!(begin(&records, Zxid::default()).err(), Some(super::replica::ReplayError::Gap(Zxid::new(1, 2), base)));
}

const LEADER_1: Message =
    Message::Vote { round: 9, candidate: 1, history: History { accepted: 1, last: Zxid::new(1, 2) }, is_leader: true };

#[test]
fn an_epoch_is_promised_once_and_to_one() {
    let (mut replica, mut output) = lone(&founded());
    replica.hear(Time(1), 1, LEADER_1, &mut output);
    output.sends.clear();
    replica.hear(Time(2), 1, Message::NewEpoch { epoch: 5 }, &mut output);
    assert!(matches!(output.sends[..], [(1, Message::Promise { epoch: 5, .. })]));
    // Another one with the same epoch, and a lower one, are told of that promise.
    for (from, epoch) in [(2, 5), (2, 4)] {
        replica.role = super::replica::Role::Looking(super::election::Looking::new(
            9,
            super::election::Candidate { history: History::default(), server: 0 },
        ));
        replica.hear(
            Time(3),
            from,
            Message::Vote { round: 10, candidate: from, history: History::default(), is_leader: true },
            &mut output,
        );
        output.sends.clear();
        replica.hear(Time(3), from, Message::NewEpoch { epoch }, &mut output);
        assert!(matches!(output.sends[..], [(2, Message::Follow { promised: Promise { epoch: 5, to: 1 }, .. })]), "{:?}", output.sends);
    }
}

#[test]
fn a_leader_that_lacks_what_a_follower_has_is_refused_until_a_majority_has_accepted_it() {
    let older = History { accepted: 1, last: Zxid::new(1, 1) };
    for is_established in [false, true] {
        let (mut replica, mut output) = lone(&founded());
        replica.hear(Time(1), 1, LEADER_1, &mut output);
        replica.hear(Time(2), 1, Message::NewEpoch { epoch: 2 }, &mut output);
        let leadership = Leadership { epoch: 2, beginning: older, is_established };
        let last = Zxid::new(1, 2);
        replica.hear(Time(3), 1, Message::Truncate { leadership, from: last, to: Zxid::new(1, 1) }, &mut output);
        let expected = if is_established { Zxid::new(1, 1) } else { last };
        assert_eq!(replica.last(), expected);
    }
}

#[test]
fn a_log_with_another_end_is_not_built_upon() {
    let (mut replica, mut output) = lone(&founded());
    replica.hear(Time(1), 1, LEADER_1, &mut output);
    replica.hear(Time(2), 1, Message::NewEpoch { epoch: 2 }, &mut output);
    let beginning = History { accepted: 1, last: Zxid::new(1, 3) };
    let leadership = Leadership { epoch: 2, beginning, is_established: true };
    let entry = super::message::Entry { zxid: Zxid::new(2, 1), body: super::message::Body::Payload(Bytes::new()) };
    let entries = Message::Entries { leadership, previous: Zxid::new(1, 1), entries: vec![entry], committed: Zxid::new(2, 1) };
    replica.hear(Time(3), 1, entries, &mut output);
    assert_eq!(replica.last(), Zxid::new(1, 2));
    assert!(matches!(output.sends.last(), Some((1, Message::Ack { last: Zxid(0x1_0000_0002), has_accepted: false, .. }))));
}

#[test]
fn a_leader_is_obeyed_in_the_epoch_that_was_promised_to_it_alone() {
    let entry = super::message::Entry { zxid: Zxid::new(3, 1), body: super::message::Body::Payload(Bytes::new()) };
    let (mut replica, mut output) = lone(&founded());
    replica.hear(Time(1), 1, LEADER_1, &mut output);
    replica.hear(Time(2), 1, Message::NewEpoch { epoch: 2 }, &mut output);
    let beginning = History { accepted: 1, last: Zxid::new(1, 2) };
    for epoch in [1, 3] {
        let leadership = Leadership { epoch, beginning, is_established: true };
        let entries = Message::Entries { leadership, previous: beginning.last, entries: vec![entry.clone()], committed: entry.zxid };
        replica.hear(Time(3), 1, entries, &mut output);
        assert_eq!(replica.last(), beginning.last);
    }
}

#[test]
fn an_epoch_is_accepted_when_all_that_it_began_with_is_there() {
    let (mut replica, mut output) = lone(&founded());
    replica.hear(Time(1), 1, LEADER_1, &mut output);
    replica.hear(Time(2), 1, Message::NewEpoch { epoch: 2 }, &mut output);
    let entry = |counter| super::message::Entry { zxid: Zxid::new(1, counter), body: super::message::Body::Payload(Bytes::new()) };
    let leadership = Leadership { epoch: 2, beginning: History { accepted: 1, last: Zxid::new(1, 4) }, is_established: false };
    for (counter, whole) in [(3, false), (4, true)] {
        let previous = Zxid::new(1, counter - 1);
        let entries = Message::Entries { leadership, previous, entries: vec![entry(counter)], committed: Zxid::default() };
        replica.hear(Time(3), 1, entries, &mut output);
        let Some((1, Message::Ack { last, has_accepted, .. })) = output.sends.last() else { panic!("{:?}", output.sends) };
        assert_eq!((*last, *has_accepted), (Zxid::new(1, counter), whole));
    }
}

#[test]
fn nobody_leads_whose_follower_knows_more() {
    let (mut replica, mut output) = lone(&founded());
    replica.lead(Time(1), &mut output);
    let standing = Standing { incarnation: 27, is_member: true, gave_up: false };
    let history = History { accepted: 1, last: Zxid::new(1, 9) };
    replica.hear(Time(2), 2, Message::Follow { promised: Promise { epoch: 1, to: 1 }, history, standing }, &mut output);
    assert!(!output.sends.iter().any(|(_, message)| matches!(message, Message::NewEpoch { .. })));
    // Under another incarnation than the log names it does not count, and alone this server is no majority.
    let (mut replica, mut output) = lone(&founded());
    replica.lead(Time(1), &mut output);
    let stranger = Standing { incarnation: 28, is_member: true, gave_up: false };
    replica.hear(
        Time(2),
        2,
        Message::Follow { promised: Promise { epoch: 1, to: 1 }, history: History::default(), standing: stranger },
        &mut output,
    );
    assert!(!output.sends.iter().any(|(_, message)| matches!(message, Message::NewEpoch { .. })));
    let history = History { accepted: 1, last: Zxid::new(1, 1) };
    replica.hear(Time(3), 2, Message::Follow { promised: Promise { epoch: 4, to: 1 }, history, standing }, &mut output);
    assert!(output.sends.iter().any(|(to, message)| *to == 2 && *message == Message::NewEpoch { epoch: 5 }));
}

#[test]
fn nonsense_is_refused_and_changes_nothing() {
    use types::codec::{Decode as _, Encode as _};
    let entries = Message::Entries {
        leadership: Leadership { epoch: 2, beginning: History::default(), is_established: true },
        previous: Zxid::new(1, 1),
        entries: Vec::new(),
        committed: Zxid::new(9, 9),
    };
    let bytes = entries.to_bytes();
    let cluster = types::ClusterId::new([0; 16]);
    assert_eq!(Message::from_bytes(bytes.clone().into(), cluster), Ok(entries.clone()));
    for cut in 0..bytes.len() {
        assert!(Message::from_bytes(bytes[..cut].to_vec().into(), cluster).is_err());
    }
    let (mut replica, mut output) = lone(&founded());
    let before = (replica.last(), replica.delivered());
    for from in 0..5 {
        replica.hear(Time(1), from, entries.clone(), &mut output);
    }
    assert_eq!((replica.last(), replica.delivered()), before);
}

/// What is said by servers that make mistakes, of small numbers so that much of it fits.
fn drawn(random: &mut impl FnMut(u32) -> u32) -> Message {
    use super::message::{Body, Entry};
    use super::servers::Servers;
    let standing = Standing { incarnation: [7, 17, 27, 28][random(4) as usize], is_member: random(2) == 0, gave_up: random(2) == 0 };
    let epoch = random(5);
    let zxid = |random: &mut dyn FnMut(u32) -> u32| Zxid::new(random(4), random(5));
    let older = History { accepted: random(2), last: Zxid::new(1, random(3)) };
    let history = if random(8) == 0 { History { accepted: random(4), last: zxid(random) } } else { older };
    let leadership = Leadership { epoch, beginning: history, is_established: random(2) == 0 };
    match random(11) {
        0 => Message::Vote { round: u64::from(random(9)), candidate: 1, history, is_leader: random(2) == 0 },
        1 => Message::Follow { promised: Promise { epoch, to: 0 }, history, standing },
        2 | 3 => Message::NewEpoch { epoch },
        4 => Message::Promise { epoch, history, standing },
        5 | 6 => {
            let body = |random: &mut dyn FnMut(u32) -> u32| match random(6) {
                0 => Body::Founders(vec![7, 17, 27]),
                1 => Body::Joins { server: 9, incarnation: 9 },
                _ => Body::Payload(Bytes::new()),
            };
            let entries = (0..random(4)).map(|_| Entry { zxid: zxid(random), body: body(random) }).collect();
            Message::Entries { leadership, previous: zxid(random), entries, committed: zxid(random) }
        }
        7 => Message::Ack { epoch, last: zxid(random), has_accepted: random(2) == 0, standing },
        8 => Message::Truncate { leadership, from: zxid(random), to: zxid(random) },
        9 => Message::Snapshot { leadership, zxid: zxid(random), bytes: u64::from(random(3)), servers: Servers::default() },
        _ if random(2) == 0 => Message::FetchPage { epoch, zxid: zxid(random), offset: u64::from(random(3)) },
        _ => Message::Page { epoch, zxid: zxid(random), offset: u64::from(random(3)), bytes: Bytes::from_static(b"s") },
    }
}

/// Servers are not held to lie. All the same nothing that one says stops another.
#[test]
fn no_mistake_of_another_server_stops_one() {
    let mut state = 1_u64;
    let mut random = |below: u32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(state >> 33).expect("31 bits") % below
    };
    let (mut led, mut followed) = (0, 0);
    for _ in 0..3_000 {
        let (mut replica, mut output) = lone(&founded());
        let mut now = Time(1);
        for _ in 0..80 {
            now = now.after_ms(u64::from(random(8)));
            let message = drawn(&mut random);
            replica.hear(now, u16::try_from(random(3)).expect("small"), message, &mut output);
            replica.tick(now, &mut output);
            let _ = replica.propose(now, Bytes::new(), &mut output);
            replica.flush(&mut output);
            if output.events.contains(&Event::WantSnapshot) {
                replica.offer(replica.delivered(), Bytes::from_static(b"state"), &mut output);
            }
            assert!(replica.delivered() <= replica.last());
            output = Output::default();
            led += u32::from(matches!(replica.status(), Status::Leading { .. }));
            followed += u32::from(matches!(replica.status(), Status::Following { .. }));
        }
    }
    assert!(led > 10 && followed > 100, "{led} led, {followed} followed");
}

#[test]
fn an_observer_does_not_depose_a_leader() {
    let mut world = World::with_observer(3);
    world.pass(1_000);
    let leader = world.leader().expect("somebody leads");
    let promised = Promise { epoch: 99, to: 1 };
    let follow = Message::Follow { promised, history: History::default(), standing: Standing::default() };
    world.step(leader, |replica, now, output| replica.hear(now, 3, follow, output));
    assert_eq!(world.leader(), Some(leader));
    world.pass(1_000);
    assert!(matches!(world.replica(3).status(), Status::Following { .. }), "it follows on");
}

#[test]
fn nobody_is_voted_for_who_has_no_voice() {
    let (mut replica, mut output) = lone(&founded());
    let history = History { accepted: 9, last: Zxid::new(9, 9) };
    let vote = Message::Vote { round: 50, candidate: 7, history, is_leader: false };
    replica.hear(Time(5), 1, vote, &mut output);
    replica.tick(Time(1_000_000_000), &mut output);
    let voted = |message: &Message| matches!(message, Message::Vote { candidate: 7, .. });
    assert!(!output.sends.iter().any(|(_, message)| voted(message)));
}

/// What is merely under way is not sent twice.
#[test]
fn what_is_not_overdue_is_not_sent_again() {
    let mut world = World::new(3);
    world.pass(500);
    let leader = world.leader().expect("somebody leads");
    world.isolate(leader);
    world.cut.retain(|(from, _)| *from != leader);
    world.propose(leader, "a").expect("it leads");
    world.queue.clear();
    let mut sent = 0;
    let mut output = Output::default();
    let now = world.now;
    let replica = &mut world.servers[usize::from(leader)].as_mut().expect("it runs").replica;
    for tick in 1..=2 {
        replica.tick(now.after_ms(50 * tick), &mut output);
        replica.flush(&mut output);
    }
    for (_, message) in &output.sends {
        if let Message::Entries { entries, .. } = message {
            sent += entries.len();
        }
    }
    assert_eq!(sent, 0, "it is under way for two ticks of fifty milliseconds, of a timeout of three hundred");
}
