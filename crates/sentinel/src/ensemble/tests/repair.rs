//! Servers that are found wrong, and repair themselves.

use jute::Operation;

use super::*;
use crate::digest::Checksum;

impl World {
    fn repairing() -> Self {
        let mut world = Self::new();
        world.repairs = true;
        world
    }

    /// Writes a node through a client at `at`, and lets everybody hear of it.
    fn write(&mut self, client: Client, xid: i32, path: &str) {
        self.ask(client, xid, create(path));
        self.settle();
        self.pass(20);
    }

    fn digest(&self, at: u16) -> Checksum {
        self.machines[usize::from(at)].member.server().state().checksum()
    }

    /// Whether all are whole, serve clients, and have the same state.
    fn are_same(&self) -> bool {
        let serves = |at| self.is_whole(at) && !self.machines[usize::from(at)].member.server().serves_nobody();
        (0..3).all(|at| serves(at) && self.digest(at) == self.digest(0))
    }

    /// A crash, and another start from what is on the disk.
    fn restart(&mut self, at: u16) {
        let now = self.now;
        let machine = self.machine(at);
        machine.member = open(at, &machine.disk, now);
        machine.is_told = false;
        self.conclude(at);
    }

    /// Whether a client that connects to a server gets a session.
    fn is_served(&mut self, at: u16) -> bool {
        let machine = self.machine(at);
        machine.opened += 1;
        let connection = ConnectionId(machine.opened);
        let peer = Peer { address: IpAddr::V4(Ipv4Addr::LOCALHOST), port: 1, certificate: None };
        self.step(at, |member, now| member.client(now, Input::Opened { connection, peer }));
        let request = ConnectRequest { timeout_ms: 600_000, ..Default::default() };
        self.step(at, |member, now| member.client(now, Input::Connect { connection, request }));
        self.settle();
        self.pass(20);
        self.machine(at).said.contains_key(&connection)
    }

    /// Changes a letter of `word` wherever it is in the log of a server.
    fn damage_log(&mut self, at: u16, word: &[u8]) {
        for record in &mut self.machine(at).disk.records {
            if let Some(place) = record.windows(word.len()).position(|window| window == word) {
                record[place + word.len() - 1] ^= 1;
            }
        }
    }

    fn others(leader: u16) -> (u16, u16) {
        ((leader + 1) % 3, (leader + 2) % 3)
    }
}

#[test]
fn a_server_whose_memory_is_damaged_rereads_its_disk_and_serves_once_it_is_compared() {
    for is_leader in [false, true] {
        let mut world = World::repairing();
        let leader = world.leader();
        let (follower, other) = World::others(leader);
        let damaged = if is_leader { leader } else { follower };
        let client = world.open_session(other, 0, &[]);
        world.write(client, 1, "/a");
        let near = world.open_session(damaged, 0, &[]);
        world.lose_digests = vec![0, 1, 2];
        world.machine(damaged).member.server_mut().damage(Damage::Data, "/a").expect("there is data, or a leaf to be wrong");
        for _ in 0..4_096 {
            world.step(damaged, Member::scrub);
        }
        assert!(world.machine(damaged).closed.contains(&near.connection), "it was found");
        world.pass(3_000);
        assert!(world.is_whole(damaged) && world.status(damaged) != Status::Looking, "it takes part again");
        assert!(!world.is_served(damaged), "nobody has said yet that its state is right");
        let client = world.open_session(other, client.session, &client.password);
        world.write(client, 2, "/b");
        assert!(world.has(damaged, "/b"), "the order goes on with it");
        world.lose_digests.clear();
        world.pass(2_000);
        assert!(world.are_same() && world.is_served(damaged));
        assert_eq!(world.machine(damaged).repaired.len(), 1);
        assert!(!world.machine(damaged).disk.gave_up, "it remembers what it promised");
    }
}

#[test]
fn a_follower_that_lost_a_transaction_is_repaired_while_writes_go_on() {
    let mut world = World::repairing();
    let leader = world.leader();
    let (follower, _) = World::others(leader);
    let client = world.open_session(leader, 0, &[]);
    world.machine(follower).member.server_mut().damage(Damage::Drop, "/").expect("there is a root");
    for xid in 1..60 {
        world.write(client, xid, &format!("/{xid}"));
    }
    assert_eq!(world.answers(client, create("/").opcode()).len(), 59);
    world.pass(2_000);
    assert!(world.are_same());
    assert_eq!((world.leader(), world.disagreeing(leader)), (leader, Some(Value::from(0_usize))));
}

/// A leader that is outvoted while one of its followers, which has just lost its disk, does not count yet: the other two are needed for a majority.
fn outvoted_leader_that_is_needed(repairs: bool) -> (World, Client) {
    let mut world = World::new();
    world.repairs = repairs;
    let leader = world.leader();
    let (one, _) = World::others(leader);
    let client = world.open_session(leader, 0, &[]);
    world.write(client, 1, "/a");
    world.machine(leader).member.damage_proposal();
    world.machine(one).disk = Disk::default();
    world.restart(one);
    world.settle_until(|world| world.has(one, "/a"));
    assert!(!world.machine(one).member.replica().is_member());
    world.ask(client, 2, create("/b"));
    world.pass(6_000);
    (world, client)
}

#[test]
fn where_an_outvoted_leader_is_needed_and_stays_away_nobody_leads() {
    let (world, client) = outvoted_leader_that_is_needed(false);
    assert!(!world.is_whole(client.at) && (0..3).all(|at| at == client.at || world.status(at) == Status::Looking));
}

#[test]
fn an_outvoted_leader_takes_back_what_a_majority_refused() {
    let (mut world, client) = outvoted_leader_that_is_needed(true);
    let leader = client.at;
    let (_, other) = World::others(leader);
    assert!(world.heard(client).len() <= 1, "nobody was told of it");
    assert!(world.are_same() && (0..3).all(|at| !world.has(at, "/b")));
    assert_eq!(world.machine(leader).repaired.len(), 1);
    assert!(!world.machine(leader).disk.gave_up, "only what it proposed itself was wrong");
    let again = world.open_session(other, client.session, &client.password);
    world.write(again, 1, "/c");
    assert!((0..3).all(|at| world.has(at, "/c")));
}

#[test]
fn a_beginning_that_is_refused_is_taken_over_from_the_others() {
    let mut world = World::repairing();
    let leader = world.leader();
    let client = world.open_session(leader, 0, &[]);
    world.cut = (0..3).flat_map(|from| (0..3).map(move |to| (from, to))).collect();
    world.machine(leader).member.damage_proposal();
    world.ask(client, 1, create("/a"));
    world.pass(2_000);
    world.cut.clear();
    world.pass(9_000);
    assert!(world.are_same() && !world.has(leader, "/a"));
    assert!(world.machine(leader).disk.gave_up && world.machine(leader).member.replica().is_member());
}

#[test]
fn whoever_took_over_is_compared_with_a_majority_of_the_others() {
    let mut world = World::repairing();
    let leader = world.leader();
    let (follower, other) = World::others(leader);
    let client = world.open_session(leader, 0, &[]);
    world.write(client, 1, "/victim");
    world.damage_log(follower, b"/victim");
    world.lose_digests = vec![other];
    world.restart(follower);
    assert!(!world.is_whole(follower), "its log makes another state");
    world.pass(3_000);
    assert!(world.machine(follower).disk.gave_up && world.has(follower, "/victim"));
    assert!(!world.is_served(follower), "only the server has agreed whose state it took");
    world.lose_digests.clear();
    world.pass(2_000);
    assert!(world.are_same() && world.is_served(follower));
    assert!(world.machine(follower).member.replica().is_member());
}

#[test]
fn one_opinion_is_not_counted_twice() {
    let mut world = World::repairing();
    let leader = world.leader();
    let (follower, other) = World::others(leader);
    let client = world.open_session(leader, 0, &[]);
    world.write(client, 1, "/a");
    // Its memory is damaged while it is cut off, and it rereads its disk; meanwhile the others let go of what it lacks.
    world.lose_digests = vec![other];
    world.isolate(follower);
    world.machine(follower).member.server_mut().damage(Damage::Stat, "/a").expect("it was created");
    for _ in 0..4_096 {
        world.step(follower, Member::scrub);
    }
    for xid in 2..60 {
        world.write(client, xid, &format!("/{xid}"));
    }
    for at in [leader, other] {
        world.step(at, |member, _| member.begin_snapshot());
    }
    world.pass(100);
    assert!(world.is_whole(follower) && !world.has(follower, "/59"), "it came back from its disk");
    world.cut.clear();
    world.pass(3_000);
    let snapshot = world.machine(follower).disk.snapshot.as_ref().map(|(zxid, _)| *zxid);
    assert!(world.has(follower, "/59") && snapshot.is_some(), "it took the leader's snapshot");
    assert!(!world.is_served(follower), "only the leader has said so far that this is right, and it is the leader's state");
    world.lose_digests.clear();
    world.pass(2_000);
    assert!(world.are_same() && world.is_served(follower));
    assert!(!world.machine(follower).disk.gave_up);
}

#[test]
fn who_is_quarantined_does_not_begin_anew_for_another_reason() {
    // Nobody repairs itself here.
    let mut world = World::new();
    let leader = world.leader();
    let (follower, other) = World::others(leader);
    let client = world.open_session(leader, 0, &[]);
    world.machine(follower).member.server_mut().damage(Damage::Drop, "/").expect("there is a root");
    world.cut = vec![(leader, other), (other, leader)];
    world.write(client, 1, "/a");
    world.write(client, 2, "/b");
    // It disagrees with its leader, and without the third nobody can say who is right. Then the leader is gone, so that it is about to begin anew;
    // and something else finds it wrong.
    world.now.steady_ms += 10_000;
    let wrong = crate::Corruption { zxid: 1, path: None, what: "a snapshot finds it wrong".into(), digests: None };
    world.step(follower, |member, now| {
        member.tick(now);
        assert!(member.turn.reopen.is_some(), "it is about to");
        member.stop(now, wrong);
    });
    assert!(!world.is_whole(follower), "it stays quarantined, as nobody has repaired it");
    world.pass(2_000);
    assert!(!world.is_whole(follower) && !world.is_served(follower));
}

#[test]
fn a_log_is_given_up_only_where_a_majority_goes_on_without_it() {
    let mut world = World::repairing();
    let leader = world.leader();
    let (follower, other) = World::others(leader);
    let client = world.open_session(leader, 0, &[]);
    world.write(client, 1, "/victim");
    world.cut = [follower, leader].into_iter().flat_map(|at| [(at, other), (other, at)]).collect();
    world.pass(600);
    assert_eq!(world.leader(), leader, "two are a majority");
    world.damage_log(follower, b"/victim");
    world.restart(follower);
    world.pass(5_000);
    assert!(!world.is_whole(follower) && !world.machine(follower).disk.gave_up, "nobody leads without it");
    assert!(!world.is_served(follower));
    world.cut.clear();
    world.pass(5_000);
    assert!(world.machine(follower).disk.gave_up && world.are_same());
}

#[test]
fn of_two_logs_that_are_damaged_at_once_one_is_given_up_at_most() {
    let mut world = World::repairing();
    let leader = world.leader();
    let (follower, other) = World::others(leader);
    let client = world.open_session(leader, 0, &[]);
    world.write(client, 1, "/victim");
    world.pass(100);
    for at in [follower, other] {
        world.damage_log(at, b"/victim");
        world.restart(at);
    }
    world.pass(5_000);
    let given_up = [follower, other].into_iter().filter(|at| world.machine(*at).disk.gave_up).count();
    assert_eq!(given_up, 1, "whoever asks first is not needed, as far as anybody knows");
}

#[test]
fn a_server_that_is_found_wrong_again_does_not_read_the_same_disk_again() {
    let mut world = World::repairing();
    let leader = world.leader();
    let (follower, _) = World::others(leader);
    let client = world.open_session(leader, 0, &[]);
    for xid in 1..8 {
        world.write(client, xid, &format!("/{xid}"));
    }
    world.machine(follower).member.begin_snapshot();
    world.pass(100);
    // A snapshot that is whole, and of another state.
    let disk = &mut world.machine(follower).disk;
    let (zxid, bytes) = disk.snapshot.take().expect("it was taken");
    let mut wrong = State::new(Profile::Sha256Wide, 1);
    wrong.zxid = State::read_snapshot(&bytes, 1).expect("it was written").zxid;
    disk.snapshot = Some((zxid, bytes_of(&wrong)));
    world.restart(follower);
    world.pass(500);
    let client = world.open_session(leader, client.session, &client.password);
    world.ask(client, 9, Request::Multi(vec![Operation::Create(Create { path: "/7/a".to_owned(), ..created() })]));
    world.settle();
    world.pass(6_000);
    assert!(world.machine(follower).disk.gave_up && world.are_same() && world.has(follower, "/7/a"));
}

#[test]
fn a_server_that_gave_up_its_log_founds_nothing() {
    let mut world = World::new();
    for at in 0..3 {
        world.machine(at).disk = Disk { gave_up: at == 1, ..Disk::default() };
    }
    (0..3).for_each(|at| world.restart(at));
    world.pass(5_000);
    assert!((0..3).all(|at| world.status(at) == Status::Looking), "what one of them had is in the files that it put aside");
    world.machine(1).disk = Disk::default();
    world.restart(1);
    world.pass(2_000);
    world.leader();
}
